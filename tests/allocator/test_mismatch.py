"""Recordings that cannot be replayed exactly: the first event that differs, and why."""

from __future__ import annotations

from memviz.allocator.replay import replay
from memviz.allocator.replay_result import Mismatch
from memviz.trace.model import Trace
from tests.allocator.driver import MiB
from tests.allocator.recording import Recorder
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
    assert mismatch.why.startswith("The file makes a new segment here, although a block")


def test_no_segment_where_none_is_cached():
    mismatch = first_mismatch(trace_of([alloc(A, 5 * MiB)], [segment(B, 2 * MiB, [])]))
    assert mismatch.event == 0
    assert mismatch.why.startswith("No free block is large enough")


def test_a_segment_of_another_size_than_pytorch_makes():
    events = [event("segment_alloc", A, 32 * MiB), alloc(A, 5 * MiB)]
    mismatch = first_mismatch(trace_of(events, [segment(A, 32 * MiB, [block(A, 5 * MiB)])]))
    assert mismatch.why.startswith("The file makes a new segment of another size")


def test_another_block_than_the_best_fit():
    ends = [segment(A, 20 * MiB, []), segment(B, 30 * MiB, [block(B, 20 * MiB)])]
    mismatch = first_mismatch(trace_of([alloc(B, 20 * MiB)], ends))
    assert (mismatch.got, mismatch.why) == (
        f"alloc of 20971520 at 0x{A:x}",
        "The file takes another block than the best fit among those that are free by what it shows.",
    )


def test_giving_back_what_is_in_use():
    events = [event("segment_alloc", A, 20 * MiB), alloc(A, 20 * MiB), event("segment_free", A, 20 * MiB)]
    mismatch = first_mismatch(trace_of(events, [segment(B, 2 * MiB, [])]))
    assert (mismatch.event, mismatch.why) == (
        2,
        "The file gives memory back that is in use, or not there, by what the file shows before.",
    )


def test_a_final_state_that_the_events_do_not_lead_to():
    events = [event("segment_alloc", A, 20 * MiB), alloc(A, 20 * MiB)]
    mismatch = first_mismatch(trace_of(events, [segment(B, 2 * MiB, [])]))
    assert (mismatch.event, mismatch.expected, mismatch.got) == (2, "2097152 bytes reserved", "23068672 bytes reserved")


def test_after_a_mismatch_it_goes_on_and_counts():
    ends = [segment(A, 20 * MiB, []), segment(B, 30 * MiB, [block(B, 20 * MiB)])]
    result = replay(trace_of([alloc(B, 20 * MiB), free(B, 20 * MiB), alloc(B, 20 * MiB)], ends))
    assert result.agreement is not None
    assert result.agreement.address_mismatches == 2
    assert not result.exact


def test_a_request_that_nothing_can_serve_is_a_mismatch():
    mismatch = first_mismatch(trace_of([alloc(A, 1 << 60)], [segment(A, 2 * MiB, [])]))
    assert mismatch.why.startswith("PyTorch refuses a request as large as this one")


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
    assert mismatch.why.endswith("of its 2 streams it does not say which one waited.")
