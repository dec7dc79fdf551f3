"""Every statement of a headline or a command agrees with the series and tables next to it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from memviz.results.headline import Headline, letter
from memviz.results.summary import trace_headline
from memviz.trace.model import Action, Category, DeviceTrace, Trace
from tests.house.repository import ROOT
from tests.real import read_once, real_files
from tests.results import made

SIZE = r"−?[\d,]+(?:\.\d+)? (?:B|KiB|MiB|GiB|TiB)"
SHARE = r"(?:under )?[\d,]+(?:\.\d)? %"
COUNT = r"[\d,]+"
DEVICE = r"(?:device \d+|pinned memory \(host\d+\))"
_UNITS = {"B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_NOUNS = (
    "event",
    "time",
    "allocation",
    "segment",
    "site",
    "block",
    "occasion",
    "free",
    "device",
    "row",
    "stack",
    "note",
)
_ONE_OF_MANY = re.compile(rf"(?<![\d,.:]) ?\b1 (?:{'|'.join(_NOUNS)})s\b")
_MANY_OF_ONE = re.compile(rf"(?<![\w.,:])(?!1 )[\d,]+ (?:{'|'.join(_NOUNS)})\b(?! of)")


@dataclass(frozen=True)
class Form:
    """A pattern for one sentence, whose groups are its claims."""

    name: str
    pattern: str

    def read(self, text: str) -> dict[str, str] | None:
        found = re.fullmatch(self.pattern, text, re.DOTALL)
        return {key: value for key, value in found.groupdict().items() if value is not None} if found else None


@dataclass(frozen=True)
class Read:
    form: str
    claims: Mapping[str, str]

    def __getitem__(self, key: str) -> str:
        return self.claims[key]

    def __contains__(self, key: str) -> bool:
        return key in self.claims


def read(text: str, forms: Sequence[Form]) -> Iterator[Read]:
    """Yield every reading of the text, because function names may look like words of a sentence."""
    found = [Read(form.name, claims) for form in forms if (claims := form.read(text)) is not None]
    assert found, f"no law knows this sentence: {text!r}"
    yield from found


def holds(text: str, forms: Sequence[Form], check: Callable[[Read], None]) -> None:
    """True if it is true under one way to read it."""
    failures = []
    for way in read(text, forms):
        try:
            check(way)
        except AssertionError as error:
            failures.append(f"{way.form}: {error}")
        else:
            return
    raise AssertionError(f"false: {text!r}\n" + "\n".join(failures))


def says_size(words: str, count: int) -> bool:
    """Return True if the words are this many bytes, to their last digit."""
    number, _, unit = words.partition(" ")
    decimals = len(number.partition(".")[2])
    scale = 1 << _UNITS[unit]
    exact, told = count / scale, float(number.replace(",", "").replace("−", "-"))
    return abs(told - exact) <= 0.5 * 10**-decimals + 1e-9 * max(abs(exact), 1) and (count == 0) == (told == 0)


def check_size(words: str, count: int, what: str) -> None:
    assert says_size(words, count), f"{what} is said to be {words}; it is {count} B"


def check_share(words: str, part: int, whole: int, what: str) -> None:
    exact = 100 * part / whole if whole else 0.0
    if words == "under 0.1 %":
        assert 0 < abs(exact) < 0.05, f"{what} is said to be {words}; it is {exact} %"
        return
    number = words.removesuffix(" %")
    told = float(number.replace(",", ""))
    assert part == 0 or told != 0, f"{what} is not nothing"
    # A part is never shown as 100 %, however little is missing.
    assert told != 100 or part >= whole, f"{what} is not all"
    least = 0.1 if told == 99.9 else 0.05 if "." in number else 0.5
    assert abs(told - exact) <= least + 1e-9, f"{what} is said to be {words}; it is {exact} %"


def check_count(words: str, count: int, what: str) -> None:
    told = NUMBERS.index(words.lower()) if words.lower() in NUMBERS else int(words.replace(",", ""))
    assert told == count, f"{what} are said to be {words}; they are {count}"


def check_device(claims: Read, name: str, of: int, key: str = "device") -> None:
    """Named where there are several, and then the right one."""
    assert (key in claims) == (of > 1), f"of {of} devices it says {claims.claims.get(key)!r}"
    if key in claims:
        told = re.search(r"host\d+|\d+", claims[key])
        assert told is not None and told.group() == name, f"it names {claims[key]!r}; it is {name}"


def check_english(text: str) -> None:
    assert not _ONE_OF_MANY.search(text), f"one is not many: {text!r}"
    assert not _MANY_OF_ONE.search(text), f"many are not one: {text!r}"
    assert "  " not in text.strip("\n") or "\n" in text, f"two blanks: {text!r}"
    for wrong in ("None", "nan", " .", " ,", "no stack recorded."):
        assert wrong not in text, f"{wrong!r} in {text!r}"
    assert not re.search(r"(?<!\w)-0 ", text), f"a zero with a sign: {text!r}"


EXPLORE_ANSWERS = (
    Form(
        "peak",
        rf"The peak(?: of (?P<device>{DEVICE}))? is (?P<peak>{SIZE})"
        rf"(?:, (?P<share>{SHARE}) of it (?P<probably>probably )?(?P<kind>[a-zA-Z ]+)"
        rf"|, (?P<made>{SHARE}) of it from (?P<place>.+))?\.",
    ),
    Form(
        "ran out",
        rf"(?:It|(?P<device>(?:Device|Pinned).*?)) ran out of memory"
        rf"(?:: | (?P<times>{COUNT} times?), the last time when )(?P<asked>{SIZE}) requested(?: in (?P<site>.+))?\.",
    ),
    Form("state", rf"(?P<live>{SIZE}) are live(?: on (?P<device>{DEVICE}))?\."),
)
_KEPT = rf"(?:(?P<kept>{SHARE}) is from (?P<places>.+?)(?:, in (?P<layers>{COUNT}) (?P<equal>equal )?layers)?\. )?"
EXPLORE_REASONS = (
    Form("before", rf"{_KEPT}It was allocated before recording started\."),
    Form(
        "in step",
        rf"{_KEPT}Reached (?P<step>(?:in|at the end of) .+) \(event (?P<event>{COUNT}) of (?P<end>{COUNT})\)\.",
    ),
    Form("at", rf"{_KEPT}Reached at event (?P<event>{COUNT}) of (?P<end>{COUNT})\."),
    Form("then", rf"(?P<live>{SIZE}) were live(?:, and (?P<unused>{SIZE}) reserved but not live)?\."),
    Form("no history", r"The file has no history, only the final state\."),
    Form("quiet", r"No events were recorded there; this is the final state\."),
)
_KINDS = {"temporary tensors": "temporary"}


def check_explore(trace: Trace, device: DeviceTrace, said: Headline) -> None:
    holds(said.answer, EXPLORE_ANSWERS, lambda claims: _explore_answer(trace, device, claims))
    holds(said.reason, EXPLORE_REASONS, lambda claims: _explore_reason(trace, device, claims, said))
    check_english(str(said))


def _ran_out(device: DeviceTrace) -> bool:
    return bool((device.events.action == Action.OOM).any())


def _explore_answer(trace: Trace, device: DeviceTrace, claims: Read) -> None:
    line = timeline(device)
    check_device(claims, device.name, len(trace.devices))
    expected = "ran out" if _ran_out(device) else "peak" if len(device.events) else "state"
    assert claims.form == expected, f"it is {expected}"
    if claims.form == "peak":
        check_size(claims["peak"], line.peak_bytes, "the peak")
        table = {group.label: group.bytes for group in peak(trace, device, "category").live.groups}
        if "kind" in claims:
            kind = _KINDS.get(claims["kind"], claims["kind"])
            kind = kind if kind in table else kind.removesuffix("s")
            check_share(claims["share"], table[kind], line.peak_bytes, kind)
            assert table[kind] == max(table.values()), f"{kind} is not the largest"
            assert ("probably" in claims) == _is_probable(trace, device, kind), f"how sure {kind} is"
        if "made" in claims:
            largest = peak(trace, device, "site").live.groups[0]
            check_share(claims["made"], largest.bytes, line.peak_bytes, largest.label)
    elif claims.form == "ran out":
        failures = failed_requests(trace, device)
        check_size(claims["asked"], failures[-1].requested_bytes, "what was asked")
        check_count(claims.claims.get("times", "1 time").split()[0], len(failures), "failures")
        site = failures[-1].site
        assert claims.claims.get("site", "") == site, f"it was in {site}"
    else:
        check_size(claims["live"], line.end_bytes, "what is live")


def _explore_reason(trace: Trace, device: DeviceTrace, claims: Read, said: Headline) -> None:
    line, last = timeline(device), len(device.events) - 1
    failures = failed_requests(trace, device)
    if failures:
        assert claims.form == "then", "it ran out"
        check_size(claims["live"], failures[-1].live_bytes, "live")
        if "unused" in claims:
            then = failures[-1]
            check_size(claims["unused"], then.reserved_bytes - then.live_bytes, "reserved but not live")
        return
    if last < 0:
        assert claims.form == ("quiet" if trace.event_count else "no history")
        return
    if "kept" in claims:
        _check_kept(trace, device, claims)
    if claims.form == "before":
        assert line.live[0] == line.live.max() == line.peak_bytes, "the peak came later"
        return
    event = int(claims["event"].replace(",", ""))
    assert claims.form in ("at", "in step") and 0 <= event <= last
    assert line.live[event + 1] == line.peak_bytes and line.live[: event + 1].max() < line.peak_bytes
    check_count(claims["end"], last + 1, "events")
    _check_step(trace, device, event, claims.claims.get("step", ""))


def _is_probable(trace: Trace, device: DeviceTrace, kind: str) -> bool:
    """Return True if more than half of the bytes of this kind at the peak are only probable."""
    rows = live_rows(device, timeline(device).peak_event)
    said, size = categories(trace, device), lifetimes(device).size
    of_kind = rows[np.array([KINDS[code] == kind for code in kinds(trace, device, rows).tolist()], dtype=bool)]
    probable = of_kind[said.certainty[of_kind] == Certainty.PROBABLE]
    return bool(2 * size[probable].sum() > size[of_kind].sum())


def _check_kept(trace: Trace, device: DeviceTrace, claims: Read) -> None:
    """The places together hold that share of the peak in activations, and half of all activations."""
    rows = live_rows(device, timeline(device).peak_event)
    rows = rows[categories(trace, device).category[rows] == Category.ACTIVATION]
    groups = group_rows(trace, device, rows, "site").groups
    lines = re.findall(r":(\d+)", claims["places"])
    first = groups[: len(lines)]
    assert sorted(lines) == sorted(re.search(r":(\d+)", each.label)[1] for each in first), "other places hold more"
    share = sum(each.bytes for each in first)
    check_share(claims["kept"], share, timeline(device).peak_bytes, "what they keep")
    assert 2 * share >= sum(group.bytes for group in groups)
    # Of unequal layers, some have let go of more than others; `analysis/findings/test_every_number.py` counts those.
    if "equal" in claims:
        layers = int(claims["layers"].replace(",", ""))
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


_WORDS = "|".join(NUMBERS)
COMPARE_ANSWERS = (
    Form("both", rf"Both (?P<verb>peak|end) at (?P<peak>{SIZE})\."),
    Form("all", rf"All (?P<count>{_WORDS}|{COUNT}) (?P<verb>peak|end) at (?P<peak>{SIZE})\."),
    Form("pair", rf"(?P<second>.+) (?P<verb>peak|end)s (?P<size>{SIZE}) (?P<how>higher|lower) than (?P<first>.+)\."),
    Form(
        "many",
        rf"(?P<best>.+) (?P<verb>peak|end)s lowest of the (?P<count>{_WORDS}|{COUNT}), at (?P<peak>{SIZE})"
        rf"(?:, like (?:(?P<twins>{_WORDS}|{COUNT}) others|(?P<twin>.+?)))?(?:, (?P<size>{SIZE}) less than A)?\.",
    ),
)
COMPARE_REASONS = (
    Form("nothing", ""),
    Form("same", r"Every (?P<by>\w+) holds the same bytes in both\."),
    Form(
        "balanced",
        rf"(?P<grown>(?i:{_WORDS})|{COUNT}) (?P<noun>\w+) grew by (?P<size>{SIZE}), "
        rf"(?P<shrunk>{_WORDS}|{COUNT}) shrank by the same amount\.",
    ),
    Form(
        "first is highest",
        rf"(?:A, (?P<first>.+?),|(?P<lettered>.+? \(A\).*?)) is the highest"
        rf"(?:, as high as (?P<as_high>.+?)(?: and (?P<more>{_WORDS}|{COUNT}) others)?)?\.",
    ),
    Form(
        "highest",
        rf"The highest, (?P<worst>.+?)(?: and (?P<more>{_WORDS}|{COUNT}) others)?, "
        rf"uses? (?P<size>{SIZE}) more than A\.",
    ),
    Form(
        "made of",
        rf"(?P<name>.+?) (?P<verb>adds?|holds?) (?P<size>{SIZE})(?P<less> less)?"
        rf"(?:, (?P<also>(?!the rest ).+?) (?P<more>{SIZE}))?"
        rf"(?:(?P<even>, the rest cancels out)|(?P<equal>; all else is equal|; no other category differs)"
        rf"|, the rest (?P<rest>{SIZE})(?P<against> more| less)?)\.",
    ),
)
_ONLY_ENDS = re.compile(r"(.*)Only the final state of (.+) is known\.")
_FOLDED = {"temporary tensors": "temporary", "allocations without a stack": NO_SITE.label}


def check_compare(sides: Sequence[Pair], said: Headline, names: Sequence[str]) -> None:
    """`names` as the headline may call them, devices included."""
    holds(said.answer, COMPARE_ANSWERS, lambda claims: _compare_answer(sides, claims, names))
    ends = _ONLY_ENDS.fullmatch(said.reason)
    told, still = (ends[1], ends[2]) if ends else (said.reason, "")
    _check_ends(sides, names, still)
    told = _without_refusals(sides, names, told.rstrip())
    holds(told, COMPARE_REASONS, lambda claims: _compare_reason(sides, claims, names))
    check_english(str(said).replace("…", ""))


def _check_ends(sides: Sequence[Pair], names: Sequence[str], told: str) -> None:
    still = [name for name, (_, device) in zip(names, sides, strict=True) if not len(device.events)]
    words = NUMBERS[len(still) - 1] if still else ""
    expected = f"{still[0]} and {words} others" if len(still) > 2 else " and ".join(still)
    assert told == expected, f"only the end of {still} is known"


def _without_refusals(sides: Sequence[Pair], names: Sequence[str], told: str) -> str:
    """Return the reason without the sentence on traces that ran out of memory."""
    refused = {
        name: int(np.flatnonzero(device.events.action == Action.OOM)[-1])
        for name, (_, device) in zip(names, sides, strict=True)
        if (device.events.action == Action.OOM).any()
    }
    assert ("ran out of memory" in told) == bool(refused), f"{list(refused)} ran out of memory"
    if not refused:
        return told
    ends = {
        1: "{} ran out of memory at event {:,}; its peak excludes the request that failed.",
        2: "{} and {} ran out of memory; their peaks exclude the request that failed.",
    }.get(len(refused), "{} and {} others ran out of memory; their peaks exclude the request that failed.")
    (first, event), *others = refused.items()
    second = event if not others else others[0][0] if len(others) == 1 else NUMBERS[len(others)]
    expected = ends.format(first, second)
    assert told.endswith(expected), expected
    return told.removesuffix(expected).rstrip()


def _compare_answer(sides: Sequence[Pair], claims: Read, names: Sequence[str]) -> None:
    peaks = [timeline(device).peak_bytes for _, device in sides]
    assert (claims["verb"] == "end") == any(not len(device.events) for _, device in sides), "an end is no peak"
    if claims.form in ("both", "all"):
        assert len(set(peaks)) == 1, "the peaks differ"
        assert (claims.form == "both") == (len(peaks) == 2)
        check_size(claims["peak"], peaks[0], "the peak")
        if claims.form == "all":
            check_count(claims["count"], len(peaks), "traces")
    elif claims.form == "pair":
        assert len(peaks) == 2 and [claims["first"], claims["second"]] == list(names), "other traces"
        assert (claims["how"] == "higher") == (peaks[1] > peaks[0]) and peaks[0] != peaks[1], "the wrong way"
        check_size(claims["size"], abs(peaks[1] - peaks[0]), "the difference")
    else:
        assert claims["best"] in names, f"no trace is called {claims['best']!r}"
        assert peaks[names.index(claims["best"])] == min(peaks) < max(peaks), "not the lowest"
        check_count(claims["count"], len(peaks), "traces")
        check_size(claims["peak"], min(peaks), "the lowest")
        others = peaks.count(min(peaks)) - 1
        assert ("twin" in claims, "twins" in claims) == (others == 1, others > 1), "others are as low"
        if "twin" in claims:
            assert claims["twin"] in names and peaks[names.index(claims["twin"])] == min(peaks)
        if "twins" in claims:
            check_count(claims["twins"], others, "others as low")
        assert ("size" in claims) == (min(peaks) < peaks[0]), "against A"
        if "size" in claims:
            check_size(claims["size"], peaks[0] - min(peaks), "less than A")


def _compare_reason(sides: Sequence[Pair], claims: Read, names: Sequence[str]) -> None:
    peaks = [timeline(device).peak_bytes for _, device in sides]
    if claims.form == "nothing":
        assert len(set(peaks)) == 1 or len(peaks) == 2, "something is to be said"
    elif claims.form == "first is highest":
        assert names[0] in claims.claims.values() and peaks[0] == max(peaks)
        assert ("as_high" in claims) == (peaks.count(max(peaks)) > 1), "others are as high"
        if "as_high" in claims:
            _the_highest(peaks[1:], names[1:], claims, claims["as_high"])
    elif claims.form == "highest":
        _the_highest(peaks, names, claims, claims["worst"])
        check_size(claims["size"], max(peaks) - peaks[0], "more than A")
    else:
        assert len(peaks) == 2
        tables = [changes(sides, by).rows for by in ("site", "category")]
        _first_that_holds([lambda rows=rows: _explains(rows, claims, peaks[1] - peaks[0]) for rows in tables])


def _the_highest(peaks: Sequence[int], names: Sequence[str], claims: Read, told: str) -> None:
    highest = [name for name, peak in zip(names, peaks, strict=True) if peak == max(peaks)]
    named = [told] if "more" in claims or told in names else told.split(" and ")
    assert named[0] == highest[0] and set(named) <= set(highest), f"the highest are {highest}"
    if "more" in claims:
        check_count(claims["more"], len(highest) - 1, "others as high")
    else:
        assert len(named) == len(highest), f"the highest are {highest}"


def _first_that_holds(checks: Sequence) -> None:
    failures = []
    for check in checks:
        try:
            return check()
        except AssertionError as error:
            failures.append(str(error))
    raise AssertionError("; ".join(failures))


def _explains(rows: Sequence[Change], claims: Read, change: int) -> None:
    deltas = [row.delta(1) for row in rows]
    if claims.form == "same":
        assert not any(deltas), "some differ"
    elif claims.form == "balanced":
        grown = [delta for delta in deltas if delta > 0]
        assert change == 0 and grown
        check_count(claims["grown"], len(grown), "that grew")
        check_count(claims["shrunk"], sum(delta < 0 for delta in deltas), "that shrank")
        assert (claims["noun"] in ("site", "category")) == (len(grown) == 1), "one is not many"
        check_size(claims["size"], sum(grown), "what grew")
    else:
        _made_of(rows, claims, change)


def _made_of(rows: Sequence[Change], claims: Read, change: int) -> None:
    assert change and (claims["verb"].startswith("add"), "less" in claims) == (change > 0, change < 0), "the wrong way"
    named = _delta_of(rows, claims["name"], claims["size"], change)
    if "also" in claims:
        named += _delta_of(rows, claims["also"], claims["more"], change)
    rest, others = change - named, sum(abs(row.delta(1)) for row in rows) - abs(named)
    if "equal" in claims:
        assert rest == 0 and others == 0, f"{others} B moved besides"
    elif "even" in claims:
        assert rest == 0 and others > 0
    else:
        against = "" if rest * change >= 0 else " less" if rest < 0 else " more"
        assert claims.claims.get("against", "") == against, "the rest goes the other way"
        check_size(claims["rest"], abs(rest), "the rest")


def _delta_of(rows: Sequence[Change], name: str, size: str, change: int) -> int:
    """Return the bytes of a row, or of an operator's rows in the direction of the change."""
    same_way = [row for row in rows if row.delta(1) * change > 0]
    found = [row.delta(1) for row in same_way if _is_called(row, name) and says_size(size, abs(row.delta(1)))]
    operator, at, places = name.rpartition(" at ")
    together = [row.delta(1) for row in same_way if row.thing.operator and row.thing.operator == operator]
    if at and together and says_size(size, abs(sum(together))):
        check_count(places.split()[0], len(together), "places")
        found.append(sum(together))
    assert found, f"no row {name!r} changed by {size}"
    return found[0]


def _is_called(row: Change, name: str) -> bool:
    called = _FOLDED.get(name.lower(), name)
    ours = (called.lower(), called.lower().removesuffix("s"))
    if row.thing.name == called or row.thing.key in ours or row.thing.label == called:
        return True
    head, cut, tail = called.partition("…")
    return bool(cut) and row.thing.name.startswith(head) and row.thing.name.endswith(tail)


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
