"""Begin and end of expandable segments, as far as a recording shows."""

import sys
from types import FrameType
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import AddressSpaces, StartLayout, address_spaces, ranges_by_group, start_layout
from memviz.trace.model import Action, Trace
from tests.allocator.driver import GiB, MiB
from tests.traces import alloc, block, event, segment, trace_of

A = 0x7F1200000000
LARGE = (0, (0, 0), False)


def spaces(events, ends=()) -> AddressSpaces:
    trace = trace_of(list(events), [*ends, segment(A - GiB, 2 * MiB, [])])
    device = trace.devices[0]
    return address_spaces(trace, device, start_layout(trace, device, Settings()))


def maps(address: int, size: int = 20 * MiB) -> list[dict]:
    return [event("segment_map", address, size), alloc(address, size)]


def mapped(address: int, size: int) -> dict:
    return segment(address, size, [block(address, size)], is_expandable=True)


def test_the_last_space_may_be_as_large_as_any_other():
    found = AddressSpaces({}, {A: GiB})
    assert (found.size(A, 80 * GiB), found.size(A + GiB, 80 * GiB), found.size(A, MiB)) == (GiB, GiB, MiB)


def found_one_by_one(trace: Trace, layout: StartLayout) -> AddressSpaces:
    """The same by looking at every space for every page."""
    spaces = {group: [[ranges[0].address, ranges[-1].end]] for group, ranges in ranges_by_group(layout).items()}
    at_start, events = list(spaces), trace.devices[0].events
    for row in np.flatnonzero(events.action == Action.SEGMENT_MAP).tolist():
        size, address = int(events.size[row]), int(events.address[row])
        group = int(events.stream[row]), trace.pools[events.pool[row]], size == 2 * MiB
        own = spaces.setdefault(group, [])
        inside = [space for space in own if space[0] <= address <= space[1]]
        if inside:
            inside[0][1] = max(inside[0][1], address + size)
        elif group in at_start and address < own[0][0]:
            if any(address <= begin < own[0][0] for each in spaces.values() for begin, _ in each):
                own.append([address, address + size])
            else:
                own[0][0] = address
        else:
            own.append([address, address + size])
    begins = sorted(begin for each in spaces.values() for begin, _ in each)
    sizes = {first: after - first for first, after in zip(begins, begins[1:], strict=False)}
    return AddressSpaces({group: spaces[group][0][0] for group in at_start}, sizes)


pages = st.tuples(st.integers(0, 30), st.integers(1, 9), st.integers(0, 1))


@given(st.lists(pages, min_size=1, max_size=30), st.lists(pages, max_size=4))
def test_spaces_are_those_of_looking_at_each(events, ends) -> None:
    rows = [event("segment_map", A + 2 * MiB * at, 2 * MiB * size, stream=stream) for at, size, stream in events]
    there = [
        {**mapped(A + 2 * MiB * at, 2 * MiB * size), "stream": stream, "segment_type": "small"}
        for at, size, stream in ends
    ]
    trace = trace_of(rows, there)
    layout = start_layout(trace, trace.devices[0], Settings())
    assert address_spaces(trace, trace.devices[0], layout) == found_one_by_one(trace, layout)


def test_twice_as_many_spaces_are_about_twice_the_work() -> None:
    """A recording can begin a new one with every event. What counts is what Python does, line by line."""
    assert lines_run(800) < 3 * lines_run(400)


def lines_run(count: int) -> int:
    # Each begins below the one before it, and none touches another.
    rows = [event("segment_map", A - i * GiB, 20 * MiB) for i in range(count)]
    trace = trace_of(rows, [segment(A - 2000 * GiB, 2 * MiB, [])])
    device, lines = trace.devices[0], 0
    layout = start_layout(trace, device, Settings())

    def count_lines(frame: FrameType, happened: str, _: object) -> Any:
        nonlocal lines
        lines += happened == "line"
        return count_lines

    before = sys.gettrace()
    sys.settrace(count_lines)
    try:
        address_spaces(trace, device, layout)
    finally:
        sys.settrace(before)
    return lines
