"""What a pickle works on while it is read: bytes, a stack, a memo, and the bounds of all three."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from memviz.errors import TraceError
from memviz.trace.budget import Budget
from memviz.trace.unpickle.refusals import NOT_OURS, damaged
from memviz.trace.unpickle.runs import Runs
from memviz.trace.unpickle.stream import AGAIN, TRUNCATED, PickleStream, Piece, Progress, Readable
from memviz.trace.unpickle.template import REFERENCE_ROW, places_in

_LOW_WATER = 1 << 16
"""An operation with its numbers, and a line of protocol 0, always fit into what is left of a window."""
MARGIN = 16
"""Zero bytes behind every window, so that words may be read at its very end."""
_ENTRY, _ITEM, _MEMO = 100, 40, 100
"""Bytes that an entry of a dict, an item of a list and a place in the memo cost in CPython, rather too much."""
_CONTAINERS = frozenset((dict, list, tuple))
_TEXT_ALONE = {str}


class RefersToRow(Exception):
    """The file names a row a second time; such a file is read without runs."""


class Machine:
    def __init__(self, file: Readable, budget: Budget, progress: Progress | None) -> None:
        self.budget = budget
        self.limits = budget.limits
        self.progress = progress
        self.stream = PickleStream(file)
        self.buffer = b""
        self.at = 0
        self.low_water = 0
        self.before = 0
        self.ended = False
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.cost = 0
        self.items = 0
        self.depths: dict[int, int] = {}
        self.newest_dict: dict[str, Any] | None = None
        self.newest_dict_at = -1
        self.reframed = 0
        self.runs: Runs | None = None
        """None where every row is read by itself."""

    # -- bytes ---------------------------------------------------------------------------------------

    def refill(self) -> None:
        if self.ended:
            raise TraceError(TRUNCATED, remedy=AGAIN)
        self.check_limits()
        rest = self.buffer[self.at : len(self.buffer) - MARGIN] if self.buffer else b""
        more = self.stream.read()
        self.ended = not more
        self._set_window([rest, *more])

    def _set_window(self, pieces: list[Piece]) -> None:
        self.before += self.at
        self.newest_dict_at = -1
        self.buffer, self.at = b"".join((*pieces, bytes(MARGIN))), 0
        self.low_water = len(self.buffer) - MARGIN - (0 if self.ended else _LOW_WATER)
        if self.runs is not None:
            self.runs.new_window(self.buffer)

    def take(self, count: int) -> bytes:
        """The next bytes, however many windows they span."""
        if count > len(self.buffer) - MARGIN - self.at:
            self._widen(count)
        start = self.at
        self.at += count
        return self.buffer[start : self.at]

    def _widen(self, count: int) -> None:
        if count > self.limits.memory_bytes:
            raise self.budget.too_large("memory_bytes")
        pieces: list[Piece] = [self.buffer[self.at : len(self.buffer) - MARGIN]]
        have = len(pieces[0])
        while have < count:
            more = self.stream.read()
            if not more:
                raise TraceError(TRUNCATED, remedy=AGAIN)
            pieces += more
            have += sum(map(len, more))
        self._set_window(pieces)

    def line(self) -> bytes:
        """Text opcodes of protocol 0 end with a newline."""
        end = self.buffer.find(b"\n", self.at, len(self.buffer) - MARGIN)
        if end < 0:
            raise TraceError(TRUNCATED if self.ended else "Its pickle holds an endless line.", remedy=AGAIN)
        start, self.at = self.at, end + 1
        return self.buffer[start:end]

    # -- bounds --------------------------------------------------------------------------------------

    def check_limits(self) -> None:
        if self.progress is not None:
            self.progress(self.stream.consumed, 0)
        spent = self.cost + _ITEM * len(self.stack) + _MEMO * (len(self.memo) + len(self.depths))
        spent += self.runs.remembered if self.runs is not None else 0
        if spent + self.budget.spent > self.limits.memory_bytes:
            raise self.budget.too_large("memory_bytes")
        if self.items > self.limits.items:
            raise self.budget.too_large("items")
        if self.runs is not None and self.runs.count > self.limits.events:
            raise self.budget.too_large("events")
        self.budget.check()

    def deepen(self, parent: Any, children: list[Any] | tuple[Any, ...]) -> None:
        if _CONTAINERS.isdisjoint(map(type, children)):
            return
        depths = self.depths
        depth = 1 + max(map(depths.get, map(id, children), repeat(1)))
        if depth > self.limits.depth:
            raise self.budget.too_large("depth")
        depths[id(parent)] = max(depth, depths.get(id(parent), 0))

    # -- stack and memo ------------------------------------------------------------------------------

    def pop(self) -> Any:
        if not self.stack:
            raise damaged()
        return self.stack.pop()

    def pop_mark(self) -> list[Any]:
        if not self.marks:
            raise damaged()
        items, self.stack = self.stack, self.marks.pop()
        return items

    def put(self, number: int) -> None:
        if not self.stack:
            raise damaged()
        self.memo[number] = self.stack[-1]

    def memo_length(self) -> int:
        return len(self.memo) + (self.runs.memo_used if self.runs is not None else 0)

    def get(self, number: int) -> None:
        try:
            self.stack.append(self.memo[number])
        except KeyError:
            self.stack.append(self._from_runs(number))

    def take_references(self) -> bool:
        """A list of what is in the memo already, as stacks are, in one step, where that is what follows a mark."""
        if not self.stack or type(self.stack[-1]) is not list:
            return False
        row = REFERENCE_ROW.match(self.buffer, self.at, len(self.buffer) - MARGIN)
        if row is None:
            return False
        memo, places = self.memo, places_in(row[0]).tolist()
        try:
            items = list(map(memo.__getitem__, places))
        except KeyError:
            items = [memo[place] if place in memo else self._from_runs(place) for place in places]
        self.at = row.end()
        self.append_to_list(items)
        return True

    def _from_runs(self, number: int) -> Any:
        recalled = self.runs.recall(number) if self.runs is not None else None
        if recalled is None:
            raise damaged()
        if recalled is Runs.A_ROW:
            raise RefersToRow
        return recalled

    def append_to_list(self, items: list[Any]) -> None:
        target = self.stack[-1] if self.stack else None
        if type(target) is not list:
            raise damaged()
        self.cost += _ITEM * len(items)
        self.items += len(items)
        self.deepen(target, items)
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1] if self.stack else None
        if type(target) is not dict or len(items) % 2:
            raise damaged()
        keys, values = items[::2], items[1::2]
        if keys and set(map(type, keys)) != _TEXT_ALONE:
            raise TraceError("A key in its pickle is not a text.", remedy=NOT_OURS)
        self.cost += _ENTRY * len(keys)
        self.items += len(keys)
        self.deepen(target, values)
        target.update(zip(keys, values, strict=True))
        if self.runs is not None:
            end = self.at
            self._take_number_behind()
            self.runs.after_row(target, end)

    def _take_number_behind(self) -> None:
        """PyTorch's own pickler numbers a container once it is whole."""
        if self.buffer[self.at] == ord("r") and self.at + 5 <= len(self.buffer) - MARGIN:
            self.at += 5
            self.put(int.from_bytes(self.buffer[self.at - 4 : self.at], "little"))
