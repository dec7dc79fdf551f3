"""A cluster of Dask in processes of its own, which are ended for certain: one within the tests' own process can wait
for ever for a worker that is gone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests import forked

_STARTS_WITHIN_SECONDS = 600
_ENDS_WITHIN_SECONDS = 10


@dataclass(frozen=True)
class Cluster:
    scheduler_address: str


@contextmanager
def dask_cluster(
    folder: Path,
    *,
    workers: int = 2,
    environment: dict[str, str] | None = None,
    preload: str = "",
    is_of_runs: bool = False,
) -> Iterator[Cluster]:
    """Start workers of one thread each, as on separate machines, in `folder` and with `preload` imported.

    With `is_of_runs` they have PyTorch and fork their runs; they are not restarted when they end.
    """
    from distributed import Client

    told = folder / "scheduler.json"
    scheduling = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
    with ExitStack() as ends:
        address = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(told))
        ends.enter_context(_running("dask_scheduler", *address, folder=folder, environment=scheduling))
        until = time.monotonic() + _STARTS_WITHIN_SECONDS
        while not (known := _address(told)):
            assert time.monotonic() < until, "the scheduler did not start"
            time.sleep(0.05)
        for _ in range(workers):
            options = (known, "--nworkers", "1", "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1")
            options += ("--preload", preload) if preload else ()
            options += ("--no-nanny",) if is_of_runs else ()
            work = partial(_running, is_of_runs=is_of_runs)
            ends.enter_context(work("dask_worker", *options, folder=folder, environment=environment or {}))
        # A test that counts them must not begin while the second is still being started.
        with Client(known, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=_STARTS_WITHIN_SECONDS)
        yield Cluster(known)


def _address(told: Path) -> str:
    with suppress(OSError, ValueError):
        return str(json.loads(told.read_text())["address"])
    return ""


@contextmanager
def _running(
    module: str, *options: str, folder: Path, environment: dict[str, str], is_of_runs: bool = False
) -> Iterator[None]:
    command = [f"distributed.cli.{module}", *options]
    named: dict[str, Any] = {
        "cwd": folder,
        "env": {**os.environ, **environment},
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "start_new_session": True,
    }
    process: subprocess.Popen[Any]
    if is_of_runs and forked.CAN_FORK_RUNS:
        command = ["-W", "ignore", "-m", "tests.forking", *command]
        process = forked.start(command, of=forked.with_torch, most_seconds=0, **named)
    else:
        process = subprocess.Popen([sys.executable, "-W", "ignore", "-m", *command], **named)
    try:
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDS_WITHIN_SECONDS)
        # What it started is in its group, and ends with it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
