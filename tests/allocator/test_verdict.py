"""The answer in two sentences."""

from __future__ import annotations

import pytest

from memviz.allocator.replay import source_of
from memviz.allocator.search import search
from memviz.allocator.settings import parse_settings
from memviz.allocator.verdict import exactness, verdict
from memviz.allocator.what_if import Card, what_if
from tests.allocator.driver import GiB, MiB
from tests.allocator.recording import Recorder
from tests.traces import alloc, block, event, free, segment, trace_of


@pytest.fixture
def growing() -> Recorder:
    """Sizes that grow; then three are held. Segments that expand need 100 MiB, fixed ones 156."""
    run = Recorder()
    for size in (30, 31, 32, 33):
        run.cached(size * MiB)
    for size in (4, 33, 60):
        run.malloc(size * MiB)
    return run


def words(run: Recorder, mebibytes: int | None = None, text: str | None = None, *, searched: bool = False) -> str:
    trace, card = run.trace(), None if mebibytes is None else Card(mebibytes * MiB, 0)
    settings = None if text is None else parse_settings(text)
    found = search(source_of(trace), card, also=settings) if searched else None
    return " ".join(verdict(what_if(trace, settings=settings, card=card), found)).strip()


EXPANDABLE = "expandable_segments:True"


@pytest.mark.parametrize(
    ("mebibytes", "text", "answer"),
    [
        (
            120,
            EXPANDABLE,
            "In 120 MiB this run stops at event 18. "
            "Expandable segments would carry it through, with 20.0 MiB to spare.",
        ),
        (
            120,
            "roundup_power2_divisions:4",
            "In 120 MiB this run stops at event 18. With roundup_power2_divisions:4 it stops at event 18.",
        ),
        (
            120,
            None,
            "In 120 MiB this run stops at event 18. "
            "60.0 MiB are asked for then; 26.0 MiB are cached, in no piece that it could take.",
        ),
        (90, EXPANDABLE, "It does not fit in 90.0 MiB under any setting: 97.0 MiB are live at once."),
        (
            300,
            EXPANDABLE,
            "In 300 MiB this run fits, with 144 MiB to spare. "
            "Expandable segments would reserve 100 MiB at the peak, 56.0 MiB less.",
        ),
        (
            None,
            EXPANDABLE,
            "Expandable segments would reserve 100 MiB at the peak, 56.0 MiB less. "
            "97.0 MiB are live at once, and no setting goes below that.",
        ),
        (
            None,
            None,
            "This run reserves 156 MiB at its peak, 59.0 MiB (38 %) more than it ever holds. "
            "97.0 MiB are live at once, and no setting goes below that.",
        ),
    ],
)
def test_where_it_ends_and_what_helps(growing, mebibytes, text, answer):
    assert words(growing, mebibytes, text) == answer


def test_a_search_says_what_helps_without_being_told(growing):
    assert words(growing, 120, searched=True).endswith(
        "Expandable segments would carry it through, with 20.0 MiB to spare."
    )
    assert words(growing, 300, searched=True).endswith("Expandable segments would reserve 56.0 MiB less.")


def test_where_nothing_helps_that_is_said():
    run = Recorder()
    held = [run.malloc(30 * MiB) for _ in range(4)]
    assert words(run, 300, searched=True).endswith("No setting tried reserves noticeably less.")
    assert len(held) == 4


def test_a_recording_that_failed_itself():
    run = Recorder(card=100 * MiB)
    run.cached(60 * MiB)
    run.malloc(50 * MiB)
    with pytest.raises(Exception, match="Tried to allocate"):
        run.malloc(60 * MiB)
    assert words(run, None, EXPANDABLE).startswith("This run ran out of memory at event 5.")
    assert words(run, 100).startswith("In 100 MiB this run stops at event 5.")
    assert words(run, 100, searched=True).startswith("It does not fit in 100 MiB under any setting: 110 MiB are live")


def test_without_history_there_is_nothing_to_say():
    trace = trace_of([], [segment(0, 2 * MiB, [])])
    assert verdict(what_if(trace))[0] == "There is nothing to replay."


def test_cache_from_before_the_recording_is_not_counted_as_saved():
    a = 0x7F1200000000
    ends = [segment(a, 20 * MiB, [block(a, 5 * MiB)]), segment(a + GiB, 60 * MiB, [])]
    trace = trace_of([alloc(a + GiB, 30 * MiB), free(a + GiB, 30 * MiB)], ends)
    settings = parse_settings(EXPANDABLE)
    found = what_if(trace, settings=settings)
    assert verdict(found)[0] == "Expandable segments would reserve 40.0 MiB at the peak."
    searched = search(source_of(trace), also=settings)
    assert verdict(found, searched)[0] == "Expandable segments would reserve 40.0 MiB at the peak, 10.0 MiB less."


def test_how_exact_it_is_is_always_said(growing):
    trace = growing.trace()
    assert exactness(what_if(trace).recorded) == "replay of the recording exact, 0 of 7 addresses differ"
    a = 0x7F1200000000
    events = [event("segment_alloc", a, 20 * MiB), alloc(a + MiB, 5 * MiB)]
    recorded = what_if(trace_of(events)).recorded
    assert exactness(recorded).startswith("replay of the recording exact up to event 1. The file takes another block")
