"""What the cache has served and taken back since the history was last written: three numbers an event.

What else an entry of the history says stands in the recording, at the request that the block was handed out for. So
entries are made many at a time, from columns.
"""

from __future__ import annotations

import numpy as np

from memviz.allocator.blocks import Block
from memviz.allocator.history import ModelHistory
from memviz.allocator.replayer import Source
from memviz.trace.model import Action, Ints8

_FEW = 16
"""Below it, entry by entry is quicker than setting up the columns."""


class Served:
    __slots__ = ("_events", "_history", "_requests", "_source", "addresses", "events", "requests")

    def __init__(self, source: Source, history: ModelHistory) -> None:
        self._source = source
        self._history = history
        self.events: list[int] = []
        """The event; of a free less than zero, as Python's `~` makes it."""
        self.requests: list[int] = []
        """The event that the block was handed out for: the same one, but for a free."""
        self.addresses: list[int] = []

    def add_free(self, event: int, block: Block) -> None:
        if block.cause < 0:
            # It was there before the first event, so no request of the recording says what it is.
            self.write()
            self._history.add_free(event, block)
            return
        self.events.append(~event)
        self.requests.append(block.cause)
        self.addresses.append(block.address)

    def write(self) -> None:
        """Into the history, whose entries stand in order: before anybody else writes there or reads it."""
        if len(self.events) >= _FEW:
            self._write_columns()
        elif self.events:
            self._write_each()
        self.events.clear()
        self.requests.clear()
        self.addresses.clear()

    def _write_each(self) -> None:
        add, history, recorded = self._history.add, self._history, self._source.device.events
        pools, codes = self._source.trace.pools, self._source.pools
        for event, request, address in zip(self.events, self.requests, self.addresses, strict=True):
            size, stream, pool = int(recorded.size[request]), int(recorded.stream[request]), pools[codes[request]]
            if event >= 0:
                history.now = event
                add(Action.ALLOC, address, size, stream, pool)
            else:
                history.now = ~event
                add(Action.FREE_REQUESTED, address, size, stream, pool)
                history.now = ~event + 1
                add(Action.FREE_COMPLETED, address, size, stream, pool)

    def _write_columns(self) -> None:
        recorded, pools = self._source.device.events, self._source.trace.pools
        event: Ints8 = np.array(self.events, dtype=np.int64)
        is_free = event < 0
        row = np.repeat(np.arange(len(event)), is_free + 1)
        is_second = np.zeros(len(row), dtype=np.bool_)
        is_second[1:] = row[1:] == row[:-1]
        action = np.where(is_free[row], np.where(is_second, Action.FREE_COMPLETED, Action.FREE_REQUESTED), Action.ALLOC)
        request = np.array(self.requests, dtype=np.int64)[row]
        self._history.add_columns(
            action=action.astype(np.uint8),
            address=np.array(self.addresses, dtype=np.uint64)[row],
            size=recorded.size[request].astype(np.int64),
            stream=recorded.stream[request].astype(np.uint64),
            pool=[pools[code] for code in self._source.pools[request].tolist()],
            cause=np.where(is_free, ~event, event)[row] + is_second,
        )
