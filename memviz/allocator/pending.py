"""Frees that wait: other streams may still use the memory, and a capture must not ask them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from memviz.allocator.blocks import Block, PoolPair


class PendingFrees:
    """A free that was asked for and is not complete, with what it waits for."""

    def __init__(self, captures: Sequence[object], complete_free: Callable[[Block], None]) -> None:
        """`captures` are those that are open, whenever it is looked at."""
        self._captures = captures
        self._complete_free = complete_free
        self.blocks: dict[Block, None] = {}
        """All of them, in the order asked."""
        self._events: dict[int, deque[Block]] = {}
        """Per stream, in its own order: a stream finishes its work one after the other."""
        self._finished: dict[int, int] = {}
        self._after_capture: dict[Block, None] = {}
        self._uses_in_capture: dict[Block, set[int]] = {}

    def hold(self, block: Block) -> None:
        """Whoever calls will say when it is complete; a synchronisation completes it earlier."""
        self.blocks[block] = None

    def complete(self, block: Block) -> None:
        del self.blocks[block]
        self._complete_free(block)

    def note_use(self, block: Block, stream: int) -> None:
        if self._captures:
            self._uses_in_capture.setdefault(block, set()).add(stream)

    def wait_for_streams(self, block: Block) -> None:
        self.blocks[block] = None
        if self._captures:
            self._after_capture[block] = None
        else:
            self._insert_events(block)

    def finish(self, stream: int) -> None:
        """The stream has done everything asked of it so far; the next malloc will see it."""
        self._finished[stream] = len(self._events.get(stream, ()))

    def process(self) -> None:
        """What malloc does first: completes the frees whose streams are done."""
        self._insert_deferred_events()
        for stream, done in list(self._finished.items()):
            for _ in range(done):
                self._pass_event(stream)
        self._finished.clear()

    def synchronize(self, pool: PoolPair | None = None) -> None:
        """Waits for all streams, or for what keeps one pool's blocks."""
        self._insert_deferred_events()
        done = [block for block in self.blocks if pool is None or block.pool.owner is pool]
        self._forget_events({block for block in done if block.open_events})
        for block in done:
            self.complete(block)

    def _insert_deferred_events(self) -> None:
        for block in self._after_capture:
            # Work recorded in a capture is over when the capture is: only earlier uses count.
            assert block.streams_used is not None
            block.streams_used -= self._uses_in_capture.pop(block, set())
            self._insert_events(block)
        self._after_capture.clear()

    def _insert_events(self, block: Block) -> None:
        streams, block.streams_used = block.streams_used or set(), None
        for stream in sorted(streams):
            block.open_events += 1
            self._events.setdefault(stream, deque()).append(block)
        if not streams:
            self.complete(block)

    def _pass_event(self, stream: int) -> None:
        block = self._events[stream].popleft()
        block.open_events -= 1
        if block.open_events == 0:
            self.complete(block)

    def _forget_events(self, blocks: set[Block]) -> None:
        if not blocks:
            return
        self._finished.clear()
        for block in blocks:
            block.open_events = 0
        for stream, queue in self._events.items():
            self._events[stream] = deque(each for each in queue if each not in blocks)
