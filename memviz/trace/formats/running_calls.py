"""What was running on a thread at a moment, of a trace of torch's profiler: the calls that enclose it in time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isfinite
from typing import Any

from memviz.trace.intern import MOST_FRAMES, Interner
from memviz.trace.model import NO_STACK

_CALLS = {"cpu_op", "python_function", "Operator", "Python"}
"""Kinds of both ages."""
_OF_PYTHON = ("python_function", "Python")
_FUNCTION = re.compile(r"(?P<file>.{1,4096})\((?P<line>\d{1,9})\): (?P<name>.{1,4096})", re.DOTALL)
_CHECKED_EVERY = 1024
_CALL_BYTES = 200


@dataclass(slots=True)
class _Call:
    begin: float
    end: float
    frame: int
    around: _Call | None = None
    depth: int = 1
    stack: int = NO_STACK


class RunningCalls:
    """Asked for moments of a thread in the order of time."""

    def __init__(self, rows: list[dict[str, Any]], interner: Interner, threads: set[tuple[Any, Any]]) -> None:
        self._interner = interner
        self._calls: dict[tuple[Any, Any], list[_Call]] = {}
        self._next: dict[tuple[Any, Any], int] = {}
        self._inner: dict[tuple[Any, Any], _Call | None] = {}
        self._frames: dict[str, int] = {}
        self.has_python = False
        for number, row in enumerate(rows):
            if number % _CHECKED_EVERY == 0:
                interner.budget.check()
            self._add(row, threads)
        for calls in self._calls.values():
            # Of two that begin together the longer is around the other.
            calls.sort(key=lambda call: (call.begin, -call.end))
        self.has_any = bool(self._calls)

    def _add(self, row: dict[str, Any], threads: set[tuple[Any, Any]]) -> None:
        kind, name, begin, lasts = row.get("cat"), row.get("name"), row.get("ts", ""), row.get("dur", 0)
        if row.get("ph") != "X" or kind not in _CALLS or type(name) is not str:
            return
        thread = (row.get("pid"), row.get("tid"))
        if not all(type(part) in (int, str, type(None)) for part in thread) or thread not in threads:
            return
        if not (_is_time(begin) and _is_time(lasts)):
            return
        self._interner.budget.charge(_CALL_BYTES)
        self.has_python |= kind in _OF_PYTHON
        self._calls.setdefault(thread, []).append(_Call(begin, begin + lasts, self._frame(name)))

    def _frame(self, name: str) -> int:
        number = self._frames.get(name)
        if number is None:
            found = _FUNCTION.fullmatch(name)
            frame = {"name": found["name"], "filename": found["file"], "line": int(found["line"])} if found else name
            number = self._frames[name] = self._interner.frame(frame)
        return number

    def stack_at(self, thread: tuple[Any, Any], at: float) -> int:
        calls, number = self._calls.get(thread, ()), self._next.get(thread, 0)
        inner = self._inner.get(thread)
        while number < len(calls) and calls[number].begin <= at:
            call = calls[number]
            inner = _running(inner, call.begin)
            # Deeper than any stack: what is beyond is of no use to a reader.
            if inner is None or inner.depth < MOST_FRAMES:
                call.around, call.depth = inner, 1 + (inner.depth if inner else 0)
                inner = call
            number += 1
        inner = _running(inner, at)
        self._next[thread], self._inner[thread] = number, inner
        return NO_STACK if inner is None else self._stack(inner)

    def _stack(self, call: _Call) -> int:
        if call.stack == NO_STACK:
            frames = []
            around: _Call | None = call
            while around is not None:
                frames.append(around.frame)
                around = around.around
            self._interner.budget.check()
            call.stack = self._interner.stack_of(frames)
        return call.stack


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value)


def _running(call: _Call | None, at: float) -> _Call | None:
    while call is not None and call.end < at:
        call = call.around
    return call
