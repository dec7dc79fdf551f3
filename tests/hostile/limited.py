"""Commands run one by one, each in a process forked from this one, under limits of processor time and memory.

    python -m tests.hostile.limited JOBS.json    prints one line of JSON for each job

Everything is imported once; a job costs only what it does.
"""

import json
import math
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

SECONDS = 10
"""Limit of CPU seconds on a machine that formats 150,000 numbers in `_COUNTED`; scaled up on a slower one.

The speed of the machine may change while a job runs.
"""
_SLOWEST = 8.0
_COUNTED = 0.02
"""Twice the time on an idle machine."""
MEMORY = 3 << 29
"""1.5 GiB of address space, in addition to that before the file is read."""


def run(arguments: list[str], output: Path, before: float) -> tuple[dict[str, Any], float]:
    """Return status (negative for a signal), CPU seconds and their limit, peak memory, and the tail of the output.

    `before` and the last value are the machine's slowness before and after.
    """
    child = os.fork()
    if child == 0:
        _become(arguments, output, SECONDS * _SLOWEST)
    _, status, used = os.wait4(child, 0)
    said = output.read_bytes()[-3000:].decode(errors="replace")
    after = _slowness()
    return {
        "status": os.waitstatus_to_exitcode(status),
        "seconds": used.ru_utime + used.ru_stime,
        "most_seconds": SECONDS * max(before, after),
        "memory": used.ru_maxrss << 10,
        "said": said,
    }, after


def _become(arguments: list[str], output: Path, seconds: float) -> None:
    status = 99
    try:
        file = os.open(output, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), math.ceil(seconds) + 1))
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30,) * 2)
        status = _done(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _slowness() -> float:
    begun = time.process_time()
    for _ in map(str, range(150_000)):
        pass
    return min(max(1.0, (time.process_time() - begun) / _COUNTED), _SLOWEST)


def _done(arguments: list[str]) -> int:
    from memviz.commands import main
    from tests.hostile.looked_at import look

    if arguments[0] == "look":
        return look(arguments[1])
    return main(arguments)


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _warm(folder: Path) -> None:
    """Import now all that is imported lazily."""
    from memviz.commands import main
    from tests.hostile.files import packed
    from tests.traces import alloc, snapshot

    path = folder / "warm.pickle"
    path.write_bytes(packed(snapshot([alloc(1 << 30, 512)])))
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    for arguments in (["summary", path], ["report", path, "-o", folder / "warm.html"], ["replay", path]):
        main([str(argument) for argument in arguments])
    sys.stdout.flush()
    os.dup2(kept, 1)


if __name__ == "__main__":
    jobs_file = Path(sys.argv[1])
    _warm(jobs_file.parent)
    slowness = _slowness()
    for job in json.loads(jobs_file.read_text()):
        found, slowness = run(job, jobs_file.parent / "said", slowness)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
