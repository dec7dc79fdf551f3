"""What is compared: the traces a visitor has put side by side, and how they look at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from memviz.analysis.comparing.align import PEAK, SCALE, START, Axis, Way
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.shell.context import Context, timeline_key
from memviz.ui.shell.session import Opened, Session

LETTERS = "ABCDEFGH"
GROUPINGS = ("site", "category", "module", "stack")
"""What the page offers of `alike.GROUPINGS`."""
SORTS = ("change", "a", "b", "name")
_WAYS: dict[str, Way] = {each.kind: each for each in (START, SCALE, PEAK)}


@dataclass(frozen=True)
class Side:
    letter: str
    opened: Opened
    trace: Trace
    device: DeviceTrace

    @property
    def key(self) -> str:
        """Of its timeline."""
        return timeline_key(self.opened)

    @property
    def name(self) -> str:
        return self.opened.name

    @property
    def pair(self) -> tuple[Trace, DeviceTrace]:
        return self.trace, self.device


def sides_of(context: Context, session: Session) -> tuple[Side, ...]:
    """The baseline first; what was closed to make room is left out."""
    found = [(opened, context.of(opened)) for opened in map(session.of, session.compared)]
    known = [(opened, pair) for opened, pair in found if opened is not None and pair is not None]
    return tuple(Side(letter, opened, *pair) for letter, (opened, pair) in zip(LETTERS, known, strict=False))


def linked_name(sides: tuple[Side, ...]) -> str:
    """What their timelines share. Another set of traces has another name, so that all begin anew together."""
    return blake2b("\n".join(each.key for each in sides).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class CompareView:
    other: str = ""
    """The store's key of the trace whose peak the waterfall leads to; empty for the second."""
    by: str = ""
    """One of GROUPINGS; empty for what says most."""
    sort: str = "change"
    every_row: bool = False
    way: Way = START
    axis: Axis = "event"
    overlay: bool = False

    def number_of_other(self, sides: tuple[Side, ...]) -> int:
        keys = [each.opened.key for each in sides]
        return max(keys.index(self.other), 1) if self.other in keys else 1


def changed(view: CompareView, data: Mapping[str, str]) -> CompareView:
    """After a click; what the browser says is taken only if it is one of the choices."""
    value = data.get("value", "")
    match data.get("act"):
        case "other":
            return replace(view, other=data.get("key", ""))
        case "by" if value in GROUPINGS:
            return replace(view, by=value, every_row=False)
        case "sort" if value in SORTS:
            return replace(view, sort=value)
        case "rows":
            return replace(view, every_row=not view.every_row)
        case "align":
            return replace(view, way=way_of(value, data.get("number", ""), data.get("name", "")))
        case "axis":
            return replace(view, axis="time" if value == "time" else "event")
        case "overlay":
            return replace(view, overlay=value == "overlay")
    return view


def way_of(kind: str, number: str, name: str) -> Way:
    """What is no way is the first."""
    if kind == "step" and number.isdigit():
        return Way("step", number=int(number))
    if kind == "annotation":
        return Way("annotation", name=name)
    return _WAYS.get(kind, START)
