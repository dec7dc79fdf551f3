"""The HTML of a comparison for one view of it, for the page and for the files that are saved from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memviz.analysis.comparing.align import START, ways
from memviz.analysis.comparing.changes import Changes, Telling, changes, says_most
from memviz.analysis.comparing.match_allocations import has_modules
from memviz.analysis.comparing.scores import scores
from memviz.analysis.comparing.setting_differences import setting_differences
from memviz.analysis.live import has_times
from memviz.figures.colouring import colouring
from memviz.headlines.compare import compare
from memviz.ui.compare.compare_state import CompareView, Side, linked_name
from memviz.ui.compare.controls import Controls, controls_html
from memviz.ui.compare.scoreboard import Board, scoreboard_html
from memviz.ui.compare.verdict import compare_verdict_html
from memviz.ui.compare.waterfall import Surroundings, waterfall, waterfall_html
from memviz.ui.shell.session import Session

_CATEGORY_FIRST = "by category, because most of it sits in sites that only one of them has"


@dataclass(frozen=True)
class Compared:
    """What several parts of the tab need, computed once a drawing."""

    sides: tuple[Side, ...]
    view: CompareView
    other: int
    best: str
    """The grouping that says most."""
    found: Changes

    @staticmethod
    def of(sides: tuple[Side, ...], view: CompareView) -> Compared:
        pairs = [side.pair for side in sides]
        other = view.number_of_other(sides)
        best = says_most(pairs, other)
        return Compared(sides, _sound(view, sides), other, best, changes(pairs, view.by or best))

    def top(self, session: Session) -> str:
        pairs = [side.pair for side in self.sides]
        main = self.found if self.found.by == self.best else changes(pairs, self.best)
        settings = setting_differences([side.trace for side in self.sides])
        also = tuple(each for each in session.opened if each.key not in session.compared)
        board = Board(self.sides, scores(pairs), self._order(), self.other, also)
        names = [side.name for side in self.sides]
        return compare_verdict_html(compare(Telling(main, pairs), names), settings) + scoreboard_html(board)

    def controls(self) -> str:
        pairs = [side.pair for side in self.sides]
        timed = all(has_times(side.device) for side in self.sides)
        names = tuple(side.name for side in self.sides)
        return controls_html(
            Controls(
                self.view,
                scores(pairs),
                self._order(),
                ways(pairs),
                has_times=timed,
                names=names,
                other=self.other,
            )
        )

    def differences(self) -> str:
        fall = waterfall(self.found, self.other, sort=self.view.sort, every_row=self.view.every_row)
        chosen_for_them = not self.view.by and self.best == "category"
        around = Surroundings(
            linked_name(self.sides),
            tuple(side.key for side in self.sides),
            why_by=_CATEGORY_FIRST if chosen_for_them else "",
            has_modules=any(has_modules(side.pair) for side in self.sides),
        )
        return waterfall_html(fall, around)

    def _order(self) -> tuple[str, ...]:
        """Of the categories from the bottom up, as the timelines stack them."""
        return colouring(*self.sides[0].pair).labels


def _sound(view: CompareView, sides: tuple[Side, ...]) -> CompareView:
    """Another set of traces may not have the step or annotation that the last one was aligned by."""
    return view if view.way in ways([side.pair for side in sides]) else replace(view, way=START)
