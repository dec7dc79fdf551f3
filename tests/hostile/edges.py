"""Edges of the reader's code that a file has reached, by CPython's own tracing.

From Python 3.12 on `sys.monitoring` reports each branch once, so every execution is watched. Before it there is only
`sys.settrace`, about twenty times slower, so one execution in `_ONE_IN` is watched.
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
        self._new = False
        self._count = 0
        self._monitoring: Any = getattr(sys, "monitoring", None)
        if self._monitoring is not None:
            self._monitor()

    def new_after(self, run: Callable[[], None]) -> bool:
        """Run it and return whether it was watched and reached an edge that no earlier execution did."""
        self._new = False
        self._count += 1
        is_watched = self._monitoring is not None or self._count % _ONE_IN == 1
        self.executions_watched += is_watched
        if self._monitoring is not None or not is_watched:
            run()
            return self._new
        sys.settrace(self._call)
        try:
            run()
        finally:
            sys.settrace(None)
        return self._new

    def _add(self, edge: Edge) -> None:
        if edge not in self.seen:
            self.seen.add(edge)
            self._new = True

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_WATCHED):
            return None
        last = -1

        def line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                self._add((frame.f_code, last, frame.f_lineno))
                last = frame.f_lineno
            return line

        return line

    def _monitor(self) -> None:
        tool = self._monitoring.COVERAGE_ID
        events = self._monitoring.events

        def reached(code: CodeType, begin: int, end: int = -1) -> Any:
            if code.co_filename.startswith(_WATCHED):
                self._add((code, begin, end))
            return self._monitoring.DISABLE

        self._monitoring.use_tool_id(tool, "memviz fuzzer")
        kinds = [getattr(events, name) for name in ("BRANCH_LEFT", "BRANCH_RIGHT") if hasattr(events, name)]
        for kind in (events.LINE, *(kinds or [events.BRANCH])):
            self._monitoring.register_callback(tool, kind, reached)
        self._monitoring.set_events(tool, events.LINE | sum(kinds or [events.BRANCH]))
