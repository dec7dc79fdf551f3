"""Every part of the page that shows a comparison, before and after there are two traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memviz.analysis.comparing.align import START, list_alignments
from memviz.analysis.comparing.changes import (
    Changes,
    ComparisonSummary,
    Setting,
    best_grouping,
    changes,
    scores,
    setting_differences,
)
from memviz.analysis.comparing.matching import has_holders, has_modules
from memviz.analysis.lifetimes import has_times
from memviz.figures.colouring import colouring
from memviz.results.comparison import comparison_headline
from memviz.results.headline import Headline
from memviz.text import Html, cut, tag
from memviz.ui.compare.controls import controls_html
from memviz.ui.compare.scoreboard import Board, add_button, scoreboard_html
from memviz.ui.compare.state import LETTERS, CompareState, Side, compare_query, sides_of
from memviz.ui.compare.waterfall import waterfall, waterfall_html
from memviz.ui.html.elements import button
from memviz.ui.html.labels import headline_html
from memviz.ui.payloads.timelines import linked_name, linked_values, shared_hues
from memviz.ui.shell.session import Context, Opened, Session

SAMPLE = "checkpointing"
_MOST_OFFERED = 24


def compare_empty_html(opened: Sequence[Opened], compared: Sequence[str]) -> Html:
    """Return the empty tab: which trace is missing, and which open ones could be added."""
    have = [trace for trace in opened if trace.key in compared]
    others = [trace for trace in opened if trace.key not in compared][:_MOST_OFFERED]
    title = f"Add a trace to compare {cut(have[0].name, 60)} with." if have else "Choose two traces to compare."
    text = (
        "Drop another snapshot on the left, such as the same program with another setting. "
        "Compare two to eight on one scale, with exact differences."
    )
    also = [add_button(trace, cut(trace.name, 48)) for trace in others]
    return tag(
        "div",
        tag("h1", title, class_="mv-verdict"),
        tag("p", text, class_="mv-lead"),
        tag("p", tag("span", "Open already"), *also, class_="mv-also") if others else "",
        class_="mv-compare-empty",
    )


def offer_html() -> Html:
    """One button that shows how it looks."""
    sample = button("Open a pair of samples", "sample", "mv-primary", data_sample=SAMPLE)
    label = "What does checkpointing save? The same steps without it and with it."
    return tag("p", sample, tag("span", label, class_="mv-soft"), class_="mv-offer")


_MOST_SETTINGS = 4


def compare_verdict_html(headline: Headline, settings: Sequence[Setting]) -> Html:
    """With the allocator settings that differ next to the figures, since they change reserved memory."""
    differ = [setting for setting in settings if setting.is_known_to_differ]
    texts = []
    for setting in differ[:_MOST_SETTINGS]:
        # expandable_segments: False (A, B), True (C)
        holders: dict[str, list[str]] = {}
        for letter, value in zip(LETTERS, setting.values, strict=False):
            if value is not None:
                holders.setdefault(cut(value, 80) or "not set", []).append(letter)
        values = [f"{value} ({', '.join(who)})" for value, who in holders.items()]
        texts.append(f"{cut(setting.name)}: {', '.join(values)}")
    more = len(differ) - _MOST_SETTINGS
    rest = f"; and {more} more" if more > 0 else ""
    note = tag("p", tag("b", "Their allocator settings differ."), f" {'; '.join(texts)}{rest}.", class_="mv-note")
    return tag("header", headline_html(headline), note if differ else "", class_="mv-answer")


_CATEGORY_FIRST = "by category, because most of the difference is at sites that only one of them has"


def comparison_parts(context: Context, session: Session, asked: CompareState) -> list[Any]:
    """Return the empty state, offer, top, controls, one timeline per letter, overlay, differences and the link."""
    sides = sides_of(context, session)
    if len(sides) < 2:
        text = compare_empty_html(session.opened, session.compared)
        return [text, offer_html(), "", "", *[{}] * len(LETTERS), {}, "", ""]
    other, pairs = asked.number_of_other(sides), [side.pair for side in sides]
    best = best_grouping(pairs, other)
    # Other traces may not have the step or annotation that the last ones were aligned by.
    state = asked if asked.way in list_alignments(pairs) else replace(asked, way=START)
    comparison = TabComparison(sides, state, other, best, changes(pairs, state.by or best))
    timelines = linked_values(sides, state.way, state.axis, colour=state.colour)
    timelines += [{}] * (len(LETTERS) - len(timelines))
    link = tag("i", data_mv_query=compare_query(sides, asked))
    above = ["", "", comparison.top(session), comparison.controls()]
    return [*above, *timelines, overlay_value(sides, state), comparison.differences(), link]


@dataclass(frozen=True)
class TabComparison:
    """Shared values of the tab's parts, computed once per drawing."""

    sides: tuple[Side, ...]
    state: CompareState
    other: int
    best: str
    """The grouping that explains most of the difference."""
    changes: Changes

    def top(self, session: Session) -> str:
        pairs = [side.pair for side in self.sides]
        main = self.changes if self.changes.by == self.best else changes(pairs, self.best)
        settings = setting_differences([side.trace for side in self.sides])
        also = tuple(trace for trace in session.opened if trace.key not in session.compared)
        board = Board(self.sides, scores(pairs), self._order(), self.other, also)
        headline = comparison_headline(ComparisonSummary(main, pairs), [side.name for side in self.sides])
        return compare_verdict_html(headline, settings) + scoreboard_html(board)

    def controls(self) -> str:
        pairs = [side.pair for side in self.sides]
        return controls_html(
            self.state,
            scores(pairs),
            self._order(),
            list_alignments(pairs),
            names=[side.name for side in self.sides],
            other=self.other,
            has_times=all(has_times(side.device) for side in self.sides),
            has_modules=any(map(has_modules, pairs)),
            hues=shared_hues(self.sides, self.state.colour),
        )

    def differences(self) -> str:
        fall = waterfall(self.changes, self.other, sort=self.state.sort, every_row=self.state.every_row)
        return waterfall_html(
            fall,
            linked_name(self.sides),
            [side.key for side in self.sides],
            why_by=_CATEGORY_FIRST if not self.state.by and self.best == "category" else "",
            has_modules=any(has_modules(side.pair) for side in self.sides),
            has_holders=any(has_holders(side.pair) for side in self.sides),
        )

    def _order(self) -> tuple[str, ...]:
        """Categories from the bottom up, as the timelines stack them."""
        return colouring(*self.sides[0].pair).labels


def overlay_value(sides: tuple[Side, ...], state: CompareState) -> dict[str, Any]:
    names = ", ".join(f"{side.letter} {side.name}" for side in sides)
    return {
        "linked": linked_name(sides),
        "count": len(sides),
        "other": state.number_of_other(sides),
        "shown": state.overlay,
        "label": f"Live bytes of {names} overlaid. The table below has the same figures.",
    }
