"""Links that restore a comparison: its traces by their names in links, baseline first, and how they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import urlencode

from memviz.analysis.comparing.align import START
from memviz.ui.compare.state import COLOURS, GROUPINGS, LETTERS, SORTS, CompareState, Side, way_of
from memviz.ui.shell.links import link_name, named
from memviz.ui.shell.session import Session

TAB = "compare"
_LONGEST = 200
OpenSample = Callable[[Session, str], Session | None]
"""A session with the sample of that name open in it; None where there is no such sample."""


def compare_query(sides: tuple[Side, ...], state: CompareState) -> str:
    """Only what differs from how a comparison begins."""
    said = {"tab": TAB, "traces": ",".join(link_name(side.opened) for side in sides)}
    other = state.number_of_other(sides)
    if other > 1:
        said["other"] = LETTERS[other]
    if state.by:
        said["by"] = state.by
    if state.sort != CompareState().sort:
        said["sort"] = state.sort
    if state.way != START:
        said["align"] = state.way.kind
        said |= {"step": str(state.way.number)} if state.way.kind == "step" else {}
        said |= {"name": state.way.name} if state.way.name else {}
    if state.axis != "event":
        said["axis"] = state.axis
    if state.colour != CompareState().colour:
        said["colour"] = state.colour
    if state.overlay:
        said["overlay"] = "1"
    return urlencode(said)


def compare_session(session: Session, query: Mapping[str, str], open_sample: OpenSample) -> Session | None:
    """Its traces side by side; None where one of them is not open here."""
    keys: list[str] = []
    for name in query.get("traces", "").split(",")[: len(LETTERS)]:
        named_trace = named(session, name)
        if named_trace is None:
            opened = open_sample(session, name)
            session = opened or session
            named_trace = named(session, name) if opened else None
        if named_trace is None:
            return None
        keys.append(named_trace.key)
    return replace(session, compared=tuple(dict.fromkeys(keys)), chosen=keys[0], home=False)


def compare_state_of(session: Session, query: Mapping[str, str]) -> CompareState:
    """Whatever is not understood is left out."""
    by, sort, other = query.get("by", ""), query.get("sort", ""), query.get("other", "")
    place = LETTERS.find(other) if len(other) == 1 else -1
    return CompareState(
        other=session.compared[place] if 0 < place < len(session.compared) else "",
        by=by if by in GROUPINGS else "",
        sort=sort if sort in SORTS else CompareState().sort,
        way=way_of(query.get("align", ""), query.get("step", "")[:6], query.get("name", "")[:_LONGEST]),
        axis="time" if query.get("axis") == "time" else "event",
        overlay=query.get("overlay") == "1",
        colour=query["colour"] if query.get("colour") in COLOURS else CompareState().colour,
    )
