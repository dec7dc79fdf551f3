"""Above the timelines, once for all of them: what the colours mean, how they are aligned, which axis and mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memviz.analysis.comparing.align import Alignment
from memviz.analysis.comparing.changes import Score
from memviz.figures.colouring import SharedHue
from memviz.text import Html, cut, cut_middle, joined, tag
from memviz.ui.compare.state import COLOURS, LETTERS, CompareState
from memviz.ui.html.elements import button, switch
from memviz.ui.html.labels import RESERVED_KEYS, colour_style, mark, style_of, swatch

NO_MODULES = {"module": "None of these files records modules"}
"""Why rows and colours cannot be modules."""
_MOST_NAME = 44
_MOST_LABEL = 34


@dataclass(frozen=True)
class Controls:
    state: CompareState
    scores: tuple[Score, ...]
    order: tuple[str, ...]
    ways: tuple[Alignment, ...]
    has_times: bool
    names: tuple[str, ...]
    other: int
    hues: tuple[SharedHue, ...] = ()
    """Sites or modules and their colours in all of the timelines, where colours mean these."""
    has_modules: bool = True


def controls_html(controls: Controls) -> Html:
    state = controls.state
    layout = "overlay" if state.overlay else "side"
    if state.overlay:
        legend = _overlay_legend(controls)
    elif state.colour != "category":
        legend = _shared_legend(controls.hues)
    else:
        legend = _legend(controls.scores, controls.order)
    clock = "time" if state.axis == "time" else "event"
    options = [_option(alignment, clock, alignment == state.way) for alignment in controls.ways]
    aligned = tag("summary", tag("span", "Align"), " ", alignment_text(state.way, clock), " ▾")
    meanings = {meaning: meaning.capitalize() for meaning in COLOURS}
    no_modules = {} if controls.has_modules else NO_MODULES
    axis = state.axis if controls.has_times else "event"
    no_times = {} if controls.has_times else {"time": "Not all of these traces have times"}
    axes = switch("axis", "Axis", {"event": "Event", "time": "Time"}, axis, kind="mvt-switch", disabled=no_times)
    tools = [tag("div", tag("span", "Axis"), axes, class_="mvt-tool")]
    if not state.overlay:
        colours = switch("colour", "Colours", meanings, state.colour, kind="mvt-switch", disabled=no_modules)
        tools.insert(0, tag("div", tag("span", "Colour"), colours, class_="mvt-tool"))
    return tag(
        "div",
        legend,
        tag(
            "div",
            switch("overlay", "Layout", {"side": "Side by side", "overlay": "Overlay"}, layout, kind="mvt-switch"),
            tag("details", aligned, tag("div", *options), class_="mv-menu mv-align"),
            tag("details", tag("summary", "Tools"), tag("div", *tools), class_="mv-menu mvt-tools"),
            class_="mv-controls",
        ),
        class_="mv-comparebar",
        data_count=len(controls.scores),
        data_many="yes" if len(controls.scores) > 3 else None,
        data_mode=layout,
    )


def _shared_legend(hues: Sequence[SharedHue]) -> Html:
    look = "mv-kind mv-square"
    keys = [mark(look, cut_middle(hue.label, _MOST_LABEL), style_of(hue.shades), hue.label) for hue in hues]
    return tag("div", *keys, mark(look, "other", colour_style("unknown")), *RESERVED_KEYS, class_="mv-legend")


def _legend(scores: Sequence[Score], order: Sequence[str]) -> Html:
    shown = {kind for score in scores for kind in score.visible}
    keys = []
    for kind in (kind for kind in order if kind in shown):
        lights = {"data_compare_by": "category", "data_compare_row": kind}
        keys.append(button(joined(swatch(kind), kind), None, "mv-key", **lights, aria_pressed="false"))
    return tag("div", *keys, *RESERVED_KEYS, class_="mv-legend")


def _overlay_legend(controls: Controls) -> Html:
    letter = LETTERS[controls.other]
    first, *others = (f"{LETTERS[i]} {cut(name, _MOST_NAME)}" for i, name in enumerate(controls.names))
    return tag(
        "div",
        mark("mv-square mv-silhouette", first),
        *(mark("mv-rule" if i == controls.other else "mv-rule mv-faint", name) for i, name in enumerate(others, 1)),
        mark("mv-square mv-grown", f"{letter} above A"),
        mark("mv-square mv-shrunk", f"{letter} below A"),
        class_="mv-legend",
    )


def _option(alignment: Alignment, axis: str, chosen: bool) -> Html:
    unit = "µs" if axis == "time" else "events"
    reasons = {
        "start": "whole runs, aligned at the start",
        "scale": f"equal {unit} per width",
        "peak": "equal scale, aligned at the peaks",
        "step": "the same step, at equal width",
        "annotation": "where it comes first",
    }
    return button(
        joined(alignment_text(alignment, axis), " ", tag("small", reasons[alignment.kind])),
        "align",
        None,
        data_value=alignment.kind,
        data_number=alignment.number if alignment.kind == "step" else None,
        data_name=alignment.name or None,
        aria_pressed="true" if chosen else "false",
    )


def alignment_text(alignment: Alignment, axis: str) -> str:
    if alignment.kind == "scale":
        return axis
    if alignment.kind == "step":
        return f"step {alignment.number + 1}"
    return cut(alignment.name, _MOST_NAME) if alignment.kind == "annotation" else alignment.kind
