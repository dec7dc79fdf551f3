"""One self-contained page about one trace or several: Explore of each, and Compare of all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memviz.analysis.comparing.changes import summarize_comparison
from memviz.analysis.comparing.matching import Pair
from memviz.analysis.health import health
from memviz.analysis.overview import overview
from memviz.errors import UsageError
from memviz.results.comparison import comparison_headline
from memviz.results.headline import letter, trace_name
from memviz.results.summary import trace_headline
from memviz.text import Html, cut, joined, tag
from memviz.ui.compare.state import LETTERS, Side, side_of
from memviz.ui.html.elements import button
from memviz.ui.saved.compare import SavedComparison, saved_comparison
from memviz.ui.saved.document import GENEROUS, MOST_BYTES, SPARE, Document, SizeBudget, Texts, html_text
from memviz.ui.saved.explore import SavedTrace, explore_html, explore_panels, saved_trace
from memviz.ui.shell.session import Opened
from memviz.units import counted

_MOST_NAME = 48


def check_count(files: int) -> None:
    """UsageError where there are more than a page can show side by side; before any of them is read."""
    if files > len(LETTERS):
        raise UsageError(f"A report shows at most {len(LETTERS)} snapshots, not {files}. Make several reports.")


def report_page(sides: Sequence[Pair], by: str = "") -> str:
    """The page as HTML. It stays under 3 MB however many events there are.

    `by` is what a row of the comparison is, where there are several; empty for what says most.
    """
    check_count(len(sides))
    page = _page(sides, by, GENEROUS)
    return page if len(page.encode("utf-8", "replace")) < MOST_BYTES else _page(sides, by, SPARE)


def _page(sides: Sequence[Pair], by: str, budget: SizeBudget) -> str:
    texts = Texts()
    lettered = []
    for name, (trace, device) in zip(LETTERS, sides, strict=False):
        opened = Opened(name, trace_name(trace.about.source), device.name, (device.name,))
        lettered.append(side_of(name, opened, trace, device))
    share = replace(budget, columns=budget.columns // len(sides), stacks=budget.stacks // len(sides))
    saved = [saved_trace(*side.pair, side.key, texts, share) for side in lettered]
    headline = (
        comparison_headline(summarize_comparison(sides)) if len(sides) > 1 else trace_headline(overview(*sides[0]))
    )
    title = str(headline.answer)
    data: dict[str, Any] = {"traces": {view.name: view.data for view in saved}}
    if len(sides) == 1:
        body = joined(_facts(sides), explore_html(saved[0]))
        return html_text(Document(title, body, explore_panels(saved), saved[0].start, texts, data))
    has_times = all(view.data["value"]["has_times"] for view in saved)
    compared = saved_comparison(tuple(lettered), by, budget, has_times=has_times)
    for view, lights in zip(saved, compared.lights, strict=True):
        view.data["compared"] = lights
    panels = [*compared.panels, *explore_panels(saved)]
    start = {"shown": "compare", **saved[0].start, **compared.start}
    # One place for all: it is filled when one of them is turned to.
    empty = {place: dict.fromkeys(views, Html("")) for place, views in saved[0].panels.items()}
    explore = tag("section", explore_html(replace(saved[0], panels=empty)), data_shown="explore", hidden=True)
    body = joined(_tabs(lettered, saved), _compare_html(sides, compared, len(lettered)), explore)
    return html_text(Document(title, body, panels, start, texts, {**data, "compare": compared.data}))


def _facts(sides: Sequence[Pair]) -> Html:
    text = " · ".join(
        f"{cut(trace.about.source)}: {cut(trace.about.label)}, device {device.name}, "
        f"{counted(len(device.events), 'event')}"
        for trace, device in sides
    )
    return tag("p", text, class_="mv-soft mv-of-file")


def _tabs(lettered: Sequence[Side], saved: Sequence[SavedTrace]) -> Html:
    tabs = [("Compare", {"shown": "compare"}, "compare")]
    for side, view in zip(lettered, saved, strict=True):
        tabs.append((f"{side.letter} {cut(side.name, _MOST_NAME)}", {"shown": "explore", **view.start}, view.name))
    data = [(label, {"data_tab": name, "data_set": json.dumps(change)}) for label, change, name in tabs]
    buttons = [button(label, "turn", None, role="tab", **attributes) for label, attributes in data]
    return tag("div", *buttons, class_="mv-tabs mv-saved-tabs", role="tablist", aria_label="Views")


def _compare_html(sides: Sequence[Pair], compared: SavedComparison, count: int) -> Html:
    start_views = {
        panel.place: panel.views[tuple(compared.start[field] for field in panel.fields)] for panel in compared.panels
    }
    places = [tag("div", id=f"compare-{LETTERS[number]}") for number in range(count)]
    return tag(
        "section",
        _facts(sides),
        tag("div", start_views["compare-top"], id="compare-top"),
        tag("div", *_notes(sides), class_="mv-compared-notes"),
        tag("div", start_views["compare-bar"], id="compare-bar"),
        tag("div", *places, class_="mv-linked"),
        tag("div", id="compare-overlay"),
        tag("div", start_views["differences"], id="differences"),
        class_="mv-compare",
        data_shown="compare",
    )


def _notes(sides: Sequence[Pair]) -> list[Html]:
    """Return notes with their trace's name; those common to all appear once."""
    notes_of = [tuple(dict.fromkeys((*trace.notes, *health(trace)))) for trace, _ in sides]
    shared = [note for note in notes_of[0] if all(note in notes for notes in notes_of)]
    own = [
        replace(note, text=f"{letter(number)}, {trace.about.source}: {note.text}")
        for number, (trace, _) in enumerate(sides)
        for note in notes_of[number]
        if note not in shared
    ]
    html = []
    for note in (*own, *shared):
        remedy = joined(" ", tag("span", note.remedy, class_="mv-remedy")) if note.remedy else ""
        html.append(tag("p", note.text, remedy, class_=f"mv-note mv-{note.level}"))
    return html
