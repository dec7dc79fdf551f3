"""Measured runs on a ZeroGPU Space, where a GPU is lent for the length of one function.

No process of ours ever sees that GPU: the function itself runs in a process that the Space makes, and uses again for
others. So each run is one call, recording and timing and all, whose answer is plain values and the name of a file.
What must be set before CUDA starts cannot be set in a process that was used before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memviz.runner.process import Happened, environment_of, happened
from memviz.runner.request import Request
from memviz.runner.zero_gpu import on_gpu

LENT_DEVICE = "a GPU of this Space"
_WAITS = "waiting for a GPU, and measuring on it"
_NO_SETTINGS = (
    "The GPU of this Space comes with a process that was used before, and the allocator's settings must stand before "
    "CUDA starts. Predict this variant, or measure it on a machine of your own."
)


def _measured(number: int, request: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """All that a process of its own would have said."""
    from memviz.runner.worker import answer

    said: list[dict[str, Any]] = []

    def send(kind: str, number: int, **rest: Any) -> None:
        said.append({"kind": kind, "number": number, **rest})

    answer(number, Request.from_json(request), Path(folder), send)
    return said


measured = on_gpu(_measured)
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
        try:
            said = measured(number, request.as_json(), str(self.folder))
        except Exception as error:
            # The Space's own words: no GPU is free, the time that it lends is used up, or the run took longer.
            return Happened("failed", number, what="refused", text=f"No GPU was lent for it: {error}")
        return happened(said[-1], self.folder)

    def cancel(self) -> None:
        """What runs on a lent GPU cannot be called back; what waits behind it is not begun."""
        self._cancelled.set()

    def kill(self) -> None:
        self.cancel()

    def close(self) -> None:
        self.cancel()
