"""Edges of the reader's code that a file has reached, by `sys.settrace`.

Tracing makes an execution about twenty times slower, so one in `_ONE_IN` is watched.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import memviz.trace

_WATCHED = str(Path(memviz.trace.__file__).parent)
_ONE_IN = 10
Edge = tuple[CodeType, int, int]


class Edges:
    def __init__(self) -> None:
        self.seen: set[Edge] = set()
        self.executions_watched = 0
        self._count = 0

    def new_after(self, run: Callable[[], None]) -> bool:
        """Run it and return whether it was watched and reached an edge that no earlier execution did."""
        self._count += 1
        if self._count % _ONE_IN != 1:
            run()
            return False
        self.executions_watched += 1
        before = len(self.seen)
        sys.settrace(self._call)
        try:
            run()
        finally:
            sys.settrace(None)
        return len(self.seen) > before

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_WATCHED):
            return None
        last = -1

        def line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                self.seen.add((frame.f_code, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line
