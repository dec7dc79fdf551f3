"""From peak A to peak B, a table whose rows carry their bars: each begins where the one above it ends.

The axis is the change. In every sort order the remainder is one named row, so the last bar ends at B's peak and the
figures add up to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memviz.analysis.comparing.changes import Change, Changes
from memviz.text import Html, cut, exact, joined, rounded, tag
from memviz.ui.compare.controls import NO_MODULES
from memviz.ui.compare.state import LETTERS
from memviz.ui.html.elements import button, number, switch
from memviz.ui.html.labels import swatch
from memviz.units import bytes_text, count_text, delta_text

FEW_ROWS = 8
MOST_ROWS = 200
_LONGEST_KEY = 2000
_CHOICES = {"site": "Site", "category": "Category", "module": "Module", "stack": "Stack", "holder": "Holder"}
_FIRST_HEAD = {**_CHOICES, "site": "Site and operator", "stack": "Stack, innermost first"}
_MANY = {"site": "sites", "category": "categories", "module": "modules", "stack": "stacks", "holder": "holders"}
_NEAR = 45.0
"""In hundredths of the bars' width: two labels closer than this overlap."""


@dataclass(frozen=True)
class WaterfallRow:
    """One row: something that changed, or (without one) all that is not shown."""

    change: Change | None
    before: int
    after: int
    begin: int
    """Start of the bar: the sum of the changes above it."""
    in_before: bool = True
    """There is something of it in A, even if that is 0 bytes."""
    in_after: bool = True
    hidden: int = 0
    """Number of rows summed up, for the remainder."""

    @property
    def delta(self) -> int:
        return self.after - self.before


@dataclass(frozen=True)
class Waterfall:
    by: str
    steps: tuple[WaterfallRow, ...]
    other: int
    peaks: tuple[int, int]
    sort: str
    every_row: bool
    more: int
    """Rows that could be shown besides."""

    @property
    def delta(self) -> int:
        return self.peaks[1] - self.peaks[0]


def waterfall(comparison: Changes, other: int, *, sort: str = "change", every_row: bool = False) -> Waterfall:
    # With more than two traces, some rows are in neither of these.
    held = [row for row in comparison.rows if row.counts[0] or row.counts[other]]
    orders: dict[str, Callable[[Change], tuple[object, ...]]] = {
        "change": lambda row: (-abs(row.delta(other)), row.thing.label, row.thing.key),
        "a": lambda row: (-row.bytes[0], row.thing.label, row.thing.key),
        "b": lambda row: (-row.bytes[other], row.thing.label, row.thing.key),
        "name": lambda row: (row.thing.label.lower(), row.thing.key),
    }
    ordered = sorted(held, key=orders[sort])
    may_show = [row for row in ordered if comparison.by == "category" or sort != "change" or row.delta(other)]
    # A remainder of one row is replaced by the row itself.
    few = FEW_ROWS + 1 if len(ordered) == FEW_ROWS + 1 else FEW_ROWS
    shown = may_show[: MOST_ROWS if every_row else few]
    steps: list[WaterfallRow] = []
    begin = 0
    for row in shown:
        counts = bool(row.counts[0]), bool(row.counts[other])
        steps.append(WaterfallRow(row, row.bytes[0], row.bytes[other], begin, *counts))
        begin += row.delta(other)
    keys = {row.thing.key for row in shown}
    left = [row for row in ordered if row.thing.key not in keys]
    if left:
        before, after = (sum(row.bytes[side] for row in left) for side in (0, other))
        steps.append(WaterfallRow(None, before, after, begin, hidden=len(left)))
    peaks = (comparison.moments[0].live_bytes, comparison.moments[other].live_bytes)
    more = min(len(may_show), MOST_ROWS) - min(len(may_show), few)
    return Waterfall(comparison.by, tuple(steps), other, peaks, sort, every_row, more)


def waterfall_html(
    fall: Waterfall,
    linked: str,
    keys: Sequence[str],
    *,
    why_by: str = "",
    has_modules: bool = True,
    has_holders: bool = False,
) -> Html:
    """`linked` is the timelines' name and `keys` are theirs, baseline first: what a row lights.

    `why_by` says why this grouping was chosen for the visitor, if it was.
    """
    letter = LETTERS[fall.other]
    scale = _ChangeScale(fall)
    rows = [_row(step, fall.by, scale) for step in fall.steps]
    sorts = ((_FIRST_HEAD[fall.by], "name"), ("A", "a"), (letter, "b"), ("Change", "change"))
    heads = [_head(text, sort, chosen=fall.sort == sort) for text, sort in sorts]
    peaks = [number(tag("b", bytes_text(peak)), tag("small", exact(peak))) for peak in fall.peaks]
    delta = number(tag("b", change_text(fall.delta)), tag("small", _exact_change(fall.delta)))
    table = tag(
        "table",
        tag("thead", tag("tr", *heads, tag("th", _ends(fall, letter, scale), class_="mv-fall"))),
        tag("tbody", *rows),
        tag("tfoot", tag("tr", tag("th", "Peak", scope="row"), *peaks, delta, scale.cell())),
        class_="mv-table mv-changes",
    )
    shown = f"Only the first {FEW_ROWS}" if fall.every_row else f"{count_text(fall.more)} more rows"
    more = tag("p", button(shown, "rows", None), class_="mv-take") if fall.more else ""
    title = f"From peak A to peak {letter}"
    verb = "row adds" if len(rows) == 1 else "rows add"
    text = f"{count_text(len(rows))} {verb} up to {_exact_change(fall.delta)}, to the byte"
    disabled = {} if has_modules else NO_MODULES
    choices = {by: label for by, label in _CHOICES.items() if by != "holder" or has_holders}
    said = [tag("h2", title), tag("span", text, class_="mv-soft")]
    said += [tag("span", why_by, class_="mv-why")] if why_by else []
    grouped = switch("by", "Rows by", choices, fall.by, kind="mvt-switch", disabled=disabled)
    above = tag("div", *said, grouped, class_="mv-falltitle")
    lights = {"data_linked": linked, "data_sides": json.dumps(keys), "data_by": fall.by}
    return tag("section", above, table, more, class_="mv-differences", aria_label=title, **lights)


