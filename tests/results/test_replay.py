"""Sentences about replays: their facts in small recordings, and each against rows, lines and advice."""

import random
import re
from collections.abc import Iterator

import pytest

from memviz.allocator.replay_result import allocation_count
from memviz.allocator.replayer import CardMemory, Replayer, WhatIf
from memviz.allocator.search import Search, search
from memviz.allocator.settings import Settings, parse_settings
from memviz.analysis.timeline import timeline
from memviz.results.replay_headline import replay_headline as headline
from memviz.trace.model import Trace
from memviz.ui.upload.opening import SAMPLES
from memviz.ui.what_if.plots import lines
from memviz.ui.what_if.verdict import RankedRow, ranked_rows
from memviz.units import bytes_text, count_text
from tests.allocator.driver import GiB, MiB
from tests.allocator.programs import Step, take
from tests.allocator.recording import Recorder
from tests.real import read_once, real_files
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


ASKED = (None, "expandable_segments:True", "max_split_size_mb:24", "roundup_power2_divisions:4")


def check(trace: Trace, settings: Settings | None, card: CardMemory | None) -> None:
    source = Replayer(trace)
    found = source.what_if(settings=settings, card=card)
    if not allocation_count(found.recorded):
        return
    searched = search(source, card, also=settings)
    said, shown = str(headline(found, searched)), list(ranked_rows(found, searched))
    of_fate(said, found, shown)
    of_change(said, found, searched)
    of_as_recorded(said, found, searched, shown)
    of_advice(said, searched)
    of_lines(trace, found)
    assert ("On device" in said) == (len(trace.devices) > 1)


def of_fate(said: str, found: WhatIf, shown: list[RankedRow]) -> None:
    fits = re.search(r"this run fits, with ([^ ]+ [^ ]+) to spare", said)
    if fits:
        assert found.base.oom is None
        assert f"fits, {fits[1]} to spare" in [each.ends for each in shown]
    ended = [each.oom for each in (found.recorded, found.base, found.replayed, found.compared_with) if each.oom]
    assert set(re.findall(r"out of memory at event (\d+(?:,\d+)*)", said)) <= {count_text(each.event) for each in ended}
    if "would fit" in said:
        spare = re.search(r"would fit, with ([^ ]+ [^ ]+) to spare", said)
        assert spare is None or f"fits, {spare[1]} to spare" in [each.ends for each in shown]


def of_change(said: str, found: WhatIf, searched: Search) -> None:
    """Check that less and more agree with the rows, for one limit and one start."""
    changed = re.search(r"reserve ([^ ]+ [^ ]+) at the peak, (?:([^ ]+ [^ ]+) (less|more)|the same)", said)
    if not changed:
        return
    ours = next(each for each in searched.tried if each.settings == found.replayed.settings)
    mine, theirs = (
        each.reserved_on_card_bytes if found.card else each.peak_reserved_bytes for each in (ours, searched.recorded)
    )
    assert bytes_text(mine) == changed[1]
    assert mine == found.replayed.peak_reserved_bytes
    more = (None, None) if mine == theirs else (bytes_text(abs(mine - theirs)), "more" if mine > theirs else "less")
    assert changed.groups()[1:] == more


def of_as_recorded(said: str, found: WhatIf, searched: Search, shown: list[RankedRow]) -> None:
    claims = [each for each in shown if each.remark == "as recorded"]
    peak = found.recorded_peak_bytes
    for claim in claims:
        assert (claim.reserved_bytes, found.divergence, found.base.peak_reserved_bytes) == (peak, "", peak)
        assert not searched.is_placed_anew
    if not claims:
        assert [each.reserved_bytes for each in shown if each.remark == "the recording"] == [peak]
    if "as recorded" in said:
        assert (found.divergence, found.base.peak_reserved_bytes) == ("", peak)
    if "than the recorded settings" in said and "without a limit" not in said and found.replayed is not found.base:
        assert f"The recording reserved {bytes_text(peak)}: " in said or found.recorded.oom is not None


def of_advice(said: str, searched: Search) -> None:
    peaks = {each.text: each.peak_reserved_bytes for each in searched.tried if each.fits == searched.best.fits}
    if searched.advice.startswith("Set ") and searched.recorded.fits:
        assert searched.advised.peak_reserved_bytes < searched.recorded.peak_reserved_bytes
        assert "No setting tried" not in said
    if searched.advice.startswith("Keep "):
        assert searched.recorded.peak_reserved_bytes <= 1.01 * min(peaks.values())
        assert not re.search(r"would reserve [^ ]+ [^ ]+ less (than the recorded settings )?without", said)


def of_lines(trace: Trace, found: WhatIf) -> None:
    device = trace.devices[0]
    assert int(timeline(device).reserved.max()) == found.recorded_peak_bytes
    drawn = {line.name: line for line in lines(device, found)}
    mine = [each for name, each in drawn.items() if not name.startswith("recorded settings")]
    for each in mine:
        # Nothing is reserved yet in row 0 of a run that begins with nothing; what ran out keeps what it had.
        assert each.stopped or int(each.reserved.max()) <= found.replayed.peak_reserved_bytes
    if not found.divergence and found.replayed is found.base:
        assert not drawn


def recordings(count: int) -> Iterator[tuple[Trace, int]]:
    """Recordings of random programs: some run short of memory, empty their cache, or start late."""
    draw = random.Random(7)
    for number in range(count):
        card = draw.choice([60, 70, 90, 120, 4000]) * MiB
        run = Recorder(draw.choice(["", "", "expandable_segments:True", "max_split_size_mb:40"]), card=card)
        live: list = []
        for _ in range(draw.randrange(8, 50)):
            run.line += 1
            take(run, live, step(draw))
        if any(event["action"] == "alloc" for event in run.events):
            late = draw.randrange(1, len(run.events) + 1) if number % 3 == 0 else None
            yield run.trace(late), card


def step(draw: random.Random) -> Step:
    kind = draw.choice([*["malloc"] * 6, *["free"] * 5, "empty_cache"])
    size = draw.choice([draw.randrange(1, 3 * MiB), draw.randrange(1, 40 * MiB), 10 * MiB])
    return kind, size, draw.choice([0, 0, 0, 7])


@pytest.mark.slow
def test_what_is_said_of_generated_recordings_is_what_stands_beside_it() -> None:
    draw = random.Random(11)
    for trace, card in recordings(300):
        text = draw.choice(ASKED)
        memory = draw.choice([None, None, card, card // 2, 2 * card])
        settings = None if text is None else parse_settings(text)
        check(trace, settings, None if memory is None else CardMemory(memory, 0))


FILES = [*real_files(), *sorted(SAMPLES.glob("*.gz"))]


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_is_said_of_real_recordings_is_what_stands_beside_it(path) -> None:
    trace = read_once(path)
    peak = int(timeline(trace.devices[0]).reserved.max())
    check(trace, parse_settings("expandable_segments:True"), CardMemory(peak * 9 // 10, 0))
    if len(trace.devices[0].events) < 3000:
        check(trace, parse_settings("expandable_segments:True"), None)
        check(trace, None, CardMemory(peak, 0))
