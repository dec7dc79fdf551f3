"""Limits of one run on this machine, memory and seconds, and the process tree that they apply to.

Resident memory is counted, not limited by the system: a limit of address space ends processes that merely map files.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from memviz.errors import UsageError
from memviz.memory import memory_totals
from memviz.trace.limits import positive_setting
from memviz.units import parse_bytes

MEMORY = "MEMVIZ_MAX_RUN_BYTES"
SECONDS = "MEMVIZ_MAX_RUN_SECONDS"
TIMEOUT_SECONDS = 900.0

_DEFAULT_BYTES = 16 << 30
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_LEAST_BYTES = 1 << 30
"""PyTorch and the libraries of models take a third of it before anything is run."""


def most_bytes(environment: Mapping[str, str] = os.environ) -> int:
    """Return the limit on resident memory of a run with all the processes it starts."""
    text = environment.get(MEMORY, "")
    if text:
        with suppress(ValueError, OverflowError):
            size = parse_bytes(text)
            if size > 0:
                return size
        raise UsageError(f"{MEMORY}={text!r} is not a size, such as 8GiB, or a number of bytes.")
    all_bytes = machine_bytes()
    # A Space also holds the page, and an estimate may run next to a run; locally one model may need most of it.
    return max(_LEAST_BYTES, all_bytes // 4 if environment.get("SPACE_ID") else all_bytes * 3 // 4)


def most_seconds(default: float = TIMEOUT_SECONDS, environment: Mapping[str, str] = os.environ) -> float:
    return positive_setting(SECONDS, environment) or default


def machine_bytes() -> int:
    """Return the memory of this machine, or of its container if that is less."""
    limits = [_DEFAULT_BYTES]
    with suppress(OSError, ValueError, AttributeError):
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        # "max" is no number.
        with suppress(OSError, ValueError):
            limits.append(int(path.read_text()))
    return min(limit for limit in limits if limit > 0)


OWN_SESSION: dict[str, Any] = {
    "start_new_session": True,
    # Windows has no sessions; there this keeps the Ctrl-C of a terminal from it.
    "creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
}
"""Arguments of `Popen` for a process tree that the signals of a terminal do not reach."""

_NICENESS = 10
"""Leaves a tenth of a contended processor."""
_PROC = Path("/proc")
_KIB = 1 << 10


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    resident: int


def lower_priority(pid: int) -> None:
    """Let a process that works in advance yield to work that a client waits for."""
    with suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
        # Linux may divide CPU time by session first (autogroup): lower it only for a process with its own session.
        if os.getsid(pid) == pid:
            (_PROC / str(pid) / "autogroup").write_text(str(_NICENESS), encoding="ascii")


def resident_bytes(root: int) -> int:
    """Resident memory of a process and its descendants; 0 if unavailable, or if they have ended."""
    return sum(process.resident for process in _process_tree(root))


def own_bytes(root: int) -> int:
    """Part of `resident_bytes` that the system cannot reclaim; slower to compute.

    A page that several of them share counts once, and one of a file that is mapped, as weights may be, not at all.
    """
    return sum(_unshared_bytes(process) for process in _process_tree(root))


def _process_tree(root: int) -> list[_Process]:
    """Return a process, its descendants, and what these left behind in its session."""
    processes = list(_processes())
    members = {root, *(process.pid for process in processes if process.session == root)}
    while more := {process.pid for process in processes if process.parent in members} - members:
        members |= more
    return [process for process in processes if process.pid in members]


def end_tree(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its descendants, from any thread. One that has ended may have left children, which end too."""
    if not hasattr(os, "killpg"):
        # The interpreter of a virtual environment is itself a child of the process that was started.
        with suppress(OSError):
            subprocess.run(["taskkill", "/T", "/F", "/PID", str(process.pid)], capture_output=True, check=False)
        process.kill()
        process.wait()
        return
    left = [member.pid for member in _process_tree(process.pid) if member.pid != process.pid]
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        # One that has only just begun may not lead a group yet.
        left.append(process.pid)
    for pid in left:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _processes() -> Iterator[_Process]:
    """Yield all processes; none where the system does not list them."""
    try:
        names = os.listdir(_PROC)
    except OSError:
        yield from _processes_by_ps()
        return
    page = os.sysconf("SC_PAGE_SIZE")
    for name in names:
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                # The program's name is in brackets and may contain brackets.
                fields = (_PROC / name / "stat").read_bytes().rpartition(b")")[2].split()
                yield _Process(int(name), int(fields[1]), int(fields[3]), int(fields[21]) * page)


def _processes_by_ps() -> Iterator[_Process]:
    """Yield processes listed by `ps`, as on macOS. A session leader leads a group of the same number."""
    try:
        rows = subprocess.run(["ps", "-axo", "pid=,ppid=,pgid=,rss="], capture_output=True, check=False).stdout
    except OSError:
        return
    for line in rows.splitlines():
        with suppress(ValueError):
            pid, parent, group, resident = map(int, line.split())
            yield _Process(pid, parent, group, resident * _KIB)


def _unshared_bytes(process: _Process) -> int:
    """Proportional share of anonymous pages; of all pages if the system does not separate them."""
    shares = memory_totals(process.pid, _PROC)
    if "Pss_Anon" in shares:
        return shares["Pss_Anon"] + shares.get("Pss_Shmem", 0)
    return shares.get("Pss", process.resident)
