"""The law: whatever a headline or a command says is what the series and tables beside it say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from random import Random

import pytest

from memviz.analysis.comparing.changes import summarize_comparison
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.health import health
from memviz.analysis.overview import overview
from memviz.analysis.timeline import timeline
from memviz.analysis.which_device import chosen_device
from memviz.commands.diff import print_comparison
from memviz.commands.explore import print_live, print_summary
from memviz.results.comparison import comparison_headline, comparison_result
from memviz.results.headline import Headline
from memviz.results.live import live_result
from memviz.results.summary import summary_result, trace_headline
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.units import bytes_text
from tests.house.repository import ROOT
from tests.real import real_files
from tests.results import made
from tests.results.claims import check_english, says_size
from tests.results.commands_law import check_diff, check_peak, check_summary
from tests.results.compare_law import called, check_compare
from tests.results.explore_law import check_explore

SAMPLES = sorted((ROOT / "sample_traces").glob("*.gz"))


@cache
def traces() -> tuple[Trace, ...]:
    """Real ones where they are at hand, all samples, and some hundred made ones."""
    return (*map(load_trace, (*real_files(), *SAMPLES)), *(made.made(seed) for seed in range(made.COUNT)))


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
    for words in ("ran out of memory:", "times, at last", "The peak of device", "of it is", "are live on", "pinned"):
        assert any(words in answer.answer for answer in answers), words
    for words in ("before the first event", "the only one", "the last.", "in step ", "no history", "Nothing happened"):
        assert any(words in answer.reason for answer in answers), words


def test_what_explore_says_is_true_of_every_device():
    for trace in traces():
        for device in trace.devices:
            check_explore(trace, device, trace_headline(overview(trace, device)))


def test_what_compare_says_is_true_of_pairs_and_of_several():
    for sides, names in pairs():
        check_compare(sides, comparison_headline(summarize_comparison(sides)), called(sides, names))


@pytest.mark.slow
def test_what_summary_and_peak_print_is_true(capsys: pytest.CaptureFixture[str]):
    for trace in traces():
        print_summary(summary_result(trace))
        check_summary(trace, capsys.readouterr().out)
        for device in trace.devices:
            print_live(live_result(trace, device), len(device.events))
            check_peak(trace, device, capsys.readouterr().out)


@pytest.mark.slow
def test_what_diff_prints_is_true(capsys: pytest.CaptureFixture[str]):
    for sides, _ in pairs():
        print_comparison(comparison_result(sides), None)
        printed = capsys.readouterr().out
        assert printed.startswith(str(comparison_headline(summarize_comparison(sides))))
        check_diff(sides, "site", printed)


def test_notes_are_english():
    for trace in traces():
        for note in (*trace.notes, *health(trace)):
            check_english(note.text)


# -- the law catches what it is there for


def other_way(said: Headline) -> Headline:
    swaps = {"higher": "lower", "lower": "higher", "adds": "holds", "less": "more"}
    words = re.compile("|".join(rf"\b{swap}\b" for swap in swaps))
    return Headline(words.sub(lambda found: swaps[found.group()], said.answer), said.reason)


def other_device(said: Headline) -> Headline:
    return replace(said, answer=re.sub(r"evice (\d+)", lambda found: f"evice {int(found[1]) + 1}", said.answer))


def no_device(said: Headline) -> Headline:
    return replace(said, answer=re.sub(r" \(device \d+\)| of device \d+| on device \d+", "", said.answer))


def other_size(said: Headline) -> Headline:
    return replace(
        said, answer=re.sub(r"(\d)( [KMGT]?i?B)\b", lambda found: f"{(int(found[1]) + 1) % 10}{found[2]}", said.answer)
    )


def other_rest(said: Headline) -> Headline:
    return replace(said, reason=re.sub(r"\d( [KMGT]iB)", lambda found: f"7{found[1]}", said.reason))


def other_event(said: Headline) -> Headline:
    return replace(
        said,
        reason=re.sub(
            r"at event ([\d,]+)", lambda found: f"at event {int(found[1].replace(',', '')) + 1}", said.reason
        ),
    )


def other_share(said: Headline) -> Headline:
    return replace(said, answer=re.sub(r"(\d) %", lambda found: f"{(int(found[1]) + 5) % 10} %", said.answer))


@pytest.mark.parametrize("wrong", [other_device, no_device, other_size, other_event, other_share])
def test_the_law_refuses_what_is_false_of_a_device(wrong: Callable[[Headline], Headline]):
    refused = 0
    for trace in traces():
        for device in trace.devices:
            said = trace_headline(overview(trace, device))
            if wrong(said) != said:
                with pytest.raises(AssertionError):
                    check_explore(trace, device, wrong(said))
                refused += 1
    assert refused > 10


@pytest.mark.parametrize("wrong", [other_way, other_device, no_device, other_size, other_rest])
def test_the_law_refuses_what_is_false_of_a_comparison(wrong: Callable[[Headline], Headline]):
    refused = 0
    for sides, names in pairs():
        said = comparison_headline(summarize_comparison(sides))
        if wrong(said) != said:
            with pytest.raises(AssertionError):
                check_compare(sides, wrong(said), called(sides, names))
            refused += 1
    assert refused > 10


def test_the_law_refuses_the_end_in_place_of_the_peak():
    refused = 0
    for trace in traces():
        for device in trace.devices:
            found = overview(trace, device)
            end = replace(found, peak_bytes=timeline(device).end_bytes)
            if "peak" in trace_headline(found).answer and not says_size(bytes_text(end.peak_bytes), found.peak_bytes):
                with pytest.raises(AssertionError):
                    check_explore(trace, device, trace_headline(end))
                refused += 1
    assert refused > 10


def test_the_device_that_ran_out_of_memory_comes_first():
    for trace in traces():
        first = chosen_device(trace)
        gpus = [device for device in trace.devices if device.kind == "gpu"]
        failed = [each for each in gpus if trace_headline(overview(trace, each)).answer.count("ran out of memory")]
        assert first in (failed or gpus or trace.devices)
        assert overview(trace, first).peak_bytes == max(
            overview(trace, each).peak_bytes for each in (failed or gpus or trace.devices)
        )
