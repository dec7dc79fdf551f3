"""Every statement of a headline or a command agrees with the series and tables next to it."""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random

import numpy as np
import pytest

from memviz.analysis.annotations import steps
from memviz.analysis.callstacks.sites import NO_SITE, sites
from memviz.analysis.comparing.changes import Change, changes, summarize_comparison
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.devices import choose_device
from memviz.analysis.groups import group_rows
from memviz.analysis.health import health
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.overview import overview
from memviz.analysis.peak import failed_requests, peak
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.categories import KINDS, categories, kinds
from memviz.analysis.purpose.phases import activity_of_allocs
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.timeline import timeline
from memviz.results.comparison import comparison_headline
from memviz.results.headline import Headline, count_word, letter, purpose_name, shorten
from memviz.results.summary import trace_headline
from memviz.trace.model import Action, Category, DeviceTrace, Trace
from memviz.units import bytes_text, count_text, percent_text
from tests.facts import missing
from tests.house.repository import ROOT
from tests.real import read_once, real_files
from tests.results import made

SIZE = r"[\d,]+(?:\.\d+)? (?:B|KiB|MiB|GiB|TiB)\b"
SHARE = r"(?:under )?[\d,]+(?:\.\d)? %"
COUNT = r"[\d,]+"
_NOUNS = "(event|time|allocation|segment|site|block|occasion|free|device|row|stack|note)"
_ONE_OF_MANY = re.compile(rf"(?<![\d,.:]) ?\b1 {_NOUNS}s\b")
_MANY_OF_ONE = re.compile(rf"(?<![\w.,:])(?!1 )[\d,]+ {_NOUNS}\b(?! of)")


def check_english(text: str) -> None:
    assert not _ONE_OF_MANY.search(text), f"one is not many: {text!r}"
    assert not _MANY_OF_ONE.search(text), f"many are not one: {text!r}"
    assert "  " not in text.strip("\n") or "\n" in text, f"two blanks: {text!r}"
    for wrong in ("None", "nan", " .", " ,", "no stack recorded."):
        assert wrong not in text, f"{wrong!r} in {text!r}"
    assert not re.search(r"(?<!\w)-0 ", text), f"a zero with a sign: {text!r}"


def check_explore(trace: Trace, device: DeviceTrace, said: Headline) -> None:
    line, failures = timeline(device), failed_requests(trace, device)
    check_english(str(said))
    where = f"pinned memory ({device.name})" if device.kind == "host" else f"device {device.name}"
    assert (where in said.answer.lower()) == (len(trace.devices) > 1), f"it is {where}"
    if failures:
        last, times = failures[-1], len(failures)
        facts = ["ran out of memory", f"{bytes_text(last.requested_bytes)} requested", last.site]
        assert missing(said.answer, *facts, *[f"{count_text(times)} times"] * (times > 1)) == []
        unused = last.reserved_bytes - last.live_bytes
        facts = [f"{bytes_text(unused)} reserved but not live"] if unused >= 0 else []
        assert missing(said.reason, f"{bytes_text(last.live_bytes)} were live", *facts) == []
    elif not len(device.events):
        assert missing(said.answer, f"{bytes_text(line.end_bytes)} are live") == []
        assert ("No events" if trace.event_count else "no history") in said.reason
    else:
        _check_peak_share(trace, device, said.answer)
        _check_peak_moment(trace, device, said.reason)


def _check_peak_share(trace: Trace, device: DeviceTrace, answer: str) -> None:
    size = timeline(device).peak_bytes
    assert f"is {bytes_text(size)}" in answer
    if of_site := re.search(rf", ({SHARE}) of it from (.+)\.$", answer):
        largest = peak(trace, device, "site").live.groups[0]
        assert of_site[1] == percent_text(largest.bytes, size)
    elif of_kind := re.search(rf", ({SHARE}) of it (probably )?(.+)\.$", answer):
        table = {group.label: group.bytes for group in peak(trace, device, "category").live.groups}
        kind = "temporary" if of_kind[3] == "temporary tensors" else of_kind[3]
        kind = kind if kind in table else kind.removesuffix("s")
        assert of_kind[1] == percent_text(table[kind], size)
        assert table[kind] == max(table.values()), f"{kind} is not the largest"
        assert bool(of_kind[2]) == _is_probable(trace, device, kind), f"how sure {kind} is"


