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
        self._passed: dict[int, int] = {}
        """How many of each stream's are done."""

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

    def asked(self, stream: int) -> int:
        """How often a free has waited for the stream, ever."""
        return self._passed.get(stream, 0) + len(self._events.get(stream, ()))

    def finish(self, stream: int, event: int | None = None) -> None:
        """The stream has done everything asked of it so far, or the first `asked`; the next malloc will see it."""
        done = len(self._events.get(stream, ()))
        if event is not None:
            done = min(done, event - self._passed.get(stream, 0))
        self._finished[stream] = max(done, self._finished.get(stream, 0))

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
        for stream in self._events:
            self._passed[stream] = self.asked(stream)
        self._events.clear()
        for block in waiting:
            block.open_events = 0
            self.complete(block)

    def _pass_event(self, stream: int) -> None:
        block = self._events[stream].popleft()
        self._passed[stream] = self._passed.get(stream, 0) + 1
        block.open_events -= 1
        if block.open_events == 0:
            self.complete(block)
