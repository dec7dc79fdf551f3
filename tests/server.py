"""The real page in its own process, for tests over HTTP."""

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import forked

ROOT = Path(__file__).parents[1]
_PATIENCE_SECONDS = 300
_PORTS, _PROCESSES = range(20_000, 32_000), 8


_FORK_RUNS = "from tests import forked\nforked.runs_from_here()\n"


@dataclass(frozen=True)
class Server:
    address: str
    port: int
    pid: int
    log: Path
    folder: Path
    """Folder of uploaded and written files."""

    def wait_until_it_says(self, words: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while words not in (said := self.log.read_text(errors="replace")):
            assert "Traceback" not in said and time.monotonic() < deadline, said
            time.sleep(0.1)


@contextmanager
def started(
    more: Mapping[str, str], port: int = 0, program: Sequence[str] = ("app.py",), *, quickly: bool = False
) -> Iterator[Server]:
    """Start a page with `more` in its environment; `quickly` forks a process that has imported Gradio and PyTorch.

    The processes of its runs are forked too then: a page warms one up once somebody looks at it, which takes as long as
    several stories.
    """
    port = port or _free_port()
    environment = {**os.environ, "GRADIO_SERVER_PORT": str(port), "GRADIO_ANALYTICS_ENABLED": "False", **more}
    if quickly:
        # What is forked cannot begin anew with another way to get memory.
        environment.setdefault("PYTHONMALLOC", "default")
        is_code = program[0] == "-c"
        program = ("-c", _FORK_RUNS + program[1], *program[2:]) if is_code else ("-m", "tests.forking", "app")
    # A process that is being ended may write there to the last.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "output.txt"
        uploads = Path(folder) / "uploads"
        environment["GRADIO_TEMP_DIR"] = str(uploads)
        with log.open("wb") as output:
            start = partial(forked.start, of=forked.with_page, most_seconds=0) if quickly else _really_started
            process = start(program, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            address = f"http://127.0.0.1:{port}/"
            _wait_for(address, process, log)
            yield Server(address, port, process.pid, log, uploads)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _really_started(program: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, *program], **more)


def _wait_for(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                answer.read(1)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail(f"The page did not start. Its output:\n{log.read_text(errors='replace')}")


def _free_port() -> int:
    """Return a port that stays free until the page listens there, which takes seconds.

    The system may give a port of its ephemeral range to any connection in between, so the port is below that range;
    each xdist worker has its own ports.
    """
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.SystemRandom().randrange(_PORTS.start, _PORTS.stop, _PROCESSES) + process % _PROCESSES
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