def _check_peak_moment(trace: Trace, device: DeviceTrace, reason: str) -> None:
    live = timeline(device).live
    if kept := re.match(rf"({SHARE}) is from (.+?)(?:, in ({COUNT}) (equal )?layers)?\. ", reason):
        _check_kept(trace, device, kept)
    if reason.endswith("It was allocated before recording started."):
        assert live[0] == live.max(), "the peak came later"
        return
    moment = re.search(rf"Reached (?:at event|(.+) \(event) ({COUNT}) of ({COUNT})\b", reason)
    assert moment is not None, reason
    event = int(moment[2].replace(",", ""))
    assert live[event + 1] == live.max() > live[: event + 1].max()
    assert moment[3] == count_text(len(device.events))
    _check_step(trace, device, event, moment[1] or "")


def _is_probable(trace: Trace, device: DeviceTrace, kind: str) -> bool:
    """Return True if more than half of the bytes of this kind at the peak are only probable."""
    rows = live_rows(device, timeline(device).peak_event)
    said, size = categories(trace, device), lifetimes(device).size
    of_kind = rows[np.array([KINDS[code] == kind for code in kinds(trace, device, rows).tolist()], dtype=bool)]
    probable = of_kind[said.certainty[of_kind] == Certainty.PROBABLE]
    return bool(2 * size[probable].sum() > size[of_kind].sum())


def _check_kept(trace: Trace, device: DeviceTrace, kept: re.Match[str]) -> None:
    """The places together hold that share of the peak in activations, and half of all activations."""
    rows = live_rows(device, timeline(device).peak_event)
    rows = rows[categories(trace, device).category[rows] == Category.ACTIVATION]
    groups = group_rows(trace, device, rows, "site").groups
    lines = re.findall(r":(\d+)", kept[2])
    first = groups[: len(lines)]
    assert sorted(lines) == sorted(re.search(r":(\d+)", each.label)[1] for each in first), "other places hold more"
    share = sum(each.bytes for each in first)
    assert kept[1] == percent_text(share, timeline(device).peak_bytes)
    assert 2 * share >= sum(group.bytes for group in groups)
    # Of unequal layers, some have let go of more than others; `analysis/findings/test_every_number.py` counts those.
    if kept[4]:
        layers = int(kept[3].replace(",", ""))
        most = [group_rows(trace, device, rows_of(trace, device, rows, each.label), "size").groups for each in first]
        assert all(max(size.count for size in sizes) % layers == 0 for sizes in most), "layers differ"


def rows_of(trace: Trace, device: DeviceTrace, rows: np.ndarray, label: str) -> np.ndarray:
    table = sites(trace)
    stacks = lifetimes(device).stack[rows]
    return rows[[table.of(int(stack)).label == label for stack in stacks]]


def _check_step(trace: Trace, device: DeviceTrace, event: int, said: str) -> None:
    """The phase is that of the last allocation up to the peak that shows one; steps are counted from one."""
    around = {step.name for step in steps(trace, device) if step.start_event <= event <= step.end_event}
    doing = activity_of_allocs(trace, device)[: event + 1]
    shown = doing[np.isin(doing, (Activity.FORWARD, Activity.BACKWARD, Activity.STEP))]
    if not said:
        assert not around and not len(shown), f"it comes in {around or shown[-1]}"
        return
    assert "step 0" not in said, "people count from one"
    phase = re.match(r"in the (forward|backward|optimizer step)\b", said)
    names = {"forward": Activity.FORWARD, "backward": Activity.BACKWARD, "optimizer step": Activity.STEP}
    if phase:
        noted = {trace.strings[code] for code in device.annotations.name.tolist()}
        is_noted = phase[1] == "optimizer step" and any(name.startswith("Optimizer.step#") for name in noted)
        assert is_noted or names[phase[1]] in shown[-3:], f"nothing shows: {phase[1]}"
    elif said.startswith("at the end of forward"):
        assert shown[-1] == Activity.BACKWARD or Activity.BACKWARD in doing
        assert Activity.FORWARD in shown
    if "recorded " in said:
        line = timeline(device)
        assert line.live[0] > 0 or line.reserved[0] > 0, "it was recorded from its beginning"


