"""One row a trace, on one scale: the peak by category, then hatched up to what was reserved, and the figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memviz.analysis.comparing.changes import Score
from memviz.text import Html, distinct_labels, esc, joined, rounded, tag
from memviz.ui.compare.state import LETTERS, Side
from memviz.ui.html.elements import button, number
from memviz.ui.html.labels import colour_style
from memviz.ui.shell.session import Opened
from memviz.units import bytes_text, duration_text, percent_text

NOT_IN_FILE = "not in file"
FACT_COLUMNS = (("step time", "Step"), ("work", "Compute"), ("output difference", "Output vs A"), ("loss", "Loss"))
"""Columns from `About.facts`, which our own runs write; a column that all traces leave empty is left out."""
_MOST_NAME = 34


@dataclass(frozen=True)
class Board:
    sides: tuple[Side, ...]
    scores: tuple[Score, ...]
    order: tuple[str, ...]
    """Categories in the order in which the timelines stack them."""
    other: int
    """The trace that the waterfall leads to."""
    also_open: tuple[Opened, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names cut to the room there is: those of compared traces, then of others that are open."""
        names = [side.name for side in self.sides] + [trace.name for trace in self.also_open]
        return distinct_labels(names, _MOST_NAME)


def scoreboard_html(board: Board) -> Html:
    facts = [(key, head) for key, head in FACT_COLUMNS if any(key in side.trace.about.facts for side in board.sides)]
    pairs = list(zip(board.sides, board.scores, strict=True))
    timed = any(score.duration_us is not None and _ran(side) for side, score in pairs)
    origins = {side.trace.about.label for side in board.sides}
    heads = [*_HEADS, *([("Recorded", "From the first event to the last")] if timed else [])]
    heads += [(text, "From the run") for _, text in facts]
    head = [
        tag("th", "Trace", f", {origins.pop()}" if len(origins) == 1 else "", scope="col"),
        tag("th", "Peak", scope="col", class_="mv-scorebar", title="Live by category, then cached, up to reserved"),
        *(tag("th", text, scope="col", class_="mv-number", title=title) for text, title in heads),
        tag("th", tag("span", "Remove", class_="mv-hidden"), scope="col"),
    ]
    scale = max(max(score.reserved_bytes, score.live_bytes) for score in board.scores) or 1
    rows = []
    for i, (side, score) in enumerate(pairs):
        out = f"Remove {side.name} from the comparison"
        duration = number(NOT_IN_FILE if _ran(side) else "no times", more="mv-soft")
        if _ran(side) and score.duration_us is not None:
            duration = number(duration_text(score.duration_us))
        cells = [
            _name(board, i),
            tag("td", _bar(score, board.order, scale), class_="mv-scorebar"),
            *_figures(score, i),
            *([duration] if timed else []),
            *(number(side.trace.about.facts.get(key, NOT_IN_FILE), more="mv-soft") for key, _ in facts),
            number(_button("×", "toggle", side, "mv-out", title=out, aria_label=out)),
        ]
        rows.append(tag("tr", *cells, class_="mv-to" if i == board.other and len(board.sides) > 2 else None))
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_="mv-table mv-scores")
    return tag("section", table, _also(board), aria_label="Compared traces")


_HEADS = (
    ("Live", "Live bytes at the peak"),
    ("Reserved", "Highest reserved memory"),
    ("Gap", "Share of peak reserved that is not live at the live peak"),
    ("vs A", "Live at the peak, minus the baseline's"),
)


