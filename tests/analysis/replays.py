"""A slow, plain replay of alloc and free events, to hold the fast one to; and traces for hypothesis."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import strategies as st

from memviz.trace.model import Action, DeviceTrace, State, Trace
from tests.traces import alloc, block, event, segment, trace_of

BEFORE = -1
PAGE = 0x1000
PLACES = 5


@dataclass
class Life:
    start: int
    address: int
    size: int
    requested: int
    end: int


@dataclass
class Replay:
    """A reference replay, event by event, with a dict of live allocations."""

    device: DeviceTrace
    live: dict[int, Life] = field(default_factory=dict)
    done: list[Life] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    straying: set[int] = field(default_factory=set)
    stray_frees: int = 0
    implied_frees: int = 0
    lost_blocks: int = 0
    lost_bytes: int = 0

    @property
    def lives(self) -> list[Life]:
        return [*self.done, *self.live.values()]

    def run(self) -> Replay:
        events = self.device.events
        self.never = len(events)
        self.asks = bool((events.action == Action.FREE_REQUESTED).any()) or len(events) == 1
        for i, (action, address, size) in enumerate(zip(events.action, events.address, events.size, strict=True)):
            if action == Action.ALLOC:
                self.alloc(i, int(address), int(size))
            elif action <= Action.FREE_COMPLETED:
                self.free(i, int(address), int(size), action == Action.FREE_COMPLETED)
            else:
                continue
            self.seen.add(int(address))
        self.settle()
        return self

    def alloc(self, i: int, address: int, size: int) -> None:
        old = self.live.pop(address, None)
        if old is not None:
            old.end = min(old.requested, i)
            old.requested = old.end if old.requested > old.end else old.requested
            self.implied_frees += 1
            self.done.append(old)
        self.straying.discard(address)
        self.live[address] = Life(i, address, size, self.never, self.never)

    def free(self, i: int, address: int, size: int, completed: bool) -> None:
        if address not in self.live and address in self.seen:
            self.stray_frees += address not in self.straying
            (self.straying.discard if completed else self.straying.add)(address)
            return
        life = self.live.setdefault(address, Life(BEFORE, address, size, self.never, self.never))
        if not completed:
            life.requested = min(life.requested, i)
            return
        life.end = i
        if life.requested == self.never:
            life.requested = BEFORE if life.start == BEFORE and self.asks else i
        self.done.append(self.live.pop(address))

    def settle(self) -> None:
        blocks = self.device.blocks
        active = {int(blocks.address[i]): i for i in range(len(blocks)) if blocks.state[i] != State.INACTIVE}
        for address, life in self.live.items():
            if active.pop(address, None) is not None or not len(blocks):
                continue
            if life.requested < self.never:
                life.end = life.requested
            else:
                self.lost_blocks += 1
                self.lost_bytes += life.size
        for address, i in active.items():
            asked = BEFORE if blocks.state[i] != State.ACTIVE_ALLOCATED else self.never
            self.done.append(Life(BEFORE, address, int(blocks.requested[i]), asked, self.never))


def addresses() -> st.SearchStrategy[int]:
    return st.integers(1, PLACES).map(lambda place: place * PAGE)


def any_events() -> st.SearchStrategy[list[dict[str, Any]]]:
    """Any order at all: most of these contradict themselves."""
    action = st.sampled_from(["alloc", "free_requested", "free_completed", "snapshot"])
    return st.lists(st.builds(event, action, addresses(), st.integers(1, PAGE)), max_size=25)


def any_segments() -> st.SearchStrategy[list[dict[str, Any]]]:
    state = st.sampled_from(["active_allocated", "active_pending_free", "inactive"])
    size = st.integers(1, PAGE)
    blocks = st.dictionaries(addresses(), st.tuples(size, state), max_size=PLACES)
    made = blocks.map(lambda each: [block(at, PAGE, size, state) for at, (size, state) in each.items()])
    return made.map(lambda each: [segment(PAGE, PLACES * PAGE, each)] if each else [])


def sound_traces(most: int = 40) -> st.SearchStrategy[Trace]:
    """Generate traces of a real allocator, by seed: hypothesis takes ten times as long to draw each step."""
    return st.integers(0, 2**32).map(lambda seed: sound_trace(Random(seed), most))


def sound_trace(random: Random, most: int) -> Trace:
    """Make a trace, possibly with a late start and with frees that complete late or never."""
    live: dict[int, tuple[int, bool]] = {}
    events: list[dict[str, Any]] = []
    for place in random.sample(range(1, PLACES + 1), random.randint(0, 3)):
        live[place * PAGE] = random.randint(1, PAGE), False
    for _ in range(random.randint(0, most)):
        address = random.randint(1, PLACES) * PAGE
        if address not in live:
            size = random.randint(1, PAGE)
            live[address] = size, False
            events.append(alloc(address, size, frames=[], time_us=len(events) + 1))
            continue
        size, asked = live[address]
        events.append(event("free_completed" if asked else "free_requested", address, size, time_us=len(events) + 1))
        if asked:
            del live[address]
        else:
            live[address] = size, True
    states = {True: "active_pending_free", False: "active_allocated"}
    blocks = [block(at, PAGE, size, states[asked]) for at, (size, asked) in live.items()]
    return trace_of(events, [segment(PAGE, PLACES * PAGE, blocks)])
