"""The same requests under other settings, or on another card."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator import context
from memviz.allocator.blocks import Block
from memviz.allocator.caching import Tally
from memviz.allocator.context import A100, OVERHEAD_BYTES, UNKNOWN, CudaContext, context_on, context_sentence
from memviz.allocator.replay_result import Figures, RanOut, reserved_after_events
from memviz.allocator.replayer import CardMemory, Doubt, Replayer
from memviz.allocator.settings import parse_settings
from memviz.analysis.lifetimes import matched
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import Trace
from tests.allocator.driver import Driver, GiB, MiB
from tests.allocator.programs import SETTINGS, played, programs, take
from tests.allocator.recording import Recorder, cached, ran_out
from tests.allocator.test_replay import actions
from tests.benchmarks.contexts import seen
from tests.facts import missing
from tests.replays import replay
from tests.traces import alloc, block, free, segment, trace_of

EXPANDABLE = parse_settings("expandable_segments:True")


def test_reserved_bytes_follow_the_recorded_events(growing):
    recorded = reserved_after_events(replay(growing.trace()), len(growing.events))
    assert recorded.tolist() == timeline(growing.trace().devices[0]).reserved.tolist()
    ours = reserved_after_events(replay(growing.trace(), settings=EXPANDABLE), len(growing.events))
    assert (ours[0], ours[2], ours[-1], len(ours)) == (0, 100 * MiB, 120 * MiB, len(growing.events) + 1)
    stopped = reserved_after_events(replay(growing.trace(), memory=101 * MiB), len(growing.events))
    assert (stopped.tolist()[-2:], len(stopped)) == ([100 * MiB, 0], 7)


@given(st.sampled_from(SETTINGS), st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:24"]), programs)
def test_a_replay_is_a_sound_trace_with_the_same_live_bytes(recorded_with, text, program):
    run = played(Recorder(recorded_with, card=4000 * MiB), program)
    if run.events:
        ours = replay(run.trace(), settings=parse_settings(text)).trace.devices[0]
        assert not matched(ours).faults
        assert timeline(ours).peak_bytes == timeline(run.trace().devices[0]).peak_bytes


@pytest.fixture
def growing() -> Recorder:
    """Sizes that grow step by step, each freed before the next: three segments, or one that expands."""
    return cached(100, 101, 102, 103)


def test_expanding_would_have_reserved_less(growing):
    result = replay(growing.trace(), settings=EXPANDABLE)
    assert (result.peak_reserved_bytes, result.peak_requested_bytes) == (120 * MiB, 103 * MiB)
    assert (result.agreement, result.exact, result.oom, result.retries) == (None, False, None, 0)
    assert actions(result.trace)[:4] == ["segment_map", "alloc", "free_requested", "free_completed"]
    assert result.sources.tolist()[:4] == [1, 1, 2, 3]


def test_a_smaller_card_has_to_retry(growing):
    result = replay(growing.trace(), memory=210 * MiB)
    assert (result.peak_reserved_bytes, result.retries, result.oom) == (202 * MiB, 1, None)


def test_or_runs_out(growing):
    growing.malloc(50 * MiB)
    growing.malloc(60 * MiB)
    result = replay(growing.trace(), memory=150 * MiB)
    assert result.oom == RanOut(
        event=len(growing.events) - 1,
        requested_bytes=60 * MiB,
        asked_of_device_bytes=60 * MiB,
        allocated_bytes=50 * MiB,
        reserved_bytes=104 * MiB,
    )
    assert actions(result.trace)[-1] == "oom"


def test_the_programs_own_empty_cache_is_kept(growing):
    growing.line = 1
    growing.allocator.empty_cache()
    result = replay(growing.trace(), settings=EXPANDABLE)
    assert (result.reserved_end_bytes, actions(result.trace)[-1]) == (0, "segment_unmap")


def test_what_the_recorded_card_forced_is_not():
    run = Recorder(card=100 * MiB)
    run.cached(60 * MiB)
    run.malloc(80 * MiB)
    result = replay(run.trace(), memory=200 * MiB)
    assert (result.peak_reserved_bytes, result.retries) == (140 * MiB, 0)
    assert "segment_free" not in actions(result.trace)


def test_a_request_that_failed_is_asked_again():
    run = ran_out()
    run.malloc(10 * MiB)
    fits = replay(run.trace(), memory=200 * MiB)
    assert (fits.oom, fits.peak_requested_bytes) == (None, 110 * MiB)
    assert actions(fits.trace)[2:6] == ["segment_alloc", "alloc", "free_requested", "free_completed"]
    fails = replay(run.trace(), memory=105 * MiB)
    assert fails.oom is not None
    assert fails.oom.event == 2


A = 0x7F1200000000


def late_start():
    ends = [segment(A, 20 * MiB, [block(A, 5 * MiB)]), segment(A + GiB, 60 * MiB, [])]
    return trace_of([alloc(A + GiB, 30 * MiB), free(A + GiB, 30 * MiB)], ends)


def test_a_late_start_keeps_its_layout_where_the_settings_are_the_same():
    result = replay(late_start(), memory=200 * MiB)
    assert (result.peak_reserved_bytes, result.peak_allocated_bytes) == (80 * MiB, 35 * MiB)
    assert missing(result.trace.notes[0].text, "rebuilt", "final") == []


def test_under_other_settings_what_was_live_is_placed_anew():
    result = replay(late_start(), settings=EXPANDABLE)
    assert (result.peak_reserved_bytes, result.peak_allocated_bytes) == (40 * MiB, 35 * MiB)
    assert missing(result.trace.notes[0].text, "before recording started (1 block)", "less fragmentation") == []


def test_on_a_small_card_the_cache_of_before_would_have_been_given_back():
    result = replay(late_start(), memory=60 * MiB)
    assert (result.peak_reserved_bytes, result.retries) == (50 * MiB, 0)


def test_where_what_was_live_lay_too_far_apart_it_is_placed_anew():
    ends = [segment(A + number * GiB, 20 * MiB, [block(A + number * GiB, 5 * MiB)]) for number in range(3)]
    result = replay(trace_of([], ends), memory=30 * MiB)
    assert (result.oom, result.peak_reserved_bytes) == (None, 20 * MiB)
    assert "was placed into empty memory" in result.trace.notes[0].text


def test_what_was_live_before_may_not_fit_at_all():
    result = replay(late_start(), memory=10 * MiB)
    assert result.oom == RanOut(
        event=-1, requested_bytes=5 * MiB, asked_of_device_bytes=20 * MiB, allocated_bytes=0, reserved_bytes=0
    )
    assert len(result.trace.devices[0].events) == 0


def test_the_overhead_is_taken_from_the_card_and_leaves_something(growing):
    result = Replayer(growing.trace()).what_if(settings=EXPANDABLE, card=CardMemory(2 * GiB))
    assert (result.replayed.memory, result.recorded.exact) == (2 * GiB - OVERHEAD_BYTES, True)
    assert Replayer(growing.trace()).what_if().replayed.exact
    with pytest.raises(UsageError, match="no memory left"):
        Replayer(growing.trace()).what_if(card=CardMemory(100 * MiB))


def test_the_smallest_card_is_the_first_on_which_it_ends():
    run = Recorder()
    run.malloc(9 * GiB)
    source = Replayer(run.trace())
    assert source.smallest_card() == CardMemory(10 * GiB)
    assert source.smallest_card(overhead_bytes=2 * GiB) == CardMemory(11 * GiB, 2 * GiB)


@given(st.sampled_from(SETTINGS), st.sampled_from([None, 90 * MiB, 300 * MiB]), programs)
def test_figures_alone_are_those_of_the_whole_replay(text, memory, program):
    run = played(Recorder(card=4000 * MiB), program)
    if run.events:
        source, wanted = Replayer(run.trace()), replace(parse_settings(text), per_process_memory_fraction=1.0)
        card = None if memory is None else CardMemory(memory, 0)
        whole = source.replay(wanted, card)
        assert source.figures(wanted, card) == Figures(
            **{field.name: getattr(whole, field.name) for field in fields(Figures)}
        )


@given(st.sampled_from(SETTINGS), programs)
def test_a_tally_counts_bytes_as_the_whole_statistics_do(text, program):
    runs = [Driver(text, card=4000 * MiB) for _ in range(2)]
    runs[1].allocator.statistics = Tally()
    lives: list[list[Block]] = [[], []]
    for step in program:
        for run, live in zip(runs, lives, strict=True):
            take(run, live, step)
        full, tally = (run.allocator.statistics for run in runs)
        for name in ("allocated", "reserved", "peak_requested", "peak_allocated", "peak_reserved"):
            assert getattr(tally, name) == getattr(full, name), name
        assert tally.num_alloc_retries == full.num_alloc_retries


def test_the_answer_says_on_which_card_it_fits_and_how_much_of_the_peak_is_unused():
    run = cached(5 * 1024, 6 * 1024)
    found = Replayer(run.trace()).what_if()
    assert (found.smallest_card, found.replayed.unused_at_peak_bytes) == (CardMemory(8 * GiB), 5 * GiB)
    assert found.replayed.fragmentation == pytest.approx(5 / 11)
    assert Replayer(run.trace()).what_if(settings=EXPANDABLE, overhead_bytes=GiB).smallest_card == CardMemory(
        8 * GiB, GiB
    )
    # What is asked of a card does not change which one is large enough.
    assert Replayer(run.trace()).what_if(card=CardMemory(2 * GiB)).smallest_card == CardMemory(8 * GiB)


CONTEXT = CudaContext("a card", 100 * MiB, 300 * MiB)


def held(*mebibytes: int) -> Trace:
    """All at once."""
    run = Recorder()
    for size in mebibytes:
        run.malloc(size * MiB)
    return run.trace()


def word(trace: Trace, card: int, known_in: int | None, *, more: float = 0.0, less: float = 0.0) -> str:
    source = Replayer(trace, trace.devices[0])
    memory = None if known_in is None else CardMemory(known_in * MiB, 0)
    known = source.figures(None, memory)
    return source.fits(None, card * MiB, Doubt(CONTEXT, more, less), known=known)


@pytest.mark.parametrize("known_in", [None, 500, 700, 800, 900, 1000])
@pytest.mark.parametrize(
    ("card", "expected"), [(1400, "yes"), (1300, "yes"), (1298, "close"), (1100, "close"), (1098, "no")]
)
def test_the_context_decides_from_its_least_to_its_most(card: int, expected: str, known_in: int | None) -> None:
    """Whatever is known of the same run in other memory: 1,000 MiB are held, beside 100 to 300."""
    assert word(held(600, 400), card, known_in) == expected


def test_the_prediction_may_be_wrong_either_way_and_a_context_that_fills_the_card_leaves_nothing() -> None:
    assert word(held(1000), 1350, 1050) == "yes"
    assert word(held(1000), 1350, 1050, more=0.06) == "close"
    assert word(held(1000), 1090, 790) == "no"
    assert word(held(1000), 1090, 790, less=0.02) == "close"
    assert word(held(1), 100, None) == "no"


def test_what_gives_back_its_cache_is_replayed() -> None:
    """500 MiB are enough for it, though it would reserve 900 without a limit."""
    trace = cached(400, 500).trace()
    assert word(trace, 800, None) == word(trace, 800, 500) == word(trace, 800, 520) == "yes"
    assert word(trace, 798, None) == word(trace, 798, 498) == "close"
    assert word(trace, 598, None) == word(trace, 598, 298) == "no"


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("Tesla T4", context.TURING),
        ("Tesla V100-SXM2-32GB", context.VOLTA),
        ("NVIDIA A10G", context.AMPERE),
        ("NVIDIA RTX A6000", context.AMPERE),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", context.AMPERE),
        ("NVIDIA L40S", context.ADA),
        ("NVIDIA RTX 6000 Ada Generation", context.ADA),
        ("NVIDIA H100 80GB HBM3", context.HOPPER),
        ("NVIDIA GH200 480GB", context.HOPPER),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", context.BLACKWELL),
        ("AMD Instinct MI300X", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_a_card_is_of_a_generation_by_its_name(card: str, expected: context.CudaContext) -> None:
    assert context_on(card) is expected


def test_where_nothing_is_known_the_interval_takes_in_all_that_was_seen() -> None:
    assert (UNKNOWN.least_bytes, UNKNOWN.most_bytes) == (64 * MiB, A100.most_bytes)
    assert "not published" in context_sentence("AMD Instinct MI300X")


def test_the_intervals_are_those_of_the_public_readings() -> None:
    """nvidia-smi, which has readings for two generations, is more precise than PyTorch's messages."""
    shipped = {name: getattr(context, name.upper()) for name in (each.generation for each in seen())}
    assert len(shipped) == len(context.KNOWN)
    for each in seen():
        known = shipped[each.generation]
        assert known.least_bytes == each.least_mib * MiB
        by_driver = {"A100": 1792, "Volta": 1344}.get(each.generation, each.most_mib)
        assert known.most_bytes == by_driver * MiB >= each.most_mib * MiB