def _name(board: Board, place: int) -> Html:
    side, shown = board.sides[place], board.names[place]
    name: Html = tag("span", shown, class_="mv-whose", title=f"{side.name}, {_where(side)}")
    if len(board.sides) > 2 and place:
        text = f"Show the way from A to {side.letter} below"
        pressed = "true" if place == board.other else "false"
        name = _button(shown, "other", side, "mv-whose", title=text, aria_pressed=pressed)
    title = "The baseline" if place == 0 else f"Make {side.letter} the baseline (Shift+{side.letter})"
    said = {"title": title, "aria_label": f"{side.letter}, {title[0].lower()}{title[1:]}", "data_letter": side.letter}
    badge = _button(side.letter, "baseline", side, "mv-letter", **said)
    where = _where(side)
    # What is true of all of them tells none from another.
    differs = len({_where(each) for each in board.sides}) > 1
    place_text = tag("small", where, title=where) if differs else ""
    return tag("th", tag("div", badge, name, place_text, class_="mv-who"), scope="row")


def _where(side: Side) -> str:
    return f"{side.trace.about.label}, {'cuda' if side.device.kind == 'gpu' else 'host'}:{side.device.device}"


def _button(text: str, act: str, side: Side, kind: str, **attributes: str) -> Html:
    return button(text, act, kind, data_key=side.opened.key, **attributes)


def _bar(score: Score, order: Sequence[str], scale: int) -> Html:
    def share(part: int) -> str:
        return f"{100 * part / scale:.3f}%"

    parts = []
    for kind, count in sorted(score.kinds, key=lambda entry: order.index(entry[0])):
        style, lights = f"{colour_style(kind)};width:{share(count)}", {"data_compare_by": "category"}
        title = f"{kind} {bytes_text(count)}"
        parts.append(tag("i", class_="mv-kind", style=style, title=title, **lights, data_compare_row=kind))
    if not score.knows_reserved:
        label = f"{bytes_text(score.live_bytes)} live, reserved {NOT_IN_FILE}"
        return tag("div", *parts, class_="mv-peakbar", role="img", aria_label=label)
    label = f"{bytes_text(score.live_bytes)} live of {bytes_text(score.reserved_bytes)} reserved"
    gap = f"reserved but not live {bytes_text(score.gap_bytes)}"
    hatch = tag("i", class_="mv-hatched", style=f"width:{share(max(score.gap_bytes, 0))}", title=gap)
    tick = tag("i", class_="mv-tick", style=f"left:{share(score.reserved_bytes)}")
    return tag("div", *parts, hatch, tick, class_="mv-peakbar", role="img", aria_label=label)


def _figures(score: Score, place: int) -> list[Html]:
    reserved = [number(NOT_IN_FILE, more="mv-soft")] * 2
    if score.knows_reserved:
        gap = percent_text(score.gap_bytes, score.reserved_bytes)
        reserved = [number(rounded(score.reserved_bytes)), number(gap, more="mv-soft")]
    arrow, look = ("▲", "mv-grew") if score.delta_bytes > 0 else ("▼", "mv-shrank")
    against: Html | str = tag("b", arrow, " ", rounded(abs(score.delta_bytes)), class_=look)
    if not score.delta_bytes:
        against = "as high" if place else "baseline"
    soft = "" if score.delta_bytes else "mv-soft"
    return [number(tag("b", rounded(score.live_bytes))), *reserved, number(against, more=soft)]


def _ran(side: Side) -> bool:
    """A replay and an estimate have the times of their events from the recording, and took none of their own."""
    return side.device.is_timed and side.trace.about.origin != "replayed"


def _also(board: Board) -> Html:
    if not board.also_open:
        return esc("")
    if len(board.sides) == len(LETTERS):
        return tag("p", "At most eight traces can be compared. Remove one to add another.", class_="mv-also")
    named = zip(board.also_open, board.names[len(board.sides) :], strict=True)
    boxes = [add_button(trace, name, title=f"Compare {trace.name} too") for trace, name in named]
    return tag("p", "Also open", *boxes, class_="mv-also")


def add_button(opened: Opened, name: str, title: str | None = None) -> Html:
    """A box that adds the trace to the comparison."""
    words, checked = joined(tag("i", aria_hidden="true"), name), {"role": "checkbox", "aria_checked": "false"}
    return button(words, "toggle", None, **checked, data_key=opened.key, title=title)
