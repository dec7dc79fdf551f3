"""Every possible sentence of Compare, checked against the peaks and the rows below it."""

import re
from collections.abc import Sequence

import numpy as np

from memviz.analysis.callstacks.sites import NO_SITE
from memviz.analysis.comparing.changes import Change, changes
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.timeline import timeline
from memviz.results.headline import Headline, letter
from memviz.trace.model import Action
from tests.results.claims import (
    COUNT,
    NUMBERS,
    SIZE,
    Form,
    Read,
    check_count,
    check_english,
    check_size,
    holds,
    says_size,
)

_WORDS = "|".join(NUMBERS)
ANSWERS = (
    Form("both", rf"Both (?P<verb>peak|end) at (?P<peak>{SIZE})\."),
    Form("all", rf"All (?P<count>{_WORDS}|{COUNT}) (?P<verb>peak|end) at (?P<peak>{SIZE})\."),
    Form("pair", rf"(?P<second>.+) (?P<verb>peak|end)s (?P<size>{SIZE}) (?P<how>higher|lower) than (?P<first>.+)\."),
    Form(
        "many",
        rf"(?P<best>.+) (?P<verb>peak|end)s lowest of the (?P<count>{_WORDS}|{COUNT}), at (?P<peak>{SIZE})"
        rf"(?:, like (?:(?P<twins>{_WORDS}|{COUNT}) others|(?P<twin>.+?)))?(?:, (?P<size>{SIZE}) less than A)?\.",
    ),
)
REASONS = (
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
    holds(said.answer, ANSWERS, lambda claims: _answer(sides, claims, names))
    ends = _ONLY_ENDS.fullmatch(said.reason)
    told, still = (ends[1], ends[2]) if ends else (said.reason, "")
    _check_ends(sides, names, still)
    told = _without_refusals(sides, names, told.rstrip())
    holds(told, REASONS, lambda claims: _reason(sides, claims, names))
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


def _answer(sides: Sequence[Pair], claims: Read, names: Sequence[str]) -> None:
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


def _reason(sides: Sequence[Pair], claims: Read, names: Sequence[str]) -> None:
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
