"""The processes of cases: each has one of its own, so that what aborts or hangs loses no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from tests.gpu.case import Case, order_of
from tests.gpu.machine import ROOT
from tests.gpu.results import Results

_LAST_WORDS = 2000
_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class Processes:
    """One is always begun ahead: its imports take longer than many a case."""

    def __init__(self, results: Results, known: Mapping[str, str]) -> None:
        self.results = results
        self.known = known
        self._ahead: subprocess.Popen[bytes] | None = None

    def carry_out(self, case: Case, seconds: float) -> str:
        """'' or, in words, what became of it instead of a result."""
        process = self._process_for(case)
        try:
            # One that ended in its imports reads no order; its status says so.
            with suppress(OSError):
                _tell(process, order_of(case, self.results.folder, self.known))
            self._ahead = self._ahead or _begun({})
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return self._failed(case, f"It took longer than {seconds:.0f} seconds and was stopped.")
        finally:
            _end(process)
        if status:
            return self._failed(case, f"Its process ended with status {status}. {self._last_words(case)}")
        return (self.results.read(case.part, case.name) or {}).get("failed", "")

    def end(self) -> None:
        if self._ahead is not None:
            _end(self._ahead)

    def _process_for(self, case: Case) -> subprocess.Popen[bytes]:
        """Allocator settings are read when torch is imported, which has happened in the one that waits."""
        if case.environment or self._ahead is None:
            return _begun(case.environment)
        process, self._ahead = self._ahead, None
        return process

    def _failed(self, case: Case, words: str) -> str:
        found = {"part": case.part, "name": case.name, "arguments": dict(case.arguments), "failed": words}
        self.results.write({**found, "machine": dict(self.known)})
        return words

    def _last_words(self, case: Case) -> str:
        try:
            written = self.results.log_of(case.part, case.name).read_bytes()
        except OSError:
            return ""
        return written[-_LAST_WORDS:].decode("utf-8", "replace").strip()


def _begun(environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.case"]
    everything = environment_with(environment)
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, env=everything, start_new_session=True)


def environment_with(more: Mapping[str, str]) -> dict[str, str]:
    """Nothing is fetched, and the allocator has its defaults where the case does not say otherwise."""
    kept = {name: text for name, text in os.environ.items() if name not in _CONF}
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **more}


def _tell(process: subprocess.Popen[bytes], order: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{order}\n".encode())
    process.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that it started; also of one that never had an order."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
