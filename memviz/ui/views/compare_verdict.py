"""What a comparison comes to, in two sentences that claim only what the bytes show."""

from __future__ import annotations

from collections.abc import Sequence

from memviz.analysis.alike import BEFORE_RECORDING
from memviz.analysis.changes import Change, Changes
from memviz.analysis.compare import Setting
from memviz.ui.compared import LETTERS
from memviz.ui.views.markup import Html, tag
from memviz.ui.views.words import cut
from memviz.units import bytes_text, count_text

_ALSO_SHARE = 0.15
_MANY = {"parameter", "gradient", "activation", "input", "output", "temporary"}
_KIND_WORDS = {"temporary": "temporary tensors", BEFORE_RECORDING: "what was there before the recording"}
_MOST_NAME = 60
_MOST_SETTINGS = 4
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_PLURALS = {"site": "sites", "category": "categories", "module": "modules", "stack": "stacks"}


def compare_verdict_html(names: Sequence[str], found: Changes, settings: Sequence[Setting]) -> Html:
    first, second = compare_sentences(names, found)
    return tag(
        "header",
        tag("h1", first, " ", tag("span", second), class_="mv-verdict"),
        _settings(settings),
        class_="mv-answer",
    )


def compare_sentences(names: Sequence[str], found: Changes) -> tuple[str, str]:
    short = [cut(name, _MOST_NAME) for name in names]
    peaks = [moment.live_bytes for moment in found.moments]
    if len(peaks) > 2:
        return _many(short, peaks)
    if peaks[0] == peaks[1]:
        return f"Both peak at {bytes_text(peaks[0])}.", _balanced(found)
    change = peaks[1] - peaks[0]
    how = "higher" if change > 0 else "lower"
    return f"{short[1]} peaks {bytes_text(abs(change))} {how} than {short[0]}.", _parts(found, change)


def _many(names: Sequence[str], peaks: Sequence[int]) -> tuple[str, str]:
    if len(set(peaks)) == 1:
        return f"All {len(peaks)} peak at {bytes_text(peaks[0])}.", ""
    low, high = min(peaks), max(peaks)
    best, worst = names[peaks.index(low)], names[peaks.index(high)]
    first = f"{best} peaks lowest of the {_number(len(peaks))}, at {bytes_text(low)}"
    first += "." if low == peaks[0] else f", {bytes_text(peaks[0] - low)} less than A."
    if high == peaks[0]:
        return first, f"A, {names[0]}, is the highest."
    return first, f"The highest, {worst}, takes {bytes_text(high - peaks[0])} more than A."


def _balanced(found: Changes) -> str:
    """What grew and what shrank, where the sum of it is nothing."""
    deltas = [row.delta(1) for row in found.rows if row.delta(1)]
    grown, shrunk = [each for each in deltas if each > 0], [each for each in deltas if each < 0]
    if not deltas:
        return f"Every {found.by} holds as many bytes in both."
    words = _PLURALS[found.by] if len(grown) > 1 else found.by
    by_how_much = bytes_text(sum(grown))
    return (
        f"{_number(len(grown)).capitalize()} {words} grew by {by_how_much}, {_number(len(shrunk))} shrank by as much."
    )


def _parts(found: Changes, change: int) -> str:
    """The largest parts in the direction of the change, and what all others add or give back."""
    together = _by_operator(found, change) if found.by in ("site", "stack") else None
    if together:
        name, count, part = together
        places = f"{_number(count)} {_PLURALS[found.by]}"
        return _sentence(found, [(f"{name} at {places}", False, part)], change)
    rows = sorted((row for row in found.rows if row.delta(1) * change > 0), key=lambda row: -abs(row.delta(1)))
    shown = rows[:1] + [row for row in rows[1:2] if abs(row.delta(1)) >= _ALSO_SHARE * abs(change)]
    return _sentence(found, [(*_named(row, found.by), row.delta(1)) for row in shown], change)


def _by_operator(found: Changes, change: int) -> tuple[str, int, int] | None:
    """One operator that makes most of the change in several places: then it says more than the largest place."""
    parts: dict[str, list[int]] = {}
    for row in found.rows:
        if row.delta(1) * change > 0 and row.thing.detail:
            parts.setdefault(row.thing.detail, []).append(row.delta(1))
    gross = sum(row.delta(1) for row in found.rows if row.delta(1) * change > 0)
    largest = max(parts.items(), key=lambda each: abs(sum(each[1])), default=None)
    if largest is None or len(largest[1]) < 2 or 2 * abs(sum(largest[1])) < abs(gross):
        return None
    return cut(largest[0], _MOST_NAME), len(largest[1]), sum(largest[1])


def _named(row: Change, by: str) -> tuple[str, bool]:
    """Its name, and whether that is a plural."""
    if by == "category":
        kind = row.thing.key
        name = _KIND_WORDS.get(kind, f"{kind}s" if kind in _MANY else kind)
        return name, kind in _MANY
    return cut(f"{row.thing.label} {row.thing.detail}".strip(), _MOST_NAME), False


def _sentence(found: Changes, parts: Sequence[tuple[str, bool, int]], change: int) -> str:
    if not parts:
        return ""
    name, plural, first = parts[0]
    verb = ("add" if change > 0 else "hold") + ("" if plural else "s")
    less = " less" if change < 0 else ""
    words = [f"{_capital(name)} {verb} {bytes_text(abs(first))}{less}"]
    words += [f"{other} {bytes_text(abs(part))}" for other, _, part in parts[1:]]
    rest = change - sum(part for *_, part in parts)
    gross = sum(abs(row.delta(1)) for row in found.rows)
    others_moved = gross > sum(abs(part) for *_, part in parts)
    return f"{', '.join(words)}{_rest(rest, change, others_moved=others_moved)}."


def _rest(rest: int, change: int, *, others_moved: bool) -> str:
    if not rest:
        return ", the rest evens out" if others_moved else "; all else is equal"
    size = bytes_text(abs(rest))
    if change > 0:
        return f", the rest {size}" if rest > 0 else f", the rest gives {size} back"
    return f", the rest {size}" if rest < 0 else f", the rest {size} more"


def _capital(name: str) -> str:
    """Of our own words only: names from a program stay as they are written."""
    return name.capitalize() if name.split(" ")[0].isalpha() and name.islower() else name


def _number(count: int) -> str:
    return _NUMBERS[count] if count < len(_NUMBERS) else count_text(count)


def _settings(settings: Sequence[Setting]) -> Html | str:
    """Allocator settings change what is reserved, so a difference between them belongs beside the figures."""
    differ = [each for each in settings if len(set(each.values) - {None}) > 1]
    if not differ:
        return ""
    words = "; ".join(map(_setting, differ[:_MOST_SETTINGS]))
    more = len(differ) - _MOST_SETTINGS
    rest = f"; and {more} more" if more > 0 else ""
    return tag("p", tag("b", "Their allocator settings differ."), f" {words}{rest}.", class_="mv-note")


def _setting(setting: Setting) -> str:
    """expandable_segments: False (A, B), True (C)."""
    holders: dict[str, list[str]] = {}
    for letter, value in zip(LETTERS, setting.values, strict=False):
        if value is not None:
            holders.setdefault(cut(value, 80) or "not set", []).append(letter)
    values = [f"{value} ({', '.join(who)})" for value, who in holders.items()]
    return f"{cut(setting.name)}: {', '.join(values)}"
