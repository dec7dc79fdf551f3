"""The traces a visitor compares and how they look at them, and links that restore that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from memviz.analysis.comparing.align import PEAK, SCALE, START, Alignment, Axis
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.payloads.timelines import LinkedTrace
from memviz.ui.shell.session import Context, Opened, Session, find_by_link, link_name, timeline_key

LETTERS = "ABCDEFGH"
GROUPINGS = ("site", "category", "module", "stack", "holder")
"""Groupings that the page offers."""
COLOURS = ("category", "site", "module")
"""Groupings by which the timelines can be coloured: those that match between traces."""
SORTS = ("change", "a", "b", "name")
_WAYS: dict[str, Alignment] = {choice.kind: choice for choice in (START, SCALE, PEAK)}


@dataclass(frozen=True)
class Side(LinkedTrace):
    opened: Opened


def side_of(letter: str, opened: Opened, trace: Trace, device: DeviceTrace) -> Side:
    return Side(letter, timeline_key(opened), opened.name, trace, device, opened)


def sides_of(context: Context, session: Session) -> tuple[Side, ...]:
    """Return the compared traces, the baseline first; traces closed since are left out."""
    pairs = [(opened, context.of(opened)) for opened in map(session.of, session.compared)]
    known = [(opened, pair) for opened, pair in pairs if opened is not None and pair is not None]
    return tuple(side_of(letter, opened, *pair) for letter, (opened, pair) in zip(LETTERS, known, strict=False))


@dataclass(frozen=True)
class CompareState:
    other: str = ""
    """The store's key of the trace whose peak the waterfall leads to; empty for the second."""
    by: str = ""
    """One of GROUPINGS; empty for the one that explains most."""
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
    """Return the state after a click; unknown values from the browser change nothing."""
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
            return replace(state, way=alignment_of(value, data.get("number", ""), data.get("name", "")))
        case "axis":
            return replace(state, axis="time" if value == "time" else "event")
        case "colour" if value in COLOURS:
            return replace(state, colour=value)
        case "overlay":
            return replace(state, overlay=value == "overlay")
    return state


def alignment_of(kind: str, number: str, name: str) -> Alignment:
    """Return the alignment; unknown ones become the first."""
    if kind == "step" and number.isdigit():
        return Alignment("step", number=int(number))
    if kind == "annotation":
        return Alignment("annotation", name=name)
    return _WAYS.get(kind, START)


TAB = "compare"
_LONGEST_LINK = 200
OpenSample = Callable[[Session, str], Session | None]
"""A session with the sample of that name open in it; None where there is no such sample."""


def compare_query(sides: tuple[Side, ...], state: CompareState) -> str:
    """Return the link's parameters: those that differ from the initial state."""
    answer = {"tab": TAB, "traces": ",".join(link_name(side.opened) for side in sides)}
    other = state.number_of_other(sides)
    if other > 1:
        answer["other"] = LETTERS[other]
    if state.by:
        answer["by"] = state.by
    if state.sort != CompareState().sort:
        answer["sort"] = state.sort
    if state.way != START:
        answer["align"] = state.way.kind
        answer |= {"step": str(state.way.number)} if state.way.kind == "step" else {}
        answer |= {"name": state.way.name} if state.way.name else {}
    if state.axis != "event":
        answer["axis"] = state.axis
    if state.colour != CompareState().colour:
        answer["colour"] = state.colour
    if state.overlay:
        answer["overlay"] = "1"
    return urlencode(answer)


def compare_session(session: Session, query: Mapping[str, str], open_sample: OpenSample) -> Session | None:
    """Return the session with the link's traces compared; None if one of them is not open."""
    keys: list[str] = []
    for name in query.get("traces", "").split(",")[: len(LETTERS)]:
        named_trace = find_by_link(session, name)
        if named_trace is None:
            opened = open_sample(session, name)
            session = opened or session
            named_trace = find_by_link(session, name) if opened else None
        if named_trace is None:
            return None
        keys.append(named_trace.key)
    return replace(session, compared=tuple(dict.fromkeys(keys)), chosen=keys[0], home=False)


def compare_state_of(session: Session, query: Mapping[str, str]) -> CompareState:
    """Return the link's state; invalid parameters are ignored."""
    by, sort, other = query.get("by", ""), query.get("sort", ""), query.get("other", "")
    place = LETTERS.find(other) if len(other) == 1 else -1
    return CompareState(
        other=session.compared[place] if 0 < place < len(session.compared) else "",
        by=by if by in GROUPINGS else "",
        sort=sort if sort in SORTS else CompareState().sort,
        way=alignment_of(query.get("align", ""), query.get("step", "")[:6], query.get("name", "")[:_LONGEST_LINK]),
        axis="time" if query.get("axis") == "time" else "event",
        overlay=query.get("overlay") == "1",
        colour=query["colour"] if query.get("colour") in COLOURS else CompareState().colour,
    )
