"""Replay under the recorded settings: it hits every recorded address, or reports the first mismatch."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.replay_result import Agreement, RanOut
from memviz.allocator.settings import parse_settings
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import Category, Labels, Phase, Trace
from tests.allocator.driver import MiB
from tests.allocator.programs import SETTINGS, played, programs
from tests.allocator.recording import Recorder, cached, ran_out
from tests.real import each_real_file, read_once, requires_real
from tests.replays import replay
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


@pytest.mark.parametrize("history", [[], [event("free_completed", A + 4 * MiB, 2 * MiB - 100)]])
def test_what_is_live_beyond_what_is_allocated_waits_to_be_freed_and_is_named(history):
    held = block(A, 4 * MiB, 4 * MiB - 700)
    waits = block(A + 4 * MiB, 2 * MiB, 2 * MiB - 100, "active_pending_free")
    result = replay(trace_of(history, [segment(A, 20 * MiB, [held] if history else [held, waits])]))
    assert (result.peak_requested_bytes, result.peak_allocated_bytes) == (6 * MiB - 800, 4 * MiB)
    assert result.peak_requested_bytes - result.waiting_at_start_bytes == 4 * MiB - 700
    (said,) = [note.text for note in result.trace.notes if note.code == "start_waits"]
    assert said.startswith("2.00 MiB from before recording started (1 block) were already freed")


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


@given(st.sampled_from(SETTINGS), st.sampled_from([90 * MiB, 2000 * MiB]), programs)
def test_what_the_model_recorded_is_replayed_exactly(text, card, program):
    run = played(Recorder(text, card=card), program)
    if run.events or run.allocator.segments:
        agrees(run.trace())


@given(st.sampled_from(SETTINGS), programs, st.integers(0, 100))
def test_so_is_what_it_recorded_late(text, program, last):
    run = played(Recorder(text, card=4000 * MiB), program)
    if run.allocator.segments:
        agrees(run.trace(min(last, len(run.events))))


def test_a_history_that_begins_within_a_malloc_is_replayed_too():
    """`max_split_size` forbids the segment to such a request, had it been cached before."""
    run = Recorder("max_split_size_mb:40")
    run.malloc(39 * MiB + 1)
    run.malloc(50 * MiB)
    agrees(run.trace(1))
    run = Recorder("max_split_size_mb:40")
    run.malloc(40 * MiB - 512)
    assert [each["action"] for each in run.events] == ["segment_alloc", "alloc"]
    assert run.segments == [40 * MiB]
    agrees(run.trace(1))


@requires_real
@each_real_file
def test_real_histories_are_replayed_exactly(path):
    agrees(read_once(path))


@requires_real
@pytest.mark.parametrize("part", [0.1, 0.37, 0.5, 0.83])
@each_real_file
def test_real_histories_cut_short_are_too(path, part):
    trace = read_once(path)
    device = trace.devices[0]
    first = int(len(device.events) * part)
    events = type(device.events)(**{name: column[first:].copy() for name, column in device.events.columns()})
    assert replay(replace(trace, devices=(replace(device, events=events),))).exact


def test_running_out_is_reported_where_it_was_recorded():
    result = replay(ran_out().trace())
    assert result.oom == RanOut(
        event=2,
        requested_bytes=80 * MiB,
        asked_of_device_bytes=80 * MiB,
        allocated_bytes=30 * MiB,
        reserved_bytes=30 * MiB,
    )
    assert (result.exact, result.retries) == (True, 1)


def test_a_free_that_waits_keeps_its_place():
    run = Recorder()
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
def test_files_that_leave_half_of_a_free_out_are_replayed(left_out):
    run = cached(20, 30, 20)
    run.events = [each for each in run.events if each["action"] != left_out]
    result = replay(run.trace())
    assert result.exact
    assert actions(result.trace) == [each["action"] for each in run.events]


def test_what_is_known_of_a_request_is_known_of_its_segment_too():
    run = Recorder()
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
    run = Recorder()
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
    run = cached(100, 101)
    run.malloc(90 * MiB)
    run.events.append({"action": "annotate", "addr": run.events[-1]["addr"], "size": 0, "stream": 0, "pool_id": (0, 0)})
    events = replay(run.trace(), settings=parse_settings("expandable_segments:True")).trace.devices[0].events
    assert events.address[-1] == events.address[-2]


def test_without_pools_in_the_events_their_segments_tell():
    run = Recorder()
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


def labelled(run: Recorder) -> Trace:
    """A prediction: every event has a category, a module and a phase of its own."""
    trace = run.trace()
    device, count = trace.devices[0], len(run.events)
    strings = (*trace.strings, *(f"layers.{number}" for number in range(count)))
    labels = Labels(
        category=(np.arange(count) % len(Category)).astype(np.uint8),
        module=(len(trace.strings) + np.arange(count)).astype(np.int32),
        phase=(np.arange(count) % len(Phase)).astype(np.uint8),
    )
    about = replace(trace.about, origin="predicted", on="NVIDIA H200")
    return replace(trace, devices=(replace(device, event_labels=labels),), strings=strings, about=about)


def test_a_prediction_is_exact_under_its_own_settings_and_keeps_its_labels():
    run = cached(100, 101, 102)
    run.malloc(90 * MiB)
    predicted = labelled(run)
    same = replay(predicted)
    assert same.exact
    assert same.trace.devices[0].event_labels == predicted.devices[0].event_labels
    other = replay(predicted, settings=parse_settings("expandable_segments:True"))
    ours, theirs = other.trace.devices[0].event_labels, predicted.devices[0].event_labels
    assert ours is not None and theirs is not None
    for name, column in theirs.columns():
        assert getattr(ours, name).tolist() == column[other.sources].tolist()
    held = other.trace.devices[0].block_labels
    assert held is not None
    in_use = other.trace.devices[0].blocks.requested > 0
    assert [other.trace.strings[text] for text in held.module[in_use]] == [f"layers.{len(run.events) - 1}"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("graph_capture_record_stream_reuse:True", "a graph may need less than this"),
        ("expandable_segments_reserve_by_class:[small:1G]", "the replay leaves it out"),
    ],
)
def test_what_the_model_does_not_follow_is_noted(text, words):
    run = Recorder()
    run.malloc(1)
    notes = replay(run.trace(), settings=parse_settings(text)).trace.notes
    assert [(note.level, words in note.text) for note in notes if note.code == "settings_not_modelled"] == [
        ("warning", True)
    ]
    assert "settings_not_modelled" not in [note.code for note in replay(run.trace()).trace.notes]


def test_pinned_memory_is_another_matter():
    trace = trace_of([], [], host_segments=[segment(A, 2 * MiB, [block(A, 2 * MiB)])])
    with pytest.raises(UsageError, match="another allocator"):
        replay(trace)


def test_another_backend_cannot_be_replayed():
    trace = trace_of([alloc(A, 512)], [segment(A, 2 * MiB, [block(A, 512)])])
    with pytest.raises(UsageError, match="driver's own allocator"):
        replay(trace, settings=parse_settings("backend:cudaMallocAsync"))


def test_segments_that_reach_past_the_last_address_are_refused_in_words():
    with pytest.raises(UsageError, match="exceed the address space"):
        replay(trace_of([alloc(0, 512)], [segment(-5, 2 * MiB, [block(-5, MiB)])]))
