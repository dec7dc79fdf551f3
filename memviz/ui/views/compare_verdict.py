"""What a comparison comes to, in two sentences that claim only what the bytes show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memviz.analysis.changes import SAYS_NOTHING, Change, Changes
from memviz.analysis.compare import Setting
from memviz.analysis.sites import NO_SITE
from memviz.ui.compared import LETTERS
from memviz.ui.views.markup import Html, tag
from memviz.ui.views.words import cut
from memviz.units import bytes_text, count_text

_ALSO_SHARE = 0.15
_ENOUGH = 0.4
"""Of the change: parts that make less of it tell little."""
_MANY = {"parameter", "gradient", "activation", "input", "output", "temporary"}
_KIND_WORDS = {"temporary": "temporary tensors"}
_MOST_NAME = 60
_MOST_SETTINGS = 4
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_PLURALS = {"site": "sites", "category": "categories", "module": "modules", "stack": "stacks"}


@dataclass(frozen=True)
class _Part:
    name: str
    bytes: int
    is_ours: bool = False
    """The name is a word of this page. Names from a program stay as they are written."""
    is_plural: bool = False


def compare_verdict_html(names: Sequence[str], found: Changes, kinds: Changes, settings: Sequence[Setting]) -> Html:
    """`kinds` are the same changes by category, for a change that no few sites make."""
    first, second = compare_sentences(names, found, kinds)
    return tag(
        "header",
        tag("h1", first, " ", tag("span", second), class_="mv-verdict"),
        _settings(settings),
        class_="mv-answer",
    )


def compare_sentences(names: Sequence[str], found: Changes, kinds: Changes) -> tuple[str, str]:
    short = [cut(name, _MOST_NAME) for name in names]
    peaks = [moment.live_bytes for moment in found.moments]
    if len(peaks) > 2:
        return _many(short, peaks)
    change = peaks[1] - peaks[0]
    if not change:
        return f"Both peak at {bytes_text(peaks[0])}.", _balanced(found)
    how = "higher" if change > 0 else "lower"
    first = f"{short[1]} peaks {bytes_text(abs(change))} {how} than {short[0]}."
    return first, _sentence(found, _most_telling(found, kinds, change), change)


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


def _most_telling(found: Changes, kinds: Changes, change: int) -> list[_Part]:
    parts, by_kind = _parts(found, change), _parts(kinds, change)
    enough = sum(abs(part.bytes) for part in parts) >= _ENOUGH * abs(change)
    says_less = sum(abs(part.bytes) for part in by_kind) < _ENOUGH * abs(change)
    return parts if enough or says_less else by_kind


def _parts(found: Changes, change: int) -> list[_Part]:
    """The largest in the direction of the change: one operator's places together, or a row or two."""
    rows = [row for row in found.rows if row.delta(1) * change > 0 and row.thing.key not in SAYS_NOTHING]
    together = _by_operator(found.by, rows)
    if together is not None:
        return [together]
    rows.sort(key=lambda row: -abs(row.delta(1)))
    also = [row for row in rows[1:2] if abs(row.delta(1)) >= _ALSO_SHARE * abs(change)]
    return [_named(row, found.by) for row in (*rows[:1], *also)]


def _by_operator(by: str, rows: Sequence[Change]) -> _Part | None:
    """One operator that makes most of the change in several places says more than the largest place."""
    parts: dict[str, list[int]] = {}
    for row in rows:
        if row.thing.operator:
            parts.setdefault(row.thing.operator, []).append(row.delta(1))
    largest = max(parts, key=lambda name: abs(sum(parts[name])), default="")
    deltas = parts.get(largest, [])
    if len(deltas) < 2 or 2 * abs(sum(deltas)) < abs(sum(row.delta(1) for row in rows)):
        return None
    return _Part(f"{cut(largest, _MOST_NAME)} at {_number(len(deltas))} {_PLURALS[by]}", sum(deltas))


def _named(row: Change, by: str) -> _Part:
    if row.thing.label == NO_SITE.label:
        return _Part("allocations without a stack", row.delta(1), is_ours=True, is_plural=True)
    if by != "category":
        return _Part(cut(f"{row.thing.label} {row.thing.detail}".strip(), _MOST_NAME), row.delta(1))
    kind = row.thing.key
    name = _KIND_WORDS.get(kind, f"{kind}s" if kind in _MANY else kind)
    return _Part(name, row.delta(1), is_ours=True, is_plural=kind in _MANY)


def _sentence(found: Changes, parts: Sequence[_Part], change: int) -> str:
    if not parts:
        return ""
    verb = ("add" if change > 0 else "hold") + ("" if parts[0].is_plural else "s")
    less = " less" if change < 0 else ""
    name = parts[0].name.capitalize() if parts[0].is_ours else parts[0].name
    words = [f"{name} {verb} {bytes_text(abs(parts[0].bytes))}{less}"]
    words += [f"{part.name} {bytes_text(abs(part.bytes))}" for part in parts[1:]]
    named = sum(part.bytes for part in parts)
    others_moved = sum(abs(row.delta(1)) for row in found.rows) > abs(named)
    return f"{', '.join(words)}{_rest(change - named, change, others_moved=others_moved)}."


def _rest(rest: int, change: int, *, others_moved: bool) -> str:
    if not rest:
        return ", the rest evens out" if others_moved else "; all else is equal"
    size = bytes_text(abs(rest))
    if change > 0:
        return f", the rest {size}" if rest > 0 else f", the rest gives {size} back"
    return f", the rest {size}" if rest < 0 else f", the rest {size} more"


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
