"""Where segments that expand begin and end, as far as a recording shows."""

from __future__ import annotations

from memviz.allocator.address_spaces import AddressSpaces, address_spaces
from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import start_layout
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


def test_pages_side_by_side_are_one_space():
    events = [*maps(A), *maps(A + 20 * MiB), *maps(A + GiB)]
    assert spaces(events, [mapped(A, 40 * MiB), mapped(A + GiB, 20 * MiB)]) == AddressSpaces({}, {A: GiB})


def test_the_last_space_may_be_as_large_as_any_other():
    found = AddressSpaces({}, {A: GiB})
    assert (found.size(A, 80 * GiB), found.size(A + GiB, 80 * GiB), found.size(A, MiB)) == (GiB, GiB, MiB)


def test_without_any_other_it_may_be_as_large_as_is_asked():
    assert spaces(maps(A), [mapped(A, 20 * MiB)]).size(A, 80 * GiB) == 80 * GiB


def test_small_pages_are_a_space_of_their_own():
    small = segment(A, 2 * MiB, [block(A, MiB)], is_expandable=True)
    found = spaces([], [small, mapped(A + GiB, 20 * MiB)])
    assert found == AddressSpaces({(0, (0, 0), True): A, LARGE: A + GiB}, {A: GiB})


def test_a_space_that_was_there_may_begin_below_its_first_page():
    """It had given its first pages back when the recording began, and takes them again."""
    found = spaces(maps(A), [mapped(A, 20 * MiB), mapped(A + 60 * MiB, 20 * MiB)])
    assert found.at_start == {LARGE: A}
