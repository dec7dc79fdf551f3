"""Above the timelines, once for all of them: what the colours mean, how they are aligned, which axis and mode."""

from __future__ import annotations

from collections.abc import Sequence

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


def controls_html(
    state: CompareState,
    scores: Sequence[Score],
    order: Sequence[str],
    ways: Sequence[Alignment],
    *,
    names: Sequence[str],
    other: int,
    has_times: bool,
    has_modules: bool = True,
    hues: Sequence[SharedHue] = (),
) -> Html:
    """`hues` are sites or modules and their colours in all of the timelines, where colours mean these."""
    layout = "overlay" if state.overlay else "side"
    if state.overlay:
        legend = _overlay_legend(names, other)
    elif state.colour != "category":
        look = "mv-kind mv-square"
        legend = [mark(look, cut_middle(hue.label, _MOST_LABEL), style_of(hue.shades), hue.label) for hue in hues]
        legend += [mark(look, "other", colour_style("unknown")), *RESERVED_KEYS]
    else:
        legend = []
        shown = {kind for score in scores for kind in score.visible}
        for kind in (kind for kind in order if kind in shown):
            lights = {"data_compare_by": "category", "data_compare_row": kind}
            legend.append(button(joined(swatch(kind), kind), None, "mv-key", **lights, aria_pressed="false"))
        legend += RESERVED_KEYS
    clock = "time" if state.axis == "time" else "event"
    options = [_option(alignment, clock, alignment == state.way) for alignment in ways]
    aligned = tag("summary", tag("span", "Align"), " ", alignment_text(state.way, clock), " ▾")
    meanings = {meaning: meaning.capitalize() for meaning in COLOURS}
    no_modules = {} if has_modules else NO_MODULES
    axis = state.axis if has_times else "event"
    no_times = {} if has_times else {"time": "Not all of these traces have times"}
    axes = switch("axis", "Axis", {"event": "Event", "time": "Time"}, axis, kind="mvt-switch", disabled=no_times)
    tools = [tag("div", tag("span", "Axis"), axes, class_="mvt-tool")]
    if not state.overlay:
        colours = switch("colour", "Colours", meanings, state.colour, kind="mvt-switch", disabled=no_modules)
        tools.insert(0, tag("div", tag("span", "Colour"), colours, class_="mvt-tool"))
    layouts = {"side": "Side by side", "overlay": "Overlay"}
    menus = [
        switch("overlay", "Layout", layouts, layout, kind="mvt-switch"),
        tag("details", aligned, tag("div", *options), class_="mv-menu mv-align"),
        tag("details", tag("summary", "Tools"), tag("div", *tools), class_="mv-menu mvt-tools"),
    ]
    parts = tag("div", *legend, class_="mv-legend"), tag("div", *menus, class_="mv-controls")
    counts = {"data_count": len(scores), "data_many": "yes" if len(scores) > 3 else None}
    return tag("div", *parts, class_="mv-comparebar", **counts, data_mode=layout)


def _overlay_legend(names: Sequence[str], other: int) -> list[Html]:
    first, *others = (f"{LETTERS[i]} {cut(name, _MOST_NAME)}" for i, name in enumerate(names))
    return [
        mark("mv-square mv-silhouette", first),
        *(mark("mv-rule" if i == other else "mv-rule mv-faint", name) for i, name in enumerate(others, 1)),
        mark("mv-square mv-grown", f"{LETTERS[other]} above A"),
        mark("mv-square mv-shrunk", f"{LETTERS[other]} below A"),
    ]


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
