"""Limits of a run, and the process tree that they apply to."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memviz.errors import UsageError
from memviz.runner.jobs import limits
from memviz.runner.jobs.limits import (
    OWN_SESSION,
    end_tree,
    lower_priority,
    machine_bytes,
    most_bytes,
    most_seconds,
    own_bytes,
    resident_bytes,
)
from tests.runner.processes import is_there, wait_until

GiB = 1 << 30


def test_memory_is_what_the_setting_says_and_one_that_is_no_size_is_named() -> None:
    for text, size in (("8GiB", 8 * GiB), ("5000000000", 5_000_000_000), ("512 MiB", GiB // 2)):
        assert most_bytes({"MEMVIZ_MAX_RUN_BYTES": text, "SPACE_ID": "ann/memviz"}) == size
    for text in ("much", "0", "-1GiB", "nan", "9" * 400):
        with pytest.raises(UsageError, match="MEMVIZ_MAX_RUN_BYTES="):
            most_bytes({"MEMVIZ_MAX_RUN_BYTES": text})


def test_a_space_keeps_most_of_its_machine_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "machine_bytes", lambda: 16 * GiB)
    assert (most_bytes({"SPACE_ID": "ann/memviz"}), most_bytes({})) == (4 * GiB, 12 * GiB)
    monkeypatch.setattr(limits, "machine_bytes", lambda: GiB)
    assert most_bytes({"SPACE_ID": "ann/memviz"}) == GiB


def test_a_container_has_what_it_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given, endless = tmp_path / "memory.max", tmp_path / "old"
    given.write_text("max\n")
    endless.write_text(f"{1 << 62}\n")
    monkeypatch.setattr(limits, "_CONTAINER_LIMITS", (given, endless, tmp_path / "missing"))
    whole = machine_bytes()
    given.write_text(f"{GiB}\n")
    assert machine_bytes() == GiB < whole


def test_seconds_are_what_the_setting_says() -> None:
    assert most_seconds(7, {}) == 7
    assert most_seconds(7, {"MEMVIZ_MAX_RUN_SECONDS": "0.5"}) == 0.5
    for text in ("soon", "0", "inf", "nan"):
        with pytest.raises(UsageError, match="MEMVIZ_MAX_RUN_SECONDS="):
            most_seconds(7, {"MEMVIZ_MAX_RUN_SECONDS": text})


MiB = 1 << 20
CHILD = "held = bytearray(64 << 20)\nprint('there', flush=True)\nimport time\ntime.sleep(3600)"
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {child}], stdout=subprocess.PIPE{more})
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def family(more: str = "") -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-c", FAMILY.format(child=repr(CHILD), more=more)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **OWN_SESSION) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            end_tree(process)
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_memory_is_that_of_all_its_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with family() as (process, child):
        alone, whole = resident_bytes(child), resident_bytes(process.pid)
        assert whole > alone > 64 * MiB
        assert 64 * MiB <= own_bytes(process.pid) <= whole
        monkeypatch.setattr(limits, "_PROC", tmp_path / "no-such-system")
        by_ps = resident_bytes(process.pid)
        assert abs(by_ps - whole) < 8 * MiB
    # What was killed holds its memory for a moment yet.
    wait_until(lambda: resident_bytes(process.pid) == 0)


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="this system has no such priorities")
def test_what_is_worked_out_ahead_leaves_the_processor_to_others() -> None:
    with family() as (process, _):
        usual = os.getpriority(os.PRIO_PROCESS, process.pid)
        lower_priority(process.pid)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) >= min(usual + 1, 10)
        group = Path(f"/proc/{process.pid}/autogroup")
        if group.exists():
            assert group.read_text().endswith("nice 10\n")


def test_a_file_that_is_mapped_could_be_taken_back(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(bytes(64 * MiB))
    program = (
        "import mmap, sys, time\nfile = open(sys.argv[1], 'rb')\n"
        "held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\nsum(held[::4096])\n"
        "print('there', flush=True)\ntime.sleep(3600)\n"
    )
    command = [sys.executable, "-c", program, str(weights)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, **OWN_SESSION) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        resident, own = resident_bytes(process.pid), own_bytes(process.pid)
        end_tree(process)
    assert resident > 64 * MiB > own


@pytest.mark.parametrize(("more", "is_left"), [("", False), (", start_new_session=True", False), ("", True)])
def test_the_end_of_it_is_the_end_of_what_it_started_and_of_what_it_left_behind(more: str, is_left: bool) -> None:
    with family(more) as (process, child):
        if is_left:
            process.kill()
            process.wait()
            assert is_there(child)
        end_tree(process)
        assert process.returncode == -signal.SIGKILL
        wait_until(lambda: not is_there(child))


def test_without_process_groups_a_tree_is_ended_as_on_windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for `taskkill` records its arguments and kills the group."""
    noted = tmp_path / "noted"
    program = tmp_path / "taskkill"
    program.write_text(f'#!/bin/sh\necho "$@" > {noted}\nkill -KILL -"$4"\n')
    program.chmod(0o755)
    monkeypatch.delattr(os, "killpg")
    with family() as (process, child):
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        end_tree(process)
        assert noted.read_text().split() == ["/T", "/F", "/PID", str(process.pid)]
        assert process.returncode == -signal.SIGKILL
        wait_until(lambda: not is_there(child))


def test_without_taskkill_the_process_itself_ends_and_without_proc_and_ps_it_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setenv("PATH", "/no-such-folder")
    monkeypatch.setattr(limits, "_PROC", Path("/no-such-system"))
    with family() as (process, _):
        assert resident_bytes(process.pid) == 0
        end_tree(process)
        assert process.returncode == -signal.SIGKILL
