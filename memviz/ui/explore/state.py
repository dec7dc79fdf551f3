"""A visitor's choices in Explore: on the timeline and in the views below it.

Gradio answers several events of a page at once. `LatestInput` repeats an answer if newer input arrived while it was
computed, and numbers the answers, so that the page can drop an older one that arrives last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from memviz.text import tag
from memviz.trace.model import DeviceTrace
from memviz.ui.shell.session import Session, timeline_key

TABS = {"live": "Live set", "segments": "Segments", "events": "Events", "never": "Never freed"}
GROUPINGS = {
    "stack": "Stack", "site": "Site", "category": "Category", "module": "Module", "line": "Line", "holder": "Holder",
}  # fmt: skip
WEIGHTS = {"bytes": "Bytes", "count": "Count", "lifetime": "Bytes × lifetime"}
"""Weights of an allocation in the tables."""
SORTS = ("name", "category", "count", "bytes")
_RISING_FIRST = ("name", "category")
LONGEST_QUERY = 200
LONGEST_PATH = 2000


@dataclass(frozen=True)
class Chosen:
    """On the timeline of one trace. It comes from a browser, so `chosen_of` puts it into its bounds."""

    key: str
    at: int
    pin: int = -1
    """A row of `lifetimes`; -1 for none."""
    range: tuple[int, int] | None = None
    colour: str = "category"
    """Grouping that the timeline's colours show."""


def chosen_of(data: Mapping[str, Any], key: str, device: DeviceTrace) -> Chosen:
    """Return the chosen moment and range. Those of another trace do not apply: this one begins at its peak."""
    peak = timeline(device).peak_event
    if data.get("key") != key:
        return Chosen(key, peak)
    last = len(device.events) - 1
    at = _integer(data.get("at"))
    pin = _integer(data.get("pin"))
    span = data.get("range")
    ends = [_integer(end) for end in span] if isinstance(span, list | tuple) and len(span) == 2 else []
    first, second = (_bounded(end, -1, last) if end is not None else None for end in (ends or (None, None)))
    return Chosen(
        key=key,
        at=peak if at is None else _bounded(at, -1, last),
        pin=pin if pin is not None and 0 <= pin < len(lifetimes(device)) else -1,
        range=(min(first, second), max(first, second)) if first is not None and second is not None else None,
        colour=str(data.get("colour") or "category"),
    )


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bounded(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


def groupings_of(device: DeviceTrace) -> dict[str, str]:
    """Return the groupings that a trace offers; few files have holders."""
    return {by: label for by, label in GROUPINGS.items() if by != "holder" or device.holders is not None}


@dataclass(frozen=True)
class ExploreState:
    tab: str = "live"
    by: str = "stack"
    sort: str = "bytes"
    is_rising: bool = False
    is_long: bool = False
    """More rows are shown than at first."""
    path: str = ""
    """Into the icicle, as `analysis.stack_paths` writes it."""
    path_key: str = ""
    """The trace whose frames the path counts."""
    query: str = ""
    weight: str = "bytes"
    """One of `WEIGHTS`."""

    def path_of(self, key: str) -> str:
        return self.path if self.path_key == key else ""

    def clicked(self, data: Mapping[str, str], key: str) -> ExploreState:
        """After a click on one of the controls of `live_set`; what is no such control changes nothing."""
        value = data.get("value", "")
        match data.get("act"):
            case "tab" if value in TABS:
                return replace(self, tab=value, is_long=False)
            case "by" if value in GROUPINGS:
                return replace(self, by=value, is_long=False)
            case "weight" if value in WEIGHTS:
                # Sort by the chosen weight until the visitor sorts by another column.
                sort = "count" if value == "count" else "bytes"
                return replace(self, weight=value, sort=sort, is_rising=False, is_long=False)
            case "sort" if value in SORTS:
                is_rising = not self.is_rising if value == self.sort else value in _RISING_FIRST
                return replace(self, sort=value, is_rising=is_rising)
            case "zoom":
                # A click zooms to the group that hovering highlights, unless `value` names another one.
                path = data.get("value", data.get("lightGroup", ""))
                return replace(self, path=path[:LONGEST_PATH], path_key=key, by="stack")
            case "more":
                return replace(self, is_long=True)
        return self

    def finding(self, query: str) -> ExploreState:
        return replace(self, query=query[:LONGEST_QUERY].strip())


_ANSWER_NUMBERS = count()
"""Shared by all visitors: drawing the next number is atomic, and Gradio copies each visitor's `Heard`."""


class LatestInput:
    """One a visitor. Each attribute is set by itself, as soon as an event comes in."""

    def __init__(self) -> None:
        self.session = Session()
        self.state = ExploreState()
        self.chosen: Mapping[str, Any] = {}
        """On the timeline."""

    def hear(self, session: Session) -> None:
        """Take over a session that shows the same trace, perhaps renamed.

        An event may carry the session from before its trace was closed; a change of trace is heard by itself."""
        if timeline_key(session.current) == timeline_key(self.session.current):
            self.session = session

    def answer_latest(self, answer: Callable[[Session, ExploreState, Mapping[str, Any]], list[Any]]) -> list[Any]:
        """The answer about what was heard last, and its number as HTML."""
        while True:
            session, state, chosen = self.session, self.state, self.chosen
            # The number is drawn before the last check for newer input, so a higher number is never an older answer.
            made = [*answer(session, state, chosen), tag("i", data_mv_answer=next(_ANSWER_NUMBERS))]
            if session is self.session and state is self.state and chosen is self.chosen:
                return made
