"""Every statement of a headline or a command agrees with the series and tables next to it."""

from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from memviz.analysis.comparing.changes import summarize_comparison
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.devices import choose_device
from memviz.analysis.health import health
from memviz.analysis.overview import overview
from memviz.results.comparison import comparison_headline
from memviz.results.summary import trace_headline
from memviz.trace.model import Trace
from tests.house.repository import ROOT
from tests.real import read_once, real_files
from tests.results import made
from tests.results.claims import check_english
from tests.results.comparison_law import called, check_compare
from tests.results.summary_law import check_explore

SAMPLES = sorted((ROOT / "sample_traces").glob("*.gz"))


@cache
def traces() -> tuple[Trace, ...]:
    """Return real traces if available, all samples, and some hundred generated ones."""
    return (*map(read_once, (*real_files(), *SAMPLES)), *(made.made(seed) for seed in range(made.COUNT)))


def pairs() -> Iterator[tuple[list[Pair], list[str]]]:
    random, every = Random(1), traces()
    found = len(every) - made.COUNT
    chosen = [list(each) for each in zip(every[:found], every[1:found], strict=False)]
    chosen += [random.choices(every[found:], k=random.choice((2, 2, 3, 5))) for _ in range(made.COUNT)]
    for several in chosen:
        sides = [(trace, random.choice(trace.devices)) for trace in several]
        yield sides, [trace.about.source for trace in several]


@pytest.mark.slow
def test_the_made_traces_are_of_every_kind():
    devices = [(trace, device) for trace in traces()[-made.COUNT :] for device in trace.devices]
    answers = {trace_headline(overview(*each)) for each in devices}
    for words in (
        "ran out of memory:",
        "times, the last time",
        "The peak of device",
        "of it ",
        "are live on",
        "pinned",
    ):
        assert any(words in answer.answer for answer in answers), words
    for words in ("before recording started", "Reached at event", "in step ", "no history", "No events"):
        assert any(words in answer.reason for answer in answers), words


def test_what_explore_says_is_true_of_every_device():
    for trace in traces():
        for device in trace.devices:
            check_explore(trace, device, trace_headline(overview(trace, device)))


@pytest.mark.slow
def test_what_compare_says_is_true_of_pairs_and_of_several():
    for sides, names in pairs():
        check_compare(sides, comparison_headline(summarize_comparison(sides)), called(sides, names))


def test_notes_are_english():
    for trace in traces():
        for note in (*trace.notes, *health(trace)):
            check_english(note.text)


@pytest.mark.slow
def test_the_device_that_ran_out_of_memory_comes_first():
    for trace in traces():
        first = choose_device(trace)
        gpus = [device for device in trace.devices if device.kind == "gpu"]
        failed = [each for each in gpus if trace_headline(overview(trace, each)).answer.count("ran out of memory")]
        assert first in (failed or gpus or trace.devices)
        assert overview(trace, first).peak_bytes == max(
            overview(trace, each).peak_bytes for each in (failed or gpus or trace.devices)
        )
