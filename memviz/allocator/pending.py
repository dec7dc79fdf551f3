"""Frees that wait, because other streams may still use the memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from memviz.allocator.blocks import Block


class PendingFrees:
    """A free that was asked for and is not complete, with what it waits for."""

    def __init__(self, complete_free: Callable[[Block], None]) -> None:
        self._complete_free = complete_free
        self.blocks: dict[Block, None] = {}
        """All of them, in the order asked."""
        self._events: dict[int, deque[Block]] = {}
        """Per stream, in its own order: a stream finishes its work one after the other."""
        self._finished: dict[int, int] = {}

    def hold(self, block: Block) -> None:
        """Whoever calls will say when it is complete; a synchronisation completes it earlier."""
        self.blocks[block] = None

    def complete(self, block: Block) -> None:
        del self.blocks[block]
        self._complete_free(block)

    def wait_for_streams(self, block: Block) -> None:
        self.blocks[block] = None
        streams, block.streams_used = block.streams_used or set(), None
        for stream in sorted(streams):
            block.open_events += 1
            self._events.setdefault(stream, deque()).append(block)

    def finish(self, stream: int) -> None:
        """The stream has done everything asked of it so far; the next malloc will see it."""
        self._finished[stream] = len(self._events.get(stream, ()))

    def process(self) -> None:
        """What malloc does first: completes the frees whose streams are done."""
        for stream, done in list(self._finished.items()):
            for _ in range(done):
                self._pass_event(stream)
        self._finished.clear()

    def synchronize(self) -> None:
        """Waits for all streams."""
        waiting = list(self.blocks)
        self._finished.clear()
        self._events.clear()
        for block in waiting:
            block.open_events = 0
            self.complete(block)

    def _pass_event(self, stream: int) -> None:
        block = self._events[stream].popleft()
        block.open_events -= 1
        if block.open_events == 0:
            self.complete(block)
