"""Replay under the recorded settings: it hits every recorded address, or reports the first mismatch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memviz.allocator import replayer
from memviz.allocator.event_replay import RequestReplay, _QuickReplay
from memviz.allocator.recorded_replay import ensure_replayed
from memviz.allocator.replay_result import Agreement, Figures, Mismatch, RanOut, Replayed
from memviz.allocator.replayer import CardMemory, Replayer, divergence, why_diverged
from memviz.allocator.settings import parse_settings
from memviz.analysis.timeline import timeline
from memviz.errors import TraceError, UsageError
from memviz.trace.model import Action, Category, Labels, Phase, Trace
from tests.allocator.driver import MiB
from tests.allocator.programs import SETTINGS, played, programs
from tests.allocator.recording import Recorder, cached, ran_out
from tests.facts import missing
from tests.house.repository import ROOT
from tests.real import each_real_file, read_once, requires_real
from tests.replays import replay
from tests.traces import alloc, block, event, free, read, segment, trace_of

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


@pytest.mark.parametrize(
    ("trace", "settings", "words"),
    [
        (trace_of([], [], host_segments=[segment(A, 2 * MiB, [block(A, 2 * MiB)])]), "", "another allocator"),
        (
            trace_of([alloc(A, 512)], [segment(A, 2 * MiB, [block(A, 512)])]),
            "backend:cudaMallocAsync",
            "driver's own allocator",
        ),
        (trace_of([alloc(0, 512)], [segment(-5, 2 * MiB, [block(-5, MiB)])]), "", "exceed the address space"),
    ],
    ids=["pinned memory", "another backend", "segments past the last address"],
)
def test_what_cannot_be_replayed_is_refused_in_words(trace, settings, words):
    with pytest.raises(UsageError, match=words):
        replay(trace, settings=parse_settings(settings) if settings else None)


def limited(source: Replayer, memory: int | None) -> Replayed:
    return source.replay(None, None if memory is None else CardMemory(memory, 0))


def short() -> Recorder:
    run = Recorder(card=100 * MiB)
    run.cached(60 * MiB)
    run.malloc(80 * MiB)
    run.malloc(10 * MiB)
    return run


def test_in_what_the_process_had_the_recorded_settings_do_what_is_recorded() -> None:
    source = ensure_replayed(Replayer(short().trace()))
    memory = source.releases.memory
    assert memory is not None
    for each in (memory.least, memory.most):
        assert divergence(source, limited(source, each), each) is None
    assert divergence(source, limited(source, memory.most + 1), memory.most + 1) == 4
    assert divergence(source, limited(source, None)) == 4
    assert divergence(source, limited(source, memory.least - 2 * MiB)) == 8


def test_every_reason_names_the_event_and_the_memory() -> None:
    source = Replayer(short().trace())
    recorded = source.as_recorded()

    def why(memory: int | None) -> str:
        return why_diverged(source, recorded, limited(source, memory), memory)

    back = "it released its cache for lack of memory at event 4; "
    assert why(None) == f"{back}without a limit that is not needed"
    assert why(200 * MiB) == f"{back}in 200 MiB that is not needed"
    assert why(100 * MiB) == ""
    assert missing(why(85 * MiB), "at event 8", "in 85.0 MiB no memory is left") == []


def test_a_recording_that_ran_out_is_as_recorded_up_to_there() -> None:
    run = ran_out()
    run.malloc(10 * MiB)
    trace = run.trace()
    assert Replayer(trace).what_if(card=CardMemory(100 * MiB, 0)).divergence == ""
    assert missing(Replayer(trace).what_if().divergence, "ran out of memory at event 2", "without a limit") == []


def test_the_sample_that_runs_out_is_as_recorded_in_its_own_memory() -> None:
    trace = read_once(ROOT / "sample_traces" / "out-of-memory.pickle.gz")
    assert Replayer(trace).what_if(card=CardMemory(2400 * MiB, 0)).divergence == ""


@given(st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:24"]), st.integers(40, 200), programs)
def test_what_is_called_as_recorded_has_the_recorded_history(text: str, mebibytes: int, program: list) -> None:
    """The replayed history has the same actions and sizes in the same order."""
    run = played(Recorder(text, card=mebibytes * MiB), program)
    if not run.events:
        return
    for memory in (None, mebibytes * MiB, 2 * mebibytes * MiB):
        found = Replayer(run.trace()).what_if(card=None if memory is None else CardMemory(memory, 0))
        recorded, ours = found.recorded.trace.devices[0].events, found.base.trace.devices[0].events
        plain = recorded.action != Action.OOM
        if found.base.oom is not None:
            plain &= np.arange(len(recorded)) < found.base.oom.event
        mine = ours.action != Action.OOM
        is_alike = [*recorded.action[plain]] == [*ours.action[mine]] and [*recorded.size[plain]] == [*ours.size[mine]]
        if not found.divergence:
            assert is_alike
        elif found.base.oom is None and not (recorded.action == Action.OOM).any():
            assert not is_alike


@requires_real
@each_real_file
def test_real_recordings_are_as_recorded_without_a_limit_and_not_in_less_than_they_took(path) -> None:
    source = Replayer(read_once(path))
    assert divergence(source, limited(source, None)) is None
    if len(source.device.events) > 1:
        assert source.what_if(card=CardMemory(source.as_recorded().peak_reserved_bytes * 9 // 10, 0)).divergence


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


ACTIONS = [
    *("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap"),
    *("oom", "snapshot", "annotate", "unheard_of"),
]
addresses = st.integers(0, 8).map(lambda place: 0x7F0000000000 + place * 20 * MiB) | st.sampled_from([0, 512, 1 << 63])
sizes = st.sampled_from([0, 1, 512, MiB, 2 * MiB, 5 * MiB, 20 * MiB, 40 * MiB, 1 << 45])
pools = st.sampled_from([(0, 0), (0, 0), (0, 1)])
events = st.fixed_dictionaries(
    {"action": st.sampled_from(ACTIONS), "addr": addresses, "size": sizes, "stream": st.just(0), "pool_id": pools}
)
blocks = st.fixed_dictionaries(
    {
        "address": addresses,
        "size": st.sampled_from([512, MiB, 5 * MiB]),
        "requested_size": st.sampled_from([0, 512]),
        "state": st.sampled_from(["active_allocated", "active_pending_free", "inactive"]),
    }
)
segments = st.fixed_dictionaries(
    {
        "address": addresses,
        "total_size": st.sampled_from([4096, 2 * MiB, 20 * MiB, 40 * MiB]),
        "segment_type": st.sampled_from(["small", "large"]),
        "segment_pool_id": pools,
        "is_expandable": st.booleans(),
        "blocks": st.lists(blocks, max_size=3),
    }
)


@pytest.mark.parametrize(
    ("text", "memory"), [(None, None), ("expandable_segments:True", None), ("max_split_size_mb:20", 50 * MiB)]
)
@given(events=st.lists(events, max_size=20), segments=st.lists(segments, max_size=3))
def test_whatever_a_file_says_a_replay_comes_to_an_end(text, memory, events, segments):
    try:
        trace = read({"segments": segments, "device_traces": [events]})
    except TraceError:
        assume(False)
    result = replay(trace, settings=None if text is None else parse_settings(text), memory=memory)
    assert result.exact or result.agreement is None or result.agreement.first_mismatch is not None
    assert result.peak_reserved_bytes >= result.reserved_end_bytes >= 0


FOLDER = ROOT / "sample_traces"
SAMPLES_AND_SETTINGS = [("late-start", "expandable_segments:True"), ("training", ""), ("out-of-memory", "")]


@contextmanager
def step_by_step() -> Iterator[None]:
    """Put every event through its handler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_QuickReplay, "run", _run_handlers)
        yield


