"""A case in a process of its own: begun early, sent off when it is its turn, and ended when its time is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tests.gpu.case import Case, order_of
from tests.gpu.machine import ROOT
from tests.gpu.results import Results

_LAST_WORDS = 2000
_CONF = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


class Started:
    def __init__(self, case: Case, out: Path, known: Mapping[str, str]) -> None:
        self.case = case
        self.results = Results(out)
        self.known = known
        self.log = self.results.folder_of("logs") / f"{case.part}-{case.name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.gpu.case", order_of(case, out, known)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment_of(case),
                start_new_session=True,
            )

    def finish(self, timeout: float) -> str:
        """'' or, in words, what became of it instead of a result."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return self._failed(f"It took longer than {timeout:.0f} seconds and was stopped.")
        finally:
            self.end()
        if status:
            return self._failed(f"Its process ended with status {status}. {self._last_words()}")
        return (self.results.read(self.case.part, self.case.name) or {}).get("failed", "")

    def end(self) -> None:
        """With all that it started; also of one that was never sent off."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def _failed(self, words: str) -> str:
        case = self.case
        found = {"part": case.part, "name": case.name, "arguments": dict(case.arguments), "failed": words}
        self.results.write({**found, "machine": dict(self.known)})
        return words

    def _last_words(self) -> str:
        return self.log.read_bytes()[-_LAST_WORDS:].decode("utf-8", "replace").strip()


def environment_of(case: Case) -> dict[str, str]:
    """Nothing is fetched, and the allocator has its defaults where the case does not say otherwise."""
    kept = {name: text for name, text in os.environ.items() if name not in _CONF}
    return {**kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **case.environment}
