"""The order of work on streams: which waits for which, and what the program has waited for.

A block that another stream uses is free only when that stream is done with it. When that is, on a card, depends on
its speed. Here two things count: what the program has waited for is done, and so is what lies as far back as a stream
takes orders ahead. Nothing else is.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field

from memviz.allocator.blocks import PoolId
from memviz.allocator.pending import PendingFrees
from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.ledger import Ledger, Place
from memviz.runner.predict.program_position import NO_TASK, ProgramPosition

Moment = dict[int, int]
"""By stream, how many of the frees that waited for it are done by then."""
_STREAMS_OF_A_PRIORITY = 32
"""torch makes so many, and then gives out the first again."""
_FIRST_HANDLE, _HANDLE_STEP = 0x5E0000000000, 0x40
_AHEAD = 1024
"""Kernels that a stream takes before whoever launches one more has to wait for the first: about a thousand by the
measurement at https://stackoverflow.com/questions/53970187, whatever the card. An operator is at least one."""
_WAITED = (
    "Memory that another stream uses is given back when the program waits for that stream (synchronize, .item(), a "
    "copy to the host or from it) or has launched 1,024 kernels more there; a card gives it back as soon as the stream "
    "is done, which is no later."
)
_ASKED = "A stream or an event that is asked whether its work is done is taken to be done."


@dataclass(eq=False)
class Lane:
    """One stream of the card."""

    handle: int
    stream_id: int
    priority: int = 0
    knows: Moment = field(default_factory=dict)
    """What other streams have done before its next work begins."""
    capture: PoolId | None = None
    """While its work is captured into a graph: the pool that memory comes from."""


class StreamOrder:
    """Streams of one card."""

    def __init__(self, ledger: Ledger, position: ProgramPosition, assumptions: Assumptions) -> None:
        self._ledger = ledger
        self._position = position
        self._assumptions = assumptions
        self.default = Lane(0, 0)
        self._lanes = {0: self.default}
        """By the number that torch gives a stream."""
        self._given: dict[int, int] = {}
        self._of_thread = threading.local()
        self._are_several = False
        self._of_node = 0
        self._launched: defaultdict[int, deque[int]] = defaultdict(deque)
        """By stream, of the last operators there: how many frees had waited for it by then."""
        self.pools: list[PoolId] = []
        """Entered by `torch.cuda.use_mem_pool`, innermost last."""

    @property
    def current(self) -> Lane:
        lane: Lane = getattr(self._of_thread, "lane", self.default)
        return lane

    def set_current(self, lane: Lane) -> None:
        self._of_thread.lane = lane
        if lane is not self.default:
            self._are_several = self._position.follows_streams = True
        self._position.here.stream = lane.handle

    def new(self, priority: int = 0) -> Lane:
        level = min(max(-priority, 0), 3)
        count = self._given.get(level, 0)
        self._given[level] = count + 1
        stream_id = (count % _STREAMS_OF_A_PRIORITY) << 5 | (level + 1) << 1 | 1
        if stream_id not in self._lanes:
            self._lanes[stream_id] = Lane(_FIRST_HANDLE + _HANDLE_STEP * len(self._lanes), stream_id, -level)
        return self._lanes[stream_id]

    def external(self, pointer: int) -> Lane:
        """Made by somebody else, who says where it is."""
        return self._lanes.setdefault(pointer, Lane(pointer, pointer))

    def numbered(self, stream_id: int) -> Lane:
        return self._lanes[stream_id]

    def with_handle(self, handle: int) -> Lane:
        return next((lane for lane in self._lanes.values() if lane.handle == handle), self.default)

    def place(self) -> Place:
        """Where memory comes from that is taken now."""
        if not self._are_several and not self.pools:
            return 0, None
        pool = self.pools[-1] if self.pools else None
        if self._position.task == NO_TASK:
            lane = self.current
            return lane.handle, lane.capture or pool
        # Backward runs each node on the stream of its forward operator.
        self._of_node = self._position.stream_of_node(self._of_node)
        return self._of_node, self.with_handle(self._of_node).capture or pool

    def launched(self) -> None:
        """One operator more, which waits if the stream has too many before it."""
        pending = self._pending
        if pending.blocks:
            stream = self.place()[0]
            before = self._launched[stream]
            before.append(pending.asked(stream))
            if len(before) > _AHEAD:
                pending.finish(stream, before.popleft())

    def moment(self, lane: Lane) -> Moment:
        """When the stream has done what it was given so far."""
        return {**lane.knows, lane.handle: self._pending.asked(lane.handle)}

    def wait(self, lane: Lane, moment: Moment) -> None:
        """The stream's next work begins after it."""
        for handle, count in moment.items():
            lane.knows[handle] = max(count, lane.knows.get(handle, 0))

    def host_waits(self, moment: Moment) -> None:
        if self._pending.blocks:
            self._assumptions.say(_WAITED)
            for handle, count in moment.items():
                self._pending.finish(handle, count)

    def host_waits_for_all(self) -> None:
        for lane in self._lanes.values():
            self.host_waits(self.moment(lane))

    def host_asks(self, moment: Moment) -> bool:
        """Whether it is done: a program that asks until it is would otherwise ask for ever."""
        self._assumptions.say(_ASKED)
        self.host_waits(moment)
        return True

    @property
    def _pending(self) -> PendingFrees:
        return self._ledger.allocator.pending