def _run_handlers(quick: _QuickReplay, chunk: Iterator[tuple[Any, ...]]) -> None:
    for at, step, address, requested, _, stream, pool in chunk:
        quick.replay.history.now = at
        quick.handlers[step](at, address, requested, stream, pool)


def all_of(replayed: Replayed) -> list[object]:
    (device,) = replayed.trace.devices
    tables = (device.events, device.segments, device.blocks)
    columns = [column.tolist() for table in tables for _, column in table.columns()]
    figures = [replayed.peak_requested_bytes, replayed.peak_allocated_bytes, replayed.peak_reserved_bytes]
    ends = [replayed.reserved_end_bytes, replayed.retries, replayed.oom, replayed.agreement]
    return [columns, np.asarray(replayed.sources).tolist(), figures, ends]


def outcomes(trace: Trace, text: str, card: CardMemory | None) -> list[object]:
    source, wanted = Replayer(trace), parse_settings(text)
    recorded = all_of(source.as_recorded())
    if wanted.per_process_memory_fraction < 1 and card is None:
        card = CardMemory(4000 * MiB, 0)
    kept, anew = (source.replay(wanted, card, afresh=afresh) for afresh in (False, True))
    return [recorded, all_of(kept), all_of(anew), source.figures(wanted, card, afresh=True)]


