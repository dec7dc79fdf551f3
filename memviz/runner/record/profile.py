"""torch's own profiler beside the history: what ran when, in a trace of its own beside the snapshot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import first_line

FACT = "profile"
"""Of a snapshot: the name of the profile's file, which lies beside it."""
_GPUS = ("CUDA", "XPU")


class Profile:
    """Begun with the history, written when the program ends or is told to. It never ends the program itself."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self.path = path
        self._say = say
        self._running: Any = None
        self.is_over = threading.Event()
        """Written, or not to be had."""

    def start(self) -> None:
        try:
            self._running = _profiler()
            self._running.start()
        except Exception as error:
            self._running = None
            self.is_over.set()
            self._say(f"The profiler could not be switched on: {first_line(error)}")

    def write(self) -> bool:
        """Whether there is a file now."""
        running, self._running = self._running, None
        if running is None:
            return False
        try:
            running.stop()
            running.export_chrome_trace(str(self.path))
        except Exception as error:
            self._say(f"The profile is not written. {first_line(error)}")
            return False
        finally:
            self.is_over.set()
        self._say(f"The profile is written to {self.path}.")
        return True


def _profiler() -> Any:
    try:
        import torch.profiler as of_torch
    except ImportError:
        raise UsageError("There is no torch here.") from None
    # Its functions have no types.
    known: Any = of_torch
    there = known.supported_activities()
    named = [getattr(known.ProfilerActivity, name, None) for name in ("CPU", *_GPUS)]
    # Stacks of Python are in the snapshot. Here each call would be an event of its own, and the program far slower.
    return known.profile(activities=[kind for kind in named if kind in there], profile_memory=True)