def _head(text: str, sort: str, *, chosen: bool) -> Html:
    # Changes are sorted by magnitude, which is neither of ARIA's two sort orders.
    falls = {"name": "ascending", "change": "other"}.get(sort, "descending")
    arrow = (" ↑" if sort == "name" else " ↓") if chosen else ""
    title = "Largest change first, up or down" if sort == "change" else None
    return tag(
        "th",
        button(text + arrow, "sort", None, data_value=sort, title=title),
        scope="col",
        class_=None if sort == "name" else "mv-number",
        aria_sort=falls if chosen else None,
    )


def _row(step: WaterfallRow, by: str, scale: _ChangeScale) -> Html:
    lights = {}
    if step.change is None:
        text = f"everything else, {count_text(step.hidden)} {_MANY[by] if step.hidden > 1 else by}"
        name = tag("th", text, scope="row", class_="mv-rest")
    else:
        thing, kind = step.change.thing, step.change.kind
        look = "mv-code" if by in ("site", "stack", "module", "holder") else None
        detail = tag("span", cut(thing.detail), class_="mv-code mv-detail") if thing.detail else ""
        words = joined(swatch(kind), tag("span", cut(thing.label), class_=look), detail)
        title = f"{cut(thing.label)} {cut(thing.detail)}\nmostly {kind}. Click keeps it lit."
        name = tag("th", button(words, None, "mv-rowname", aria_pressed="false", title=title), scope="row")
        # Longer keys cannot be highlighted; only generated code has such names.
        if len(thing.key) <= _LONGEST_KEY:
            lights = {"data_compare_by": by, "data_compare_row": thing.key}
    delta = tag("span", change_text(step.delta), title=_exact_change(step.delta)) if step.delta else "0"
    return tag(
        "tr",
        name,
        number(rounded(step.before) if step.in_before else "–"),
        number(rounded(step.after) if step.in_after else "–"),
        number(delta, more=_look(step.delta)),
        scale.cell(step),
        **lights,
    )


def change_text(delta: int) -> str:
    return delta_text(delta) if delta else "0"


def _exact_change(delta: int) -> str:
    return f"{'+' if delta > 0 else '−' if delta < 0 else ''}{exact(abs(delta))}"


def _look(delta: int) -> str:
    return "mv-grew" if delta > 0 else "mv-shrank" if delta < 0 else "mv-soft"


class _ChangeScale:
    """Bytes of change to hundredths of the width; A's peak and B's are always on it."""

    def __init__(self, fall: Waterfall) -> None:
        reached = [0, fall.delta, *(step.begin for step in fall.steps)]
        self.low = min(reached)
        self.span = max(reached) - self.low or 1
        self.ends = self.at(0), self.at(fall.delta)

    def at(self, change: int) -> float:
        return 100 * (change - self.low) / self.span

    def cell(self, step: WaterfallRow | None = None) -> Html:
        def line(look: str, left: float) -> Html:
            return tag("i", class_=look, style=f"left:{left:.3f}%")

        parts = [line("mv-at-a", self.ends[0]), line("mv-at-b", self.ends[1])]
        if step is not None:
            begin, end = self.at(step.begin), self.at(step.begin + step.delta)
            style = f"left:{min(begin, end):.3f}%;width:{abs(end - begin):.3f}%"
            parts += [tag("i", class_=f"mv-fallbar {_look(step.delta)}", style=style)] if step.delta else []
            parts.append(line("mv-join", end))
        return tag("td", tag("div", *parts, class_="mv-falls"), class_="mv-fall")


def _ends(fall: Waterfall, letter: str, scale: _ChangeScale) -> Html:
    """Label both peaks where their lines begin, on two lines if they are close."""
    first, last = scale.ends
    labels = ((f"A {bytes_text(fall.peaks[0])}", first), (f"{letter} {bytes_text(fall.peaks[1])}", last))
    near = abs(first - last) < _NEAR
    spans = [tag("span", text, style=f"right:{100 - at:.3f}%" if at > 50 else f"left:{at:.3f}%") for text, at in labels]
    return tag("div", *spans, class_="mv-ends mv-near" if near else "mv-ends")
