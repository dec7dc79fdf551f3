"""Compare in a saved page: every view of it that the page's controls lead to, worked out beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from memviz.analysis.comparing.align import Alignment, Axis, list_alignments
from memviz.analysis.comparing.changes import Changes, best_grouping, changes
from memviz.analysis.comparing.matching import Pair, has_holders, has_modules, match_allocations
from memviz.text import Html
from memviz.ui.compare.answer import TabComparison, overlay_value
from memviz.ui.compare.state import GROUPINGS, SORTS, CompareState, Side, changed
from memviz.ui.payloads.timelines import alignments, linked_values, placed
from memviz.ui.saved.document import SavedLinks, SavedPanel, SizeBudget, State
from memviz.ui.saved.timeline import light, light_by
from memviz.ui.shell.session import Session

_MOST_WAYS = 12
_MOST_WITH_EVERY_SORT = 3
"""Sides. With more, rows are sorted by change only."""
FIELDS = ("other", "rows-by", "sort", "every-row", "align", "axis", "overlay")


@dataclass(frozen=True)
class _Choices:
    """Which words each field of the state may have."""

    sides: tuple[Side, ...]
    by: tuple[str, ...]
    sorts: tuple[str, ...]
    ways: tuple[Alignment, ...]
    axes: tuple[Axis, ...]
    rows: tuple[bool, ...]
    """The selectable values of "show every row"."""
    found: Mapping[str, Changes]
    best: Mapping[int, str]
    """The best grouping, by the number of the trace that A is compared with."""

    def compared(self, view: CompareState) -> TabComparison:
        other = view.number_of_other(self.sides)
        return TabComparison(self.sides, view, other, self.best[other], self.found[view.by])

    @property
    def others(self) -> range:
        return range(1, len(self.sides))

    def state_of(self, view: CompareState) -> State | None:
        """None where nothing of the kind is saved."""
        other = view.number_of_other(self.sides)
        is_saved = (view.by in self.by, view.sort in self.sorts, view.way in self.ways, view.axis in self.axes)
        if not all(is_saved) or view.every_row not in self.rows:
            return None
        every_row, overlay = ("yes" if truth else "no" for truth in (view.every_row, view.overlay))
        texts = (str(other), view.by, view.sort, every_row, str(self.ways.index(view.way)), view.axis, overlay)
        return dict(zip(FIELDS, texts, strict=True))

    def words_of(self, view: CompareState, fields: tuple[str, ...]) -> tuple[str, ...]:
        state = self.state_of(view)
        assert state is not None
        return tuple(state[field] for field in fields)

    def links(self, view: CompareState) -> SavedLinks:
        def follow(data: Mapping[str, str]) -> State | None:
            if data.get("act") not in ("other", "by", "sort", "rows", "align", "axis", "overlay"):
                return None
            before, after = self.state_of(view), self.state_of(changed(view, data))
            if before is None or after is None:
                return None
            return {field: word for field, word in after.items() if before[field] != word}

        return SavedLinks(follow)


@dataclass(frozen=True)
class SavedComparison:
    panels: list[SavedPanel]
    start: State
    data: dict[str, Any]
    lights: list[dict[str, Any]]
    """For each side, the allocations that the rows of each grouping highlight."""


def saved_comparison(sides: tuple[Side, ...], by: str, budget: SizeBudget, *, has_times: bool) -> SavedComparison:
    pairs = [side.pair for side in sides]
    needs = {"module": has_modules, "holder": has_holders}
    groupings = tuple(by for by in GROUPINGS if by not in needs or any(map(needs[by], pairs)))
    choices = _Choices(
        sides,
        by=groupings,
        sorts=SORTS if budget.every_row and len(sides) <= _MOST_WITH_EVERY_SORT else SORTS[:1],
        ways=list_alignments(pairs)[:_MOST_WAYS],
        axes=("event", "time") if has_times else ("event",),
        rows=(False, True) if budget.every_row else (False,),
        found={grouping: changes(pairs, grouping) for grouping in groupings},
        best={other: best_grouping(pairs, other) for other in range(1, len(sides))},
    )
    first = CompareState(by=by if by in groupings else choices.best[1])
    start = choices.state_of(first)
    assert start is not None
    differences, rows = _differences(choices)
    panels = [_top(choices), _controls(choices, first), differences]
    data = {
        "sides": [{**value, "align": {}} for value in linked_values(sides, first.way, first.axis)],
        "aligned": [
            [placed(aligned, i) for i in range(len(sides))]
            for aligned in (alignments(sides, way) for way in choices.ways)
        ],
        "overlay": overlay_value(sides, first),
    }
    return SavedComparison(panels, start, data, _lights(pairs, rows))


def _view(choices: _Choices, view: CompareState, other: int) -> CompareState:
    return replace(view, other=choices.sides[other].opened.key)


def _top(choices: _Choices) -> SavedPanel:
    session = Session(compared=tuple(side.opened.key for side in choices.sides))
    views: dict[tuple[str, ...], Html] = {}
    for other in choices.others:
        view = _view(choices, CompareState(by=choices.best[other]), other)
        with choices.links(view):
            views[(str(other),)] = Html(choices.compared(view).top(session))
    return SavedPanel("compare-top", ("other",), views)


def _controls(choices: _Choices, first: CompareState) -> SavedPanel:
    fields = ("other", "align", "axis", "overlay")
    views: dict[tuple[str, ...], Html] = {}
    for other, way, axis, overlay in product(choices.others, choices.ways, choices.axes, (False, True)):
        view = replace(_view(choices, first, other), way=way, axis=axis, overlay=overlay)
        with choices.links(view):
            views[choices.words_of(view, fields)] = Html(choices.compared(view).controls())
    return SavedPanel("compare-bar", fields, views)


def _differences(choices: _Choices) -> tuple[SavedPanel, dict[str, set[str]]]:
    """Return the tables, and the rows in them by grouping."""
    fields = ("other", "rows-by", "sort", "every-row")
    views: dict[tuple[str, ...], Html] = {}
    rows: dict[str, set[str]] = {}
    for other, by, sort, every_row in product(choices.others, choices.by, choices.sorts, choices.rows):
        view = _view(choices, CompareState(by=by, sort=sort, every_row=every_row), other)
        with choices.links(view) as links:
            views[choices.words_of(view, fields)] = Html(choices.compared(view).differences())
        for grouping, row in links.compared:
            rows.setdefault(grouping, set()).add(row)
    return SavedPanel("differences", fields, views), rows


def _lights(pairs: Sequence[Pair], rows: Mapping[str, set[str]]) -> list[dict[str, Any]]:
    """Return the highlights of the visible rows. Categories need none: the timeline has them."""
    lights: list[dict[str, Any]] = [{} for _ in pairs]
    for by in (by for by in rows if by not in ("category", "module")):
        same = match_allocations(pairs, by)
        keys = [*(thing.key for thing in same.things), ""]
        for number in range(len(pairs)):
            # Stacks are counted from the one that stands for no stack, and one more stands for many allocations.
            counted = np.append(np.roll(same.of_code[number], 1), -1)
            lights[number][by] = light(counted, keys.__getitem__, rows[by])
    for pair, of_pair in zip(pairs, lights, strict=True):
        of_pair |= {"module": light_by(*pair, "module", rows["module"])} if "module" in rows else {}
    return lights
