"""The blocks that tile a snapshot's segments, dicts or rows that are decoded already -> columns."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

from memviz.errors import TraceError
from memviz.trace.collect import LARGEST_SUM, category_of, integers, name_of
from memviz.trace.formats.fields import list_of, whole_of
from memviz.trace.intern import Interner
from memviz.trace.model import NO_STACK, BlockRows, Blocks, Category, Ints8, State
from memviz.trace.unpickle.rows import translated
from memviz.units import kind_text

_STATES = {state.name.lower(): state for state in State}
_Row = tuple[int, int, int, int, int, int]
"""Segment, address, size, requested, state, stack: as in `Blocks`."""
_NO_SIZE = "A block's size is not a number of bytes."


class BlockCollector:
    """Takes one segment after the other, by address."""

    def __init__(self, interner: Interner) -> None:
        self.interner = interner
        self.unknown_states: set[str] = set()
        self.untiled_bytes = 0
        self._parts: list[list[Ints8]] = []
        self._rows: list[_Row] = []
        self._categories: list[Category] = []

    def add(self, number: int, segment: dict[str, Any]) -> None:
        start = end = whole_of(segment, "address")
        blocks = list_of(segment, "blocks")
        for kind, group in groupby(blocks, key=type):
            for block in group:
                end = self._add_rows(block, number) if kind is BlockRows else self._add_dict(block, number, end)
        if blocks:
            self.untiled_bytes += abs(start + whole_of(segment, "total_size") - end)

    def finish(self) -> tuple[Blocks, list[Category]]:
        """All blocks, and their categories if the file names any."""
        self._flush()
        empty = [np.zeros(0, dtype=np.int64)] * 6
        columns = [np.concatenate(columns) for columns in zip(empty, *self._parts, strict=True)]
        if any(float(column.sum(dtype=np.float64)) >= LARGEST_SUM for column in columns[2:4]):
            raise TraceError("The sizes of its blocks are beyond any real memory.")
        categories = self._categories if any(self._categories) else []
        return _blocks(columns), categories

    def _flush(self) -> None:
        if self._rows:
            of_column = zip(*self._rows, strict=True)
            self._parts.append(
                [integers(list(column), "address" if i == 1 else "size") for i, column in enumerate(of_column)]
            )
            self._rows = []

    def _add_rows(self, rows: BlockRows, segment: int) -> int:
        self._flush()
        state = translated(rows.state.astype(np.int64), lambda text: self._state(self.interner.text(text)))
        if (rows.size < 0).any() or (rows.requested[state > 0] < 0).any():
            raise TraceError(_NO_SIZE)
        used = state > 0
        segments = np.full(len(rows), segment)
        requested, stack = np.where(used, rows.requested, 0), np.where(used, rows.stack, NO_STACK)
        self._parts.append([segments, rows.address, rows.size, requested, state, stack])
        self._categories += [Category.UNKNOWN] * len(rows)
        return int(rows.address[-1]) + int(rows.size[-1])

    def _add_dict(self, block: Any, segment: int, expected_address: int) -> int:
        row = self._row(block, segment, expected_address)
        self._rows.append(row)
        self._categories.append(category_of(block.get("category")))
        return row[1] + row[2]

    def _row(self, block: Any, segment: int, expected_address: int) -> _Row:
        if type(block) is not dict:
            raise TraceError(f"A block is {kind_text(block)}, not a dict.")
        size = whole_of(block, "size")
        state = self._state(block.get("state"))
        history = block.get("history") or [{}]
        newest = history[0] if type(history) is list and type(history[0]) is dict else {}
        # What stands there for an inactive block is stale, and may be anything.
        requested = block.get("requested_size", newest.get("real_size", size)) if state else 0
        if type(requested) is not int or size < 0 or requested < 0:
            raise TraceError(_NO_SIZE)
        frames = block.get("frames", newest.get("frames"))
        stack = self.interner.stack(frames) if state else NO_STACK
        return segment, whole_of(block, "address", expected_address), size, requested, state, stack

    def _state(self, name: Any) -> State:
        known = _STATES.get(name) if type(name) is str else None
        if known is None:
            self.unknown_states.add(name_of(name))
            return State.INACTIVE
        return known


def _blocks(columns: list[Ints8]) -> Blocks:
    return Blocks(
        segment=columns[0].astype(np.int32),
        address=columns[1],
        size=columns[2],
        requested=columns[3],
        state=columns[4].astype(np.uint8),
        stack=columns[5].astype(np.int32),
    )
