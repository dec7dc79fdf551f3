"""Recordings that cannot be replayed exactly: the first event that differs, and the reason."""

import pytest

from memviz.allocator.replay_result import Mismatch
from memviz.trace.model import Trace
from tests.allocator.driver import MiB
from tests.allocator.recording import Recorder
from tests.replays import replay
from tests.traces import alloc, block, event, free, segment, trace_of

A, B = 0x7F1200000000, 0x7F3400000000


def first_mismatch(trace: Trace) -> Mismatch:
    result = replay(trace)
    assert result.agreement is not None and result.agreement.first_mismatch is not None
    assert "replay_differs" in [note.code for note in result.trace.notes]
    return result.agreement.first_mismatch


def test_a_segment_where_a_cached_block_would_have_served():
    events = [
        event("segment_alloc", A, 20 * MiB),
        alloc(A, 20 * MiB),
        free(A, 20 * MiB),
        event("segment_alloc", B, 20 * MiB),
        alloc(B, 20 * MiB),
    ]
    ends = [segment(A, 20 * MiB, []), segment(B, 20 * MiB, [block(B, 20 * MiB)])]
    mismatch = first_mismatch(trace_of(events, ends))
    assert (mismatch.event, mismatch.expected, mismatch.got) == (
        5,
        f"segment_alloc of 20971520 at 0x{B:x}, alloc of 20971520 at 0x{B:x}",
        f"alloc of 20971520 at 0x{A:x}",
    )
    assert mismatch.why.startswith("The file allocates a new segment here although")


def test_after_a_mismatch_it_goes_on_and_counts():
    ends = [segment(A, 20 * MiB, []), segment(B, 30 * MiB, [block(B, 20 * MiB)])]
    result = replay(trace_of([alloc(B, 20 * MiB), free(B, 20 * MiB), alloc(B, 20 * MiB)], ends))
    assert result.agreement is not None
    assert result.agreement.address_mismatches == 2
    assert not result.exact


def test_where_streams_differ_and_frees_are_left_out_that_is_the_reason():
    run = Recorder()
    shared = run.malloc(20 * MiB)
    run.allocator.record_stream(shared, 7)
    run.free(shared)
    run.malloc(20 * MiB)
    run.allocator.pending.finish(7)
    run.malloc(20 * MiB, stream=7)
    run.events = [each for each in run.events if each["action"] != "free_completed"]
    mismatch = first_mismatch(run.trace())
    assert mismatch.why.endswith("which of its 2 streams waited.")


_SEGMENT = [event("segment_alloc", A, 20 * MiB), alloc(A, 20 * MiB)]
_ELSEWHERE = [segment(B, 2 * MiB, [])]
_TWO_FREE = [segment(A, 20 * MiB, []), segment(B, 30 * MiB, [block(B, 20 * MiB)])]


@pytest.mark.parametrize(
    ("events", "ends", "at", "why"),
    [
        ([alloc(A, 5 * MiB)], _ELSEWHERE, 0, "No free block is large enough"),
        ([alloc(A, 1 << 60)], _ELSEWHERE, 0, "PyTorch refuses a request this large"),
        ([alloc(B, 20 * MiB)], _TWO_FREE, 0, "The file uses another block than the best fit"),
        ([*_SEGMENT, event("segment_free", A, 20 * MiB)], _ELSEWHERE, 2, "The file releases memory that is in use"),
        (_SEGMENT, _ELSEWHERE, 2, "The final segments contradict"),
        (
            [event("segment_alloc", A, 32 * MiB), alloc(A, 5 * MiB)],
            [segment(A, 32 * MiB, [block(A, 5 * MiB)])],
            1,
            "The file allocates a new segment of another size",
        ),
    ],
)
def test_the_first_event_that_cannot_have_been_is_named_with_its_reason(events, ends, at, why):
    mismatch = first_mismatch(trace_of(events, ends))
    assert mismatch.event == at and mismatch.why.startswith(why)