def check_compare(sides: Sequence[Pair], said: Headline, names: Sequence[str]) -> None:
    """`names` as the headline may call them, devices included."""
    check_english(str(said).replace("…", ""))
    peaks = [timeline(device).peak_bytes for _, device in sides]
    still = [name for name, (_, device) in zip(names, sides, strict=True) if not len(device.events)]
    low, high, verb = min(peaks), max(peaks), "end" if still else "peak"
    causes = _without_notes(sides, names, said.reason, still)
    if low == high:
        assert missing(said.answer, f"{verb} at {bytes_text(low)}") == []
    elif len(peaks) == 2:
        how = f"{bytes_text(high - low)} {'higher' if peaks[1] > peaks[0] else 'lower'} than {names[0]}"
        assert missing(said.answer, f"{names[1]} {verb}s", how) == []
    else:
        lowest = [name for name, peak in zip(names, peaks, strict=True) if peak == low]
        highest = [name for name, peak in zip(names, peaks, strict=True) if peak == high]
        facts = [f"{lowest[0]} {verb}s lowest of the {count_word(len(peaks))}", f"at {bytes_text(low)}"]
        others = lowest[1] if len(lowest) == 2 else f"{count_word(len(lowest) - 1)} others"
        facts += [f"like {others}"] * (len(lowest) > 1)
        assert missing(said.answer, *facts, *[f"{bytes_text(peaks[0] - low)} less"] * (peaks[0] > low)) == []
        facts = [f"The highest, {_listed(highest)},", f"{bytes_text(high - peaks[0])} more than A"]
        if peaks[0] == high:
            facts = ["is the highest", names[0], *[f"as high as {_listed(highest[1:])}"] * (len(highest) > 1)]
        assert missing(causes, *facts) == []
    if len(peaks) == 2 and causes:
        tables = [changes(sides, by).rows for by in ("site", "category")]
        assert any(_explains(rows, causes, peaks[1] - peaks[0]) for rows in tables), causes


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names if len(names) < 3 else [names[0], f"{count_word(len(names) - 1)} others"])


def _without_notes(sides: Sequence[Pair], names: Sequence[str], reason: str, still: Sequence[str]) -> str:
    """Return the reason without the sentences behind it, on traces that ran out of memory or have no history."""
    refused = {
        name: int(np.flatnonzero(device.events.action == Action.OOM)[-1])
        for name, (_, device) in zip(names, sides, strict=True)
        if (device.events.action == Action.OOM).any()
    }
    assert ("ran out of memory" in reason, "Only the final state" in reason) == (bool(refused), bool(still))
    when = f" at event {count_text(*refused.values())}; its peak excludes" if len(refused) == 1 else "; their peaks"
    notes = [f"Only the final state of {_listed(still)} is known."] * bool(still)
    notes += [f"{_listed([*refused])} ran out of memory{when}"] * bool(refused)
    for note in notes:
        assert note in reason
        reason = reason.partition(note)[0].strip()
    return reason


def _explains(rows: Sequence[Change], told: str, change: int) -> bool:
    """Return whether the sizes that are told are those of the rows that are named, and all adds up."""
    deltas = [row.delta(1) for row in rows]
    if not change:
        grown, shrunk = [delta for delta in deltas if delta > 0], [delta for delta in deltas if delta < 0]
        words = f"grew by {bytes_text(sum(grown))}, {count_word(len(shrunk))} shrank"
        return words in told and told.lower().startswith(count_word(len(grown))) if grown else "same bytes" in told
    known: dict[str, list[tuple[str, int]]] = {}
    for row in rows:
        if row.delta(1) * change > 0:
            names = {shorten(row.thing.name), purpose_name(row.thing.key)}
            names |= {"allocations without a stack"} if row.thing.label == NO_SITE.label else set()
            for name in names:
                known.setdefault(bytes_text(abs(row.delta(1))), []).append((name.lower(), row.delta(1)))
    head, _, rest = told.partition(", the rest ")
    named = [
        next((size for name, size in known.get(text, ()) if name in head.lower()), 0) for text in re.findall(SIZE, head)
    ]
    left, others = change - sum(named), sum(map(abs, deltas)) - abs(sum(named))
    against = "" if left * change >= 0 else " less" if left < 0 else " more"
    adds_up = not left and not others
    if rest:
        adds_up = not left and others > 0 if rest == "cancels out." else rest == f"{bytes_text(abs(left))}{against}."
    return all(named) and bool(named) and adds_up and bool(re.search(r"B less\b", head)) == (change < 0)


def called(sides: Sequence[Pair], names: Sequence[str]) -> list[str]:
    """Return names without file endings, with letters for equal names and devices where a trace has several."""
    bare = [re.sub(r"(\.(pickle|pkl|json))?(\.gz)?$", "", name) for name in names]
    own = [f"{name} ({letter(i)})" if bare.count(name) > 1 else name for i, name in enumerate(bare)]
    if all(len(trace.devices) == 1 for trace, _ in sides):
        return own
    devices = [f"pinned memory ({each.name})" if each.kind == "host" else f"device {each.name}" for _, each in sides]
    return [f"{name} ({device})" for name, device in zip(own, devices, strict=True)]


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
