"""Replay under the recorded settings: it lands on every recorded address, or says where it first does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memviz.allocator.replay import replay
from memviz.allocator.replayer import Agreement, Mismatch, RanOut
from memviz.allocator.settings import parse_settings
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.load import load_trace
from memviz.trace.model import Action, Trace
from tests.allocator.driver import MiB
from tests.allocator.programs import SETTINGS, programs, take
from tests.allocator.recording import Recorder
from tests.real import real_files, requires_real
from tests.traces import alloc, block, event, free, segment, trace_of

A, B = 0x7F1200000000, 0x7F3400000000
EXACT = Agreement(address_mismatches=0, first_mismatch=None)


def actions(trace: Trace) -> list[str]:
    return [trace.action_name(code) for code in trace.devices[0].events.action.tolist()]


def agrees(trace: Trace) -> None:
    result = replay(trace)
    recorded, ours = trace.devices[0], result.trace.devices[0]
    assert result.agreement == EXACT
    assert result.reserved_end_bytes == int(recorded.segments.size.sum())
    assert np.array_equal(timeline(recorded).reserved, timeline(ours).reserved)
    for name in ("address", "size", "requested", "state"):
        assert np.array_equal(getattr(recorded.blocks, name), getattr(ours.blocks, name)), name


def test_a_whole_history_by_hand():
    trace = trace_of(
        [
            event("segment_alloc", A, 20 * MiB),
            alloc(A, 6 * MiB),
            alloc(A + 6 * MiB, 8 * MiB),
            free(A, 6 * MiB),
            alloc(A, 4 * MiB),
        ],
        [segment(A, 20 * MiB, [block(A, 4 * MiB), block(A + 6 * MiB, 8 * MiB)])],
    )
    result = replay(trace)
    assert (result.agreement, result.exact) == (EXACT, True)
    assert (result.peak_requested_bytes, result.peak_allocated_bytes) == (14 * MiB, 14 * MiB)
    assert (result.peak_reserved_bytes, result.reserved_end_bytes, result.unused_at_peak_bytes) == (
        20 * MiB,
        20 * MiB,
        6 * MiB,
    )
    assert result.trace.devices[0].events == trace.devices[0].events
    assert result.trace.devices[0].blocks == trace.devices[0].blocks


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SETTINGS), st.sampled_from([90 * MiB, 2000 * MiB]), programs)
def test_what_the_model_recorded_is_replayed_exactly(text, card, program):
    run, live = Recorder(text, card=card), []
    for step in program:
        run.line += 1
        take(run, live, step)
    if run.events or run.allocator.segments:
        agrees(run.trace())


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SETTINGS), programs, st.integers(0, 100))
def test_so_is_what_it_recorded_late(text, program, last):
    run, live = Recorder(text, card=4000 * MiB), []
    for step in program:
        run.line += 1
        take(run, live, step)
    kept = min(last, len(run.events))
    # A ring that was cut within a malloc shows its segment as cached; no rule says that it is not.
    if run.allocator.segments and (kept == 0 or run.events[-kept]["action"] != "alloc"):
        agrees(run.trace(kept))


@requires_real
@pytest.mark.parametrize("path", real_files(), ids=lambda path: path.stem)
def test_real_histories_are_replayed_exactly(path):
    agrees(load_trace(path))


@requires_real
@pytest.mark.parametrize("part", [0.1, 0.37, 0.5, 0.83])
@pytest.mark.parametrize("path", real_files(), ids=lambda path: path.stem)
def test_real_histories_cut_short_are_too(path, part):
    trace = load_trace(path)
    device = trace.devices[0]
    first = int(len(device.events) * part)
    events = type(device.events)(**{name: column[first:].copy() for name, column in device.events.columns()})
    assert replay(replace(trace, devices=(replace(device, events=events),))).exact


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


def recorded(card: int | None = None, text: str = "") -> Recorder:
    return Recorder(text, card=card)


def test_a_malloc_that_had_to_free_the_cache_is_a_retry():
    run = recorded(100 * MiB)
    run.cached(60 * MiB)
    run.malloc(80 * MiB)
    assert replay(run.trace()).retries == 1


def test_a_cache_emptied_by_the_program_is_none():
    run = recorded()
    run.cached(60 * MiB)
    run.line = 1
    run.allocator.empty_cache()
    run.line = 2
    run.malloc(80 * MiB)
    assert replay(run.trace()).retries == 0


def test_running_out_is_reported_where_it_was_recorded():
    run = recorded(100 * MiB)
    run.malloc(30 * MiB)
    with pytest.raises(Exception, match="Tried to allocate"):
        run.malloc(80 * MiB)
    result = replay(run.trace())
    assert result.oom == RanOut(
        event=2,
        requested_bytes=80 * MiB,
        asked_of_device_bytes=80 * MiB,
        allocated_bytes=30 * MiB,
        reserved_bytes=30 * MiB,
    )
    assert (result.exact, result.retries) == (True, 1)


def test_a_free_that_waits_keeps_its_place():
    run = recorded()
    waits = run.malloc(20 * MiB)
    run.allocator.record_stream(waits, 7)
    run.free(waits)
    run.malloc(20 * MiB)
    run.allocator.pending.finish(7)
    run.malloc(20 * MiB)
    result = replay(run.trace())
    assert result.exact
    assert actions(result.trace)[-2:] == ["free_completed", "alloc"]


@pytest.mark.parametrize("left_out", ["free_requested", "free_completed"])
def test_fact_36_files_that_leave_half_of_a_free_out_are_replayed(left_out):
    run = recorded()
    for size in (20, 30, 20):
        run.cached(size * MiB)
    run.events = [each for each in run.events if each["action"] != left_out]
    result = replay(run.trace())
    assert result.exact
    assert actions(result.trace) == [each["action"] for each in run.events]


def test_fact_11_the_last_entry_is_the_last_allocation():
    run = recorded()
    run.malloc(311 * 411 * 4)
    events = replay(run.trace()).trace.devices[0].events
    assert (int(events.action[-1]), int(events.size[-1])) == (Action.ALLOC, 511_284)


@pytest.mark.parametrize(("text", "last"), [("", "segment_free"), ("expandable_segments:True", "segment_unmap")])
def test_fact_32_after_emptying_the_cache_the_last_entry_gives_memory_back(text, last):
    run = recorded()
    run.cached(20 * MiB)
    run.line = 1
    run.allocator.empty_cache()
    assert actions(replay(run.trace(), settings=parse_settings(text)).trace)[-1] == last


def test_facts_33_to_35_what_is_known_of_a_request_is_known_of_its_segment_too():
    run = recorded()
    run.line = 41
    run.malloc(20 * MiB)
    for each in run.events:
        each |= {"user_metadata": "warm-up", "compile_context": "Torch-Compiled Region: 0/0"}
    trace = replay(run.trace(), settings=parse_settings("expandable_segments:True")).trace
    events = trace.devices[0].events
    assert actions(trace) == ["segment_map", "alloc"]
    assert [trace.strings[text] for text in events.metadata] == ["warm-up"] * 2
    assert [trace.strings[text] for text in events.context] == ["Torch-Compiled Region: 0/0"] * 2
    assert [trace.stacks.frames.line[trace.stacks.of(stack)].tolist() for stack in events.stack] == [[41]] * 2


def test_a_replay_says_what_it_is():
    run = recorded()
    run.malloc(1)
    assert replay(run.trace()).trace.about.label == "replayed with PyTorch's default settings"
    other = replay(run.trace(), settings=parse_settings("expandable_segments:True"), memory=100 * MiB).trace
    assert other.about.label == "replayed with expandable_segments:True"
    assert (other.about.facts["memory_bytes"], other.settings["expandable_segments"]) == (str(100 * MiB), True)


def test_addresses_of_the_upper_half_survive():
    high = 0xFFFF820000000000
    events = [event("segment_alloc", high, 20 * MiB), alloc(high, 20 * MiB)]
    agrees(trace_of(events, [segment(high, 20 * MiB, [block(high, 20 * MiB)])]))


def test_a_note_follows_its_allocation():
    run = recorded()
    for size in (100, 101):
        run.cached(size * MiB)
    run.malloc(90 * MiB)
    run.events.append({"action": "annotate", "addr": run.events[-1]["addr"], "size": 0, "stream": 0, "pool_id": (0, 0)})
    events = replay(run.trace(), settings=parse_settings("expandable_segments:True")).trace.devices[0].events
    assert events.address[-1] == events.address[-2]


def test_without_pools_in_the_events_their_segments_tell():
    run = recorded()
    run.malloc(30 * MiB, pool=(0, 1))
    run.malloc(20 * MiB)
    for each in run.events:
        del each["pool_id"]
    trace = replay(run.trace()).trace
    assert [trace.pools[pool] for pool in trace.devices[0].events.pool[1::2]] == [(0, 1), (0, 0)]


def test_categories_follow_their_events_and_blocks():
    events = [
        event("segment_alloc", A, 20 * MiB),
        alloc(A, 20 * MiB, category="gradient"),
    ]
    held = block(B, 20 * MiB, category="parameter")
    trace = trace_of(events, [segment(A, 20 * MiB, [block(A, 20 * MiB)]), segment(B, 20 * MiB, [held])])
    device = replay(trace, settings=parse_settings("expandable_segments:True")).trace.devices[0]
    assert device.event_labels is not None and device.block_labels is not None
    assert device.event_labels.category.tolist()[-1] == 2
    assert sorted(device.block_labels.category.tolist()) == [1, 2]


def test_pinned_memory_is_another_matter():
    trace = trace_of([], [], host_segments=[segment(A, 2 * MiB, [block(A, 2 * MiB)])])
    with pytest.raises(UsageError, match="another allocator"):
        replay(trace)


def test_another_backend_cannot_be_replayed():
    trace = trace_of([alloc(A, 512)], [segment(A, 2 * MiB, [block(A, 512)])])
    with pytest.raises(UsageError, match="driver's own allocator"):
        replay(trace, settings=parse_settings("backend:cudaMallocAsync"))
