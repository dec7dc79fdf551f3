"""Streams, events and graphs on pretended cards, and the order of their work.

A block that another stream uses is free only when that stream is done with it, which on a card depends on its
speed. Here work is done when the program has waited for it, or when the stream has taken as many kernels since as
it can queue. Captured code runs once and allocates from the graph's own pool; replays compute and allocate nothing,
as on a card.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch

from memviz.allocator.blocks import PendingFrees, PoolId, PoolPair
from memviz.predictor.assumptions import NOT_STATED, Assumptions, ReadingLine, UnknownValue, unknown_number
from memviz.predictor.compat import Patches, StandIn, without_functions, without_modes
from memviz.predictor.cuda.machine import CUDA_0, NamedDevices
from memviz.predictor.known_values import DEFAULT_NUMBER, KnownValues
from memviz.predictor.ledger import CardRecord, Ledger, Place
from memviz.predictor.position import NO_TASK, ProgramPosition, quoted_line_of_caller
from memviz.predictor.questions import NUMBER

_STREAMS_OF_A_PRIORITY = 32
"""torch makes so many, and then hands out the first again."""
_FIRST_HANDLE, _HANDLE_STEP = 0x5E0000000000, 0x40
_QUEUED_KERNELS = 1024
"""Kernels that a stream queues before a launch blocks: about a thousand on any card, as measured at
https://stackoverflow.com/questions/53970187. An operator launches at least one."""
_SEEN_DONE_AFTER = 3 * _QUEUED_KERNELS // 2
"""Launches after which torch's watchdog has seen that a collective is done: it looks every 100 ms. Estimated; peaks of
modded-nanogpt's logs, which hold collectives of two steps of 850 launches, need 1,100 to 1,700."""
_FREED_ON_WAIT = (
    "Memory used by another stream is freed when the program waits for that stream (synchronize, .item(), a copy to or "
    "from the host) or has launched 1,024 more kernels there. A real card frees it as soon as that stream is done, not "
    "later."
)


@dataclass(eq=False)
class Lane:
    handle: int
    stream_id: int
    card: int = 0
    priority: int = 0
    knows: dict[Lane, int] = field(default_factory=dict)
    """Work of other streams that is done before its next kernel starts."""
    capture: PoolId | None = None
    """While its work is captured into a graph: the pool that memory comes from."""


Moment = dict[Lane, int]
"""Number of frees ever queued behind each stream that are done at a moment."""


class _InThread(threading.local):
    def __init__(self) -> None:
        self.lanes: dict[int, Lane] = {}


