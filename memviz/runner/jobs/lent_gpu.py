"""Measured runs on a ZeroGPU Space, where a GPU is lent for the length of one function.

No process of ours ever sees that GPU: the function itself runs in a process that the Space makes, and uses again for
others. So each run is one call, recording and timing and all, whose answer is plain values and the name of a file.
What must be set before CUDA starts cannot be set in a process that was used before.

The Space uses a process again where the function returned, and ends it where it raised. After an error that a card
does not recover from the function has to raise, and then its answer does not arrive; nor does it where the time is up
and the process is ended. So all that is said is also written to a file, line by line, beside the traces.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from memviz.errors import UsageError
from memviz.runner.jobs.gpu_seconds import reserved_seconds
from memviz.runner.jobs.worker_process import Happened, environment_of, happened
from memviz.runner.jobs.zero_gpu import on_gpu
from memviz.runner.request import Request

LENT_DEVICE = "a GPU of this Space"
_TO_SPARE_SECONDS = 5.0
"""For the way back of the answer."""
_WAITS = "waiting for a GPU, and measuring on it"
_NO_SETTINGS = (
    "The GPU of this Space comes with a process that was used before, and the allocator's settings must stand before "
    "CUDA starts. Predict this variant, or measure it on a machine of your own."
)


class Spoiled(Exception):
    """The process must not serve another visitor."""


def _measured(number: int, request: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """All that a process of its own would have said."""
    from memviz.runner.jobs.worker import answer

    said: list[dict[str, Any]] = []
    until = time.monotonic() + reserved_seconds(number, request, folder) - _TO_SPARE_SECONDS
    with _notebook(Path(folder), number).open("w", encoding="utf-8") as lines:

        def send(kind: str, number: int, **rest: Any) -> None:
            said.append({"kind": kind, "number": number, **rest})
            lines.write(json.dumps(said[-1]) + "\n")
            lines.flush()

        answer(number, Request.from_json(request), Path(folder), send, until=until)
    _see_that_the_next_can_use_it()
    return said


def _see_that_the_next_can_use_it() -> None:
    """An error of a kernel stays with the process, and every later call to the card ends in it."""
    from memviz.runner.measure.accelerator import find_accelerator

    try:
        accelerator = find_accelerator()
    except UsageError:
        return
    try:
        accelerator.try_it()
    except Exception as error:
        raise Spoiled(str(error)) from error
    if accelerator.history_is_on is not None and accelerator.history_is_on():
        raise Spoiled("The history of allocations could not be switched off.")


def _notebook(folder: Path, number: int) -> Path:
    return folder / f"run-{number}.said"


measured = on_gpu(_measured, seconds=reserved_seconds)
"""Made while this module is imported: a Space looks for such functions before the page is up."""


class LentGpu:
    """It has the face of `process.Worker`."""

    served = 0
    is_alive = False
    """It serves one order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cancelled = threading.Event()

    def run(self, requests: Sequence[Request], first: int = 0) -> Iterator[Happened]:
        for number, request in enumerate(requests, first):
            if self._cancelled.is_set():
                yield Happened("failed", number, what="cancelled", text="Cancelled.")
            elif environment_of(request):
                yield Happened("failed", number, what="refused", text=_NO_SETTINGS)
            else:
                yield Happened("phase", number, phase=_WAITS)
                yield self._last(number, request)

    def _last(self, number: int, request: Request) -> Happened:
        asked = request.as_json()
        try:
            said = measured(number, asked, str(self.folder))
        except UsageError as error:
            return Happened("failed", number, what="refused", text=str(error))
        except Exception as error:
            said = self._said(number)
            if not said:
                # The Space's own words: no GPU is free, or the time that it lends is used up.
                return Happened("failed", number, what="refused", text=f"No GPU was lent for it: {error}")
            if said[-1]["kind"] not in ("done", "failed"):
                return self._ended_early(number, asked, said, error)
        finally:
            _notebook(self.folder, number).unlink(missing_ok=True)
        return happened(said[-1], self.folder)

    def _said(self, number: int) -> list[dict[str, Any]]:
        """Until the process ended, perhaps in the middle of a line."""
        found = []
        with suppress(OSError, ValueError):
            for line in _notebook(self.folder, number).read_text(encoding="utf-8").splitlines():
                found.append(json.loads(line))
        return found

    def _ended_early(
        self, number: int, asked: dict[str, Any], said: list[dict[str, Any]], error: Exception
    ) -> Happened:
        """What was measured by then is kept."""
        doing = next((each["phase"] for each in reversed(said) if each["kind"] == "phase"), "starting")
        lent = reserved_seconds(number, asked, str(self.folder))
        words = (
            f"The Space ended it ({error}) while it was {doing}. It lends its GPU for {lent} seconds to a run of this "
            "size, and ends what takes longer; a process that crashes ends so too. A smaller run takes less time."
        )
        figures = next((each for each in reversed(said) if each["kind"] == "figures"), None)
        if figures is None:
            return Happened("failed", number, what="timeout", text=words)
        known = happened({**figures, "kind": "done"}, self.folder)
        return replace(known, text=" ".join(filter(None, (known.text, words))))

    def cancel(self) -> None:
        """What runs on a lent GPU cannot be called back; what waits behind it is not begun."""
        self._cancelled.set()

    def kill(self) -> None:
        self.cancel()

    def close(self) -> None:
        self.cancel()
