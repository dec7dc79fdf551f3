"""What is compared: the traces a visitor has put side by side, and how they look at them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from memviz.analysis.comparing.align import PEAK, SCALE, START, Alignment, Axis
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.payloads.linked_timelines import LinkedTrace
from memviz.ui.shell.context import Context, timeline_key
from memviz.ui.shell.session import Opened, Session

LETTERS = "ABCDEFGH"
GROUPINGS = ("site", "category", "module", "stack")
"""What the page offers of `alike.GROUPINGS`."""
COLOURS = ("category", "site", "module")
"""What the timelines' colours may mean: what is the same in every trace."""
SORTS = ("change", "a", "b", "name")
_WAYS: dict[str, Alignment] = {choice.kind: choice for choice in (START, SCALE, PEAK)}


@dataclass(frozen=True)
class Side(LinkedTrace):
    opened: Opened


def side_of(letter: str, opened: Opened, trace: Trace, device: DeviceTrace) -> Side:
    return Side(letter, timeline_key(opened), opened.name, trace, device, opened)


def sides_of(context: Context, session: Session) -> tuple[Side, ...]:
    """The baseline first; what was closed to make room is left out."""
    pairs = [(opened, context.of(opened)) for opened in map(session.of, session.compared)]
    known = [(opened, pair) for opened, pair in pairs if opened is not None and pair is not None]
    return tuple(side_of(letter, opened, *pair) for letter, (opened, pair) in zip(LETTERS, known, strict=False))


@dataclass(frozen=True)
class CompareState:
    other: str = ""
    """The store's key of the trace whose peak the waterfall leads to; empty for the second."""
    by: str = ""
    """One of GROUPINGS; empty for what says most."""
    sort: str = "change"
    every_row: bool = False
    way: Alignment = START
    axis: Axis = "event"
    overlay: bool = False
    colour: str = "category"

    def number_of_other(self, sides: tuple[Side, ...]) -> int:
        keys = [side.opened.key for side in sides]
        return max(keys.index(self.other), 1) if self.other in keys else 1


def changed(state: CompareState, data: Mapping[str, str]) -> CompareState:
    """After a click; what the browser says is taken only if it is one of the choices."""
    value = data.get("value", "")
    match data.get("act"):
        case "other":
            return replace(state, other=data.get("key", ""))
        case "by" if value in GROUPINGS:
            return replace(state, by=value, every_row=False)
        case "sort" if value in SORTS:
            return replace(state, sort=value)
        case "rows":
            return replace(state, every_row=not state.every_row)
        case "align":
            return replace(state, way=way_of(value, data.get("number", ""), data.get("name", "")))
        case "axis":
            return replace(state, axis="time" if value == "time" else "event")
        case "colour" if value in COLOURS:
            return replace(state, colour=value)
        case "overlay":
            return replace(state, overlay=value == "overlay")
    return state


def way_of(kind: str, number: str, name: str) -> Alignment:
    """What is no way is the first."""
    if kind == "step" and number.isdigit():
        return Alignment("step", number=int(number))
    if kind == "annotation":
        return Alignment("annotation", name=name)
    return _WAYS.get(kind, START)