class StreamOrder:
    def __init__(
        self, ledger: Ledger, position: ProgramPosition, assumptions: Assumptions, named: NamedDevices
    ) -> None:
        self._ledger = ledger
        self._position = position
        self._assumptions = assumptions
        self._named = named
        self.defaults = tuple(Lane(0, 0, card) for card in range(len(ledger.cards)))
        self._lanes = {(lane.card, 0): lane for lane in self.defaults}
        """Streams by card and torch's stream id."""
        self._given: dict[tuple[int, int], int] = {}
        self._of_thread = _InThread()
        self._are_several = False
        self._of_node = 0
        self._launched: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
        """Number of frees ever queued behind a stream before each of its last operators, by card and stream handle."""
        self.launches = 0
        """Operators and compiled kernels that all streams have taken."""
        self._done_launches = 0
        """Those of them that the host has waited for."""
        self.pools: list[PoolId] = []
        """Entered by `torch.cuda.use_mem_pool`, innermost last."""

    @property
    def current(self) -> Lane:
        return self.current_on(self._named.here.chosen)

    def current_on(self, card: int) -> Lane:
        return self._of_thread.lanes.get(card) or self.defaults[card]

    def set_current(self, lane: Lane) -> None:
        """Make the lane's card the current one too."""
        self._of_thread.lanes[lane.card] = lane
        self._named.here.chosen = lane.card
        if lane.stream_id:
            self._are_several = self._position.follows_streams = True
        self._position.here.stream = lane.handle

    def new(self, priority: int = 0, device: Any = None) -> Lane:
        level, card = min(max(-priority, 0), 3), self._named.card(device)
        count = self._given.get((card, level), 0)
        self._given[card, level] = count + 1
        key = card, (count % _STREAMS_OF_A_PRIORITY) << 5 | (level + 1) << 1 | 1
        if key not in self._lanes:
            # One more than there are: the first is the default stream's.
            handle = _FIRST_HANDLE + _HANDLE_STEP * (len(self._lanes) + 1 - len(self.defaults))
            self._lanes[key] = Lane(handle, key[1], card, -level)
        return self._lanes[key]

    def external(self, pointer: int, device: Any = None) -> Lane:
        card = self._named.card(device)
        return self._lanes.setdefault((card, pointer), Lane(pointer, pointer, card))

    def numbered(self, stream_id: int, device: Any = None) -> Lane:
        return self._lanes[self._named.card(device), stream_id]

    def device_of(self, lane: Lane) -> torch.device:
        return self._named.device(lane.card)

    def place(self) -> Place:
        """Return the stream and the memory pool of an allocation made now."""
        if not self._are_several and not self.pools:
            return 0, None
        pool = self.pools[-1] if self.pools else None
        if self._position.task == NO_TASK:
            lane = self.current_on(self._ledger.card)
        else:
            # Backward runs each node on the stream of its forward operator.
            self._of_node = self._position.stream_of_node(self._of_node)
            card = self._ledger.card
            lanes = (lane for lane in self._lanes.values() if lane.handle == self._of_node and lane.card == card)
            lane = next(lanes, self.defaults[card])
        return lane.handle, lane.capture or pool

    def launched(self) -> None:
        """Count an operator, which waits if the stream has too many before it."""
        self.launches += 1
        pending = self._ledger.allocator.pending
        if pending.blocks:
            stream = self.place()[0]
            before = self._launched[self._ledger.card, stream]
            before.append(pending.count_waits(stream))
            if len(before) > _QUEUED_KERNELS:
                pending.finish(stream, before.popleft())

    def is_seen_done(self, launches: int) -> bool:
        """Tell whether a collective that followed so many launches is done and torch has noticed."""
        return launches < max(self._done_launches, self.launches - _SEEN_DONE_AFTER)

    def moment(self, lane: Lane) -> Moment:
        return {**lane.knows, lane: self._pending(lane).count_waits(lane.handle)}

    def wait(self, lane: Lane, moment: Moment) -> None:
        """Let the stream's next work begin after a moment."""
        for other, count in moment.items():
            lane.knows[other] = max(count, lane.knows.get(other, 0))

    def host_waits(self, moment: Moment) -> None:
        for lane, count in moment.items():
            if self._pending(lane).blocks:
                self._assumptions.say(_FREED_ON_WAIT)
                with self._ledger.on(lane.card):
                    self._pending(lane).finish(lane.handle, count)

    def host_waits_for(self, lane: Lane) -> None:
        self._done_launches = self.launches
        self.host_waits(self.moment(lane))

    def host_waits_for_all(self, card: int) -> None:
        for lane in self._lanes.values():
            if lane.card == card:
                self.host_waits_for(lane)

    def host_asks(self, moment: Moment) -> bool:
        """Report the work as done: a program that polls until then would otherwise never end."""
        self._assumptions.say("Queried streams and events are assumed to have finished their work.")
        self.host_waits(moment)
        return True

    def _pending(self, lane: Lane) -> PendingFrees:
        return self._ledger.cards[lane.card].allocator.pending


_HOST, _CUDA = 0, 1
"""Kinds of devices, in C++."""
_RealStream: Any = torch.Stream
_RealEvent: Any = torch.Event


