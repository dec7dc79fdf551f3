"""The memory layout before the first event, rebuilt from the end."""

from memviz.allocator.settings import Settings
from memviz.allocator.start_layout import StartBlock, StartLayout, StartSegment, start_layout
from memviz.trace.model import Trace
from tests.allocator.driver import MiB
from tests.replays import replay
from tests.traces import alloc, block, event, free, segment, trace_of

A, B = 0x7F1200000000, 0x7F3400000000


def layout_of(trace: Trace, settings: Settings | None = None) -> StartLayout:
    return start_layout(trace, trace.devices[0], settings or Settings())


def sizes(layout: StartLayout) -> list[tuple[int, int]]:
    return [(each.address, each.size) for each in layout.blocks]


def test_a_whole_history_starts_with_nothing():
    trace = trace_of([event("segment_alloc", A, 2 * MiB), alloc(A, 512)], [segment(A, 2 * MiB, [block(A, 512)])])
    assert layout_of(trace) == StartLayout(segments=(), unplaced=0)


def test_what_is_never_mentioned_was_there_all_along():
    trace = trace_of([], [segment(A, 20 * MiB, [block(A, 5 * MiB, 5 * MiB - 7)])])
    expected = StartBlock(A, 5 * MiB, 5 * MiB - 7, is_waiting=False, stack=-1, freed_at=0, size_is_exact=True)
    assert layout_of(trace).segments == (StartSegment(A, 20 * MiB, 0, (0, 0), False, False, (expected,)),)


def test_what_is_freed_first_was_there_before():
    trace = trace_of(free(A, 700), [segment(A, 2 * MiB, [])])
    expected = StartBlock(A, 1024, 700, is_waiting=False, stack=-1, freed_at=1, size_is_exact=False)
    assert layout_of(trace).blocks == (expected,)


def test_a_free_that_only_completes_was_waiting():
    trace = trace_of([event("free_completed", A, 512), free(A + 512, 512)], [segment(A, 2 * MiB, [])])
    assert [each.is_waiting for each in layout_of(trace).blocks] == [True, False]


def test_pages_mapped_since_are_taken_away_and_those_unmapped_put_back():
    trace = trace_of(
        [event("segment_unmap", A, 20 * MiB), event("segment_map", A + 40 * MiB, 20 * MiB), alloc(A + 40 * MiB, 512)],
        [segment(A + 20 * MiB, 40 * MiB, [block(A + 40 * MiB, 512)], is_expandable=True)],
    )
    assert layout_of(trace).segments == (StartSegment(A, 40 * MiB, 0, (0, 0), False, True),)


def test_a_gap_of_at_most_a_mebibyte_belonged_to_the_block_before_it():
    trace = trace_of(free(A, 19 * MiB), [segment(A, 20 * MiB, [])])
    assert sizes(layout_of(trace)) == [(A, 20 * MiB)]


def test_an_allocation_that_lands_in_a_larger_gap_shows_where_it_began():
    rest = 983_040
    events = [alloc(A + 5 * MiB + rest, 2 * MiB), free(A, 5 * MiB)]
    trace = trace_of(events, [segment(A, 20 * MiB, [block(A + 5 * MiB + rest, 2 * MiB)])])
    assert sizes(layout_of(trace)) == [(A, 5 * MiB + rest)]


def test_only_while_the_block_lived():
    events = [free(A, 5 * MiB), alloc(A + 5 * MiB + 983_040, 2 * MiB)]
    trace = trace_of(events, [segment(A, 20 * MiB, [block(A + 5 * MiB + 983_040, 2 * MiB)])])
    assert sizes(layout_of(trace)) == [(A, 5 * MiB)]


def test_where_an_allocation_did_not_go_tells_that_less_was_free():
    """7 MiB would fit best into the gap of 7.5 MiB, had it been free; it went to 20 MiB."""
    late = block(A + 25 * MiB // 2, 15 * MiB // 2)
    ends = [segment(A, 20 * MiB, [late]), segment(B, 20 * MiB, [block(B, 7 * MiB)])]
    result = replay(trace_of([alloc(B, 7 * MiB), free(A, 5 * MiB)], ends))
    assert result.exact


def test_an_oversize_block_is_a_whole_segment():
    trace = trace_of(free(A, 130 * MiB), [segment(A, 140 * MiB, [])])
    assert sizes(layout_of(trace, Settings(max_split_size=128 * MiB))) == [(A, 140 * MiB)]


def test_blocks_within_one_another_too():
    trace = trace_of([free(A, 4 * MiB), free(A + MiB, 4 * MiB)], [segment(A, 20 * MiB, [])])
    assert (layout_of(trace).unplaced, sizes(layout_of(trace))) == (1, [(A, 4 * MiB)])


def test_a_block_that_reaches_past_the_last_address_lies_in_no_segment():
    """Searched for, such an address was more than numpy takes."""
    high = 2**64 - 512
    trace = trace_of([*free(high, MiB), alloc(high, MiB), event("segment_free", high, 20 * MiB)])
    assert (layout_of(trace).blocks, layout_of(trace).unplaced) == ((), 1)