@given(
    st.sampled_from(SETTINGS),
    st.sampled_from(SETTINGS[:5]),
    st.sampled_from([None, 90 * MiB, 300 * MiB]),
    st.integers(0, 8),
    programs,
)
def test_random_programs_end_alike(text, recorded_with, memory, left_out, program):
    run = played(Recorder(recorded_with, card=4000 * MiB), program)
    kept = len(run.events) - left_out
    if kept > 0:
        trace, card = run.trace(kept), None if memory is None else CardMemory(memory, 0)
        quickly = outcomes(trace, text, card)
        with step_by_step():
            assert quickly == outcomes(trace, text, card)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("late-start", "max_split_size_mb:21"),
        *(pytest.param(name, text, marks=pytest.mark.slow) for name, text in SAMPLES_AND_SETTINGS),
    ],
)
def test_recordings_end_alike(name, text):
    trace = read_once(FOLDER / f"{name}.pickle.gz")
    quickly = outcomes(trace, text, CardMemory(2048 * MiB, 0))
    with step_by_step():
        assert quickly == outcomes(trace, text, CardMemory(2048 * MiB, 0))


def test_nearly_all_of_a_recording_goes_the_quick_way(monkeypatch):
    trace = read_once(FOLDER / "training.pickle.gz")
    slow = 0
    for name in ("malloc", "free"):
        step = getattr(RequestReplay, name) if name == "free" else getattr(replayer.OtherSettings, name)

        def counted(*args, step=step):
            nonlocal slow
            slow += 1
            return step(*args)

        monkeypatch.setattr(replayer.OtherSettings, name, counted)
    source = Replayer(trace)
    source.figures(parse_settings("expandable_segments:True"), afresh=True)
    assert 0 < slow < 0.2 * len(source.device.events)


README = ROOT / "memviz" / "allocator" / "README.md"


def fate(figures: Figures) -> str:
    if figures.oom is None:
        return f"fits, {figures.retries} {'retry' if figures.retries == 1 else 'retries'}"
    return f"runs out at event {figures.oom.event:,}" if figures.oom.event >= 0 else "too little before the first event"


def row(path: Path) -> str:
    """A history of one event or none has no replays."""
    source = Replayer(read_once(path))
    recorded = source.as_recorded()
    assert recorded.agreement is not None
    asked = ["–", "–", "–"]
    if len(source.device.events) > 1:
        # Nine tenths of the recorded peak, and no overhead: it is the process's own memory.
        card, expandable = (
            CardMemory(recorded.peak_reserved_bytes * 9 // 10, 0),
            parse_settings("expandable_segments:True"),
        )
        free = source.figures(expandable)
        asked = [f"{free.peak_reserved_bytes // MiB:,}"]
        asked += [fate(source.figures(None, card)), fate(source.figures(expandable, card))]
    cells = [path.stem, f"{len(source.device.events):,}", str(recorded.agreement.address_mismatches)]
    cells += ["yes" if recorded.exact else "no", f"{recorded.peak_reserved_bytes // MiB:,}", *asked]
    return f"| {' | '.join(cells)} |"


@requires_real
@each_real_file
def test_the_row_of_a_real_recording_is_what_comes_out(path: Path) -> None:
    assert row(path) in README.read_text(encoding="utf-8").splitlines()