class FakeStream(_RealStream):  # type: ignore[misc]
    """To torch a stream of the host, which every build can make; its attributes are those of the card's."""

    order: ClassVar[StreamOrder]
    named: ClassVar[NamedDevices]
    new_event: ClassVar[Callable[[], FakeEvent]]
    lane: Lane
    device_type = _CUDA

    @classmethod
    def of(cls, lane: Lane) -> Self:
        made: Self = _RealStream.__new__(cls, stream_id=0, device_index=-1, device_type=_HOST)
        made.lane = lane
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return self.named.device(self.lane.card)

    @property
    def device_index(self) -> int:
        index: int = self.device.index
        return index

    @property
    def key(self) -> tuple[int, int, int]:
        """The stream as C++ hands it over: id, index and type of the device."""
        return self.lane.stream_id, self.device_index, self.device_type

    @property
    def stream_id(self) -> int:
        return self.lane.stream_id

    @property
    def cuda_stream(self) -> int:
        return self.lane.handle

    native_handle = cuda_stream

    @property
    def priority(self) -> int:
        return self.lane.priority

    @property
    def _as_parameter_(self) -> Any:
        return ctypes.c_void_p(self.lane.handle)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -3

    def query(self) -> bool:
        return self.order.host_asks(self.order.moment(self.lane))

    def synchronize(self) -> None:
        self.order.host_waits_for(self.lane)

    def wait_event(self, event: FakeEvent) -> None:
        event.wait(self)

    def wait_stream(self, stream: FakeStream) -> None:
        self.order.wait(self.lane, self.order.moment(stream.lane))

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = type(self).new_event() if event is None else event
        event.record(self)
        return event

    def is_capturing(self) -> bool:
        return self.lane.capture is not None

    def __enter__(self) -> Self:
        lanes = self.order.current_on(self.lane.card), self.order.current
        self.__dict__.setdefault("before", []).append(lanes)
        self.order.set_current(self.lane)
        return self

    def __exit__(self, *error: object) -> None:
        for lane in self.__dict__["before"].pop():
            self.order.set_current(lane)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeStream) and other.lane is self.lane

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"torch.Stream device_type=cuda, device_index={self.device_index}, stream_id={self.stream_id}"

    def __hash__(self) -> int:
        return hash((self.lane.handle, self.lane.card))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.lane.handle


