"""The answer in two sentences."""

import pytest

from memviz.allocator.replayer import CardMemory, Replayer
from memviz.allocator.search import search
from memviz.allocator.settings import parse_settings
from memviz.results.replay_headline import replay_headline as headline
from tests.allocator.driver import GiB, MiB
from tests.allocator.recording import Recorder
from tests.traces import alloc, block, free, segment, trace_of


def words(run: Recorder, mebibytes: int | None = None, text: str | None = None, *, searched: bool = False) -> str:
    trace, card = run.trace(), None if mebibytes is None else CardMemory(mebibytes * MiB, 0)
    settings = None if text is None else parse_settings(text)
    found = search(Replayer(trace), card, also=settings) if searched else None
    return str(headline(Replayer(trace).what_if(settings=settings, card=card), found))


EXPANDABLE = "expandable_segments:True"


def test_a_recording_that_failed_itself():
    run = Recorder(card=100 * MiB)
    run.cached(60 * MiB)
    run.malloc(50 * MiB)
    with pytest.raises(Exception, match="Tried to allocate"):
        run.malloc(60 * MiB)
    assert words(run, None, EXPANDABLE).startswith("This run ran out of memory at event 5.")
    assert words(run, 100).startswith("In 100 MiB this run runs out of memory at event 5.")
    assert words(run, 100, searched=True).startswith("No setting fits this run in 100 MiB: 110 MiB are live")


def test_cache_from_before_the_recording_is_not_counted_as_saved():
    a = 0x7F1200000000
    ends = [segment(a, 20 * MiB, [block(a, 5 * MiB)]), segment(a + GiB, 60 * MiB, [])]
    trace = trace_of([alloc(a + GiB, 30 * MiB), free(a + GiB, 30 * MiB)], ends)
    settings = parse_settings(EXPANDABLE)
    said = str(headline(Replayer(trace).what_if(settings=settings)))
    facts = ("reserve 40.0 MiB at the peak", "10.0 MiB less", "recording reserved 80.0 MiB", "is left out")
    assert all(fact in said for fact in facts), said


def short(card: int | None = 100) -> Recorder:
    """60 MiB are cached when 80 are requested: a card of 100 MiB releases the cache first."""
    run = Recorder(card=card and card * MiB)
    run.cached(60 * MiB)
    run.malloc(80 * MiB)
    return run


WANT = "recording reserved 80.0 MiB: it released its cache for lack of memory at event 4"


@pytest.mark.parametrize(
    ("mebibytes", "text", "facts"),
    [
        (None, None, ("Without a limit", "reserve 140 MiB at the peak", WANT, "without a limit that is not needed")),
        (200, EXPANDABLE, ("fits, with 60.0 MiB to spare", "reserve 80.0 MiB", "60.0 MiB less", WANT, "not needed")),
        (100, EXPANDABLE, ("ends as recorded", "released once", "reserve 80.0 MiB at the peak, the same")),
    ],
)
def test_a_recording_that_was_short_of_memory_is_held_apart_from_replays_that_are_not(mebibytes, text, facts):
    said = words(short(), mebibytes, text)
    assert all(fact in said for fact in facts), said
    assert (WANT in said) == (WANT in facts)


def test_where_the_program_emptied_its_cache_the_replay_is_as_recorded():
    run = Recorder()
    for size in (60, 80, 70):
        run.cached(size * MiB)
        run.line = 7
        run.allocator.empty_cache()
        run.line = 0
    said = words(run)
    assert all(fact in said for fact in ("reserves 80.0 MiB", "0 B (0 %) more", "80.0 MiB are live at once")), said
