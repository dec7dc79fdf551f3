"""What a visitor has chosen in Explore: on the timeline, and of the views below it. Plain and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from memviz.trace.model import DeviceTrace

TABS = {"live": "Live set", "segments": "Segments", "events": "Events", "never": "Never freed"}
GROUPINGS = {"stack": "Stack", "site": "Site", "category": "Category", "module": "Module", "line": "Line"}
WEIGHTS = {"bytes": "Bytes", "count": "Count", "lifetime": "Bytes × lifetime"}
"""What an allocation counts for."""
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
    """What the timeline's colours mean."""


def chosen_of(data: Mapping[str, Any], key: str, device: DeviceTrace) -> Chosen:
    """What was chosen on another trace says nothing about this one: it begins at its peak."""
    peak = timeline(device).peak_event
    if data.get("key") != key:
        return Chosen(key, peak)
    last = len(device.events) - 1
    at = _whole(data.get("at"))
    pin = _whole(data.get("pin"))
    span = data.get("range")
    ends = [_whole(end) for end in span] if isinstance(span, list | tuple) and len(span) == 2 else []
    first, second = (_bounded(end, -1, last) if end is not None else None for end in (ends or (None, None)))
    return Chosen(
        key=key,
        at=peak if at is None else _bounded(at, -1, last),
        pin=pin if pin is not None and 0 <= pin < len(lifetimes(device)) else -1,
        range=(min(first, second), max(first, second)) if first is not None and second is not None else None,
        colour=str(data.get("colour") or "category"),
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _bounded(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


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
                # What is counted comes first, until somebody sorts otherwise.
                sort = "count" if value == "count" else "bytes"
                return replace(self, weight=value, sort=sort, is_rising=False, is_long=False)
            case "sort" if value in SORTS:
                return replace(self, sort=value, is_rising=self._turned(value))
            case "zoom":
                # What a box lights is also where it leads, unless it says otherwise.
                path = data.get("value", data.get("lightGroup", ""))
                return replace(self, path=path[:LONGEST_PATH], path_key=key, by="stack")
            case "more":
                return replace(self, is_long=True)
        return self

    def _turned(self, sort: str) -> bool:
        return not self.is_rising if sort == self.sort else sort in _RISING_FIRST

    def finding(self, query: str) -> ExploreState:
        return replace(self, query=query[:LONGEST_QUERY].strip())