class CudaStream(FakeStream):
    """`torch.cuda.Stream`."""

    def __new__(cls, device: Any = None, priority: int = 0, **named: Any) -> Self:
        cls.named.check(device)
        if "stream_ptr" in named:
            return cls.of(cls.order.external(named["stream_ptr"], device))
        if "stream_id" in named:
            return cls.of(cls.order.numbered(named["stream_id"], named.get("device_index", device)))
        return cls.of(cls.order.new(priority, device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class AnyStream(metaclass=StandIn):
    """In place of `torch.Stream`; streams of other devices are torch's own."""

    real = _RealStream
    kind: ClassVar[type[FakeStream]]

    def __new__(cls, device: Any = None, **named: Any) -> Any:
        order = cls.kind.order
        if named.get("device_type", _CUDA) != _CUDA:
            return _RealStream(device, **named) if device is not None else _RealStream(**named)
        if "stream_id" in named:
            return cls.kind.of(order.numbered(named["stream_id"], named.get("device_index")))
        if device is None or cls.kind.named.is_own(device, numbers=True):
            return cls.kind.of(order.new(named.get("priority", 0), device))
        return _RealStream(device, **named)


class FakeEvent(_RealEvent):  # type: ignore[misc]
    """`torch.cuda.Event`, and `torch.Event` of this device."""

    order: ClassVar[StreamOrder]
    assumptions: ClassVar[Assumptions]
    device = CUDA_0
    _moment: Moment | None
    enable_timing: bool

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made: Self = _RealEvent.__new__(cls)
        made._moment = None
        return made

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.enable_timing = enable_timing

    @property
    def cuda_event(self) -> int:
        """Made when it is first recorded."""
        return 0 if self._moment is None else id(self)

    event_id = cuda_event

    @property
    def _as_parameter_(self) -> Any:
        return ctypes.c_void_p(self.cuda_event)

    def record(self, stream: FakeStream | None = None) -> None:
        lane = self.order.current if stream is None else stream.lane
        self._moment, self.device = self.order.moment(lane), self.order.device_of(lane)

    def wait(self, stream: FakeStream | None = None) -> None:
        self.order.wait(self.order.current if stream is None else stream.lane, self._moment or {})

    def query(self) -> bool:
        return self._moment is None or self.order.host_asks(self._moment)

    def synchronize(self) -> None:
        self.order.host_waits(self._moment or {})

    def elapsed_time(self, end_event: FakeEvent) -> UnknownValue | float:
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._moment is None or end_event._moment is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        stated = self.assumptions.stated_answer(NUMBER)
        if stated is not NOT_STATED:
            return float(stated)
        self.assumptions.took(DEFAULT_NUMBER)
        self.assumptions.state("the time between two events is unknown, and prints as unknown")
        return unknown_number(ReadingLine(quoted_line_of_caller()), False, self.assumptions)

    def ipc_handle(self) -> bytes:
        raise RuntimeError("CUDA error: an event of a simulated card cannot be shared with another process")

    def __repr__(self) -> str:
        return f"<torch.cuda.Event {self.cuda_event:#x}>" if self.cuda_event else "<torch.cuda.Event uninitialized>"


class AnyEvent(metaclass=StandIn):
    """In place of `torch.Event`."""

    real = _RealEvent
    kind: ClassVar[type[FakeEvent]]
    named: ClassVar[NamedDevices]

    def __new__(cls, device: Any = None, **options: Any) -> Any:
        if device is None or cls.named.is_own(device, numbers=True):
            return cls.kind(**options)
        return _RealEvent(device, **options)


def follow_streams(
    patches: Patches, order: StreamOrder, named: NamedDevices, assumptions: Assumptions
) -> type[FakeStream]:
    """Replace the classes of streams and events, and return that of `torch.Stream` on the card."""
    in_cuda = {"device": named.own, "order": order, "__module__": "torch.cuda"}
    event: Any = type("Event", (FakeEvent,), {**in_cuda, "assumptions": assumptions})
    of_streams = {"order": order, "named": named, "new_event": event, "__module__": "torch.cuda"}
    plain: type[FakeStream] = type("Stream", (FakeStream,), {**of_streams, "__module__": "torch"})
    stream: Any = type("Stream", (CudaStream,), {**of_streams, "__module__": "torch.cuda.streams"})

    def new_external(cls: Any, stream_ptr: int, device: Any = None, **kwargs: Any) -> Any:
        return cls.of(order.external(stream_ptr, device))

    external: Any = type("ExternalStream", (stream,), {"__new__": new_external})
    for owner in (torch.cuda, torch.cuda.streams):
        patches.put_all(owner, {"Stream": stream, "Event": event, "ExternalStream": external})
    patches.put(torch, "Stream", type("Stream", (AnyStream,), {"kind": plain}))
    patches.put(torch, "Event", type("Event", (AnyEvent,), {"kind": event, "named": named}))
    patches.put(torch.cuda.graphs.graph, "default_capture_stream", None)
    return plain


_REPLAYED = (
    "CUDA graphs are captured by running their code once, in the graph's own pool; replays compute and allocate "
    "nothing, as on a card."
)


class GraphPools:
    """Private memory pools, of graphs and of the program."""

    def __init__(self, ledger: Ledger, order: StreamOrder, known: KnownValues) -> None:
        self.order = order
        self._ledger = ledger
        self._known = known
        self._numbers = {False: itertools.count(1), True: itertools.count(1)}

    def new(self, *, by_user: bool = False) -> PoolId:
        number = next(self._numbers[by_user])
        return (0, number) if by_user else (number, 0)

    def hold(self, pool: PoolId) -> None:
        pools = self._card.allocator.private_pools
        if pool in pools:
            pools[pool].use_count += 1
        else:
            pools[pool] = PoolPair(pool)

    @property
    def _card(self) -> CardRecord:
        """The current card, on which pools are made."""
        return self._ledger.cards[self.order.current.card]

    def forget_values(self, pool: PoolId) -> None:
        """Forget the known values of a graph's tensors: each replay computes them anew from its current inputs."""
        taken = [held for held in self._ledger.live.values() if held.block.pool.owner.id == pool]
        with without_functions(), without_modes():
            for allocation in taken:
                storage = None if allocation.storage is None else allocation.storage()
                if storage is not None:
                    self._known.forget(torch.empty(0, dtype=torch.uint8, device="meta").set_(storage))

    def enter(self, device: int, pool: PoolId) -> None:
        self.order.pools.append((pool[0], pool[1]))

    def leave(self, device: int, pool: PoolId) -> None:
        self.order.pools.remove((pool[0], pool[1]))

    def release(self, pool: PoolId) -> None:
        """Release the pool; its cached memory is freed when the cache is emptied."""
        for card in self._ledger.cards:
            pair = card.allocator.private_pools.get(pool)
            if pair is not None and pair.use_count:
                pair.use_count -= 1


class FakeGraph:
    """`torch.cuda.CUDAGraph`."""

    pools: ClassVar[GraphPools]
    assumptions: ClassVar[Assumptions]

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: PoolId | None = None
        self._lane: Lane | None = None

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global", **options: Any) -> None:
        lane = self.pools.order.current
        if not lane.stream_id:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        self.assumptions.say(_REPLAYED)
        chosen = self.pools.new() if pool is None else (pool[0], pool[1])
        self._pool, self._lane, lane.capture = chosen, lane, chosen
        self.pools.hold(chosen)

    def capture_end(self) -> None:
        if self._lane is None:
            raise RuntimeError("CUDA error: no capture is under way")
        self._lane.capture = None
        self._lane = None
        if self._pool is not None:
            self.pools.forget_values(self._pool)

    def replay(self) -> None:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")

    def reset(self) -> None:
        if self._pool is not None:
            self.pools.release(self._pool)
            self._pool = None

    def pool(self) -> PoolId:
        if self._pool is None:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def _do_nothing(self, *args: Any, **options: Any) -> None:
        pass

    instantiate = register_generator_state = enable_debug_mode = debug_dump = _do_nothing

    def __del__(self) -> None:
        self.reset()


class FakeAcceleratorGraph(FakeGraph):
    """`torch.accelerator.Graph`, which is entered to capture."""

    def __init__(self, keep_graph: bool = False, *, pool: PoolId | None = None, **options: Any) -> None:
        super().__init__(keep_graph)
        self.graph_pool = pool

    def capture_begin(self, pool: PoolId | None = None, capture_error_mode: str = "global", **options: Any) -> None:
        super().capture_begin(pool or self.graph_pool)

    def __enter__(self) -> Self:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.capture_begin()
        return self

    def __exit__(self, *error: object) -> None:
        self.capture_end()


class FakePool:
    """`torch.cuda.MemPool`."""

    pools: ClassVar[GraphPools]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.id = self.pools.new(by_user=True)
        self.pools.hold(self.id)

    def use_count(self) -> int:
        return 1

    def snapshot(self, *args: Any, **kwargs: Any) -> Any:
        whole: Any = torch.cuda.memory_snapshot
        return whole(self.id)

    def __del__(self) -> None:
        self.pools.release(self.id)


def follow_graphs(patches: Patches, pools: GraphPools, assumptions: Assumptions) -> None:
    attributes = {"pools": pools, "assumptions": assumptions}
    graph, pool = type("CUDAGraph", (FakeGraph,), attributes), type("MemPool", (FakePool,), {"pools": pools})
    for owner in (torch.cuda, torch.cuda.graphs):
        patches.put(owner, "CUDAGraph", graph)
    patches.replace(torch.accelerator, "Graph", type("Graph", (FakeAcceleratorGraph,), attributes))
    for owner in (torch.cuda, torch.cuda.memory):
        patches.put(owner, "MemPool", pool)
        # Until torch 2.7 one was entered too.
        patches.replace(owner, "MemPoolContext", lambda pool: None)
