"""A search for the way that fits, as it goes and when it is over: the picture, the way that is chosen, the map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memviz.headlines.fit import best, cost_figure, cost_unit, cost_words, error_words, fit, fit_cell, front, rank
from memviz.runner.jobs.searches import SearchStatus
from memviz.runner.predict.cards import card_named
from memviz.ui.html.markup import Html, joined, tag
from memviz.ui.html.words import cut, rounded
from memviz.ui.run.below_results import code_html
from memviz.ui.run.fit_map import map_html
from memviz.ui.run.fit_picture import picture_html
from memviz.units import bytes_text, count_text


def fit_head_html(status: SearchStatus, usable_bytes: int) -> Html:
    said = fit(status)
    request = status.order.request
    facts = [
        ("predicted for", f"{card_named(request.card).name}, {bytes_text(usable_bytes)} usable"),
        ("keeps", {"nothing": "nothing"}.get(status.order.keep, status.order.keep)),
    ]
    if status.is_over and status.answer is not None:
        answer = status.answer
        facts.append(
            (f"{count_text(answer['tried'])} of {count_text(answer['of'])} ways in", f"{status.seconds:.0f} s")
        )
    return tag(
        "header",
        tag("h1", said.answer, " ", tag("span", said.reason), class_="mv-verdict"),
        tag("p", *(tag("span", words, " ", tag("b", value)) for words, value in facts), class_="mv-facts"),
    )


def fit_html(status: SearchStatus | None, usable_bytes: int, chosen: int | None, opening: str = "") -> Html:
    """`opening` is what is said of the timeline that is being made."""
    if status is None or (status.failed and not status.ways):
        return Html("")
    ways = status.ways
    number = chosen if chosen is not None and 0 <= chosen < len(ways) else _shown(ways)
    progress = Html("") if status.is_over else tag("i", class_="mv-working")
    below = Html("") if number is None else _way(number, ways[number], opening)
    grid = (status.answer or {}).get("grid")
    return tag(
        "section",
        progress,
        picture_html(ways, usable_bytes, number),
        below,
        _table(ways) if status.is_over else Html(""),
        map_html(grid) if grid and grid["rows"] else Html(""),
        class_="mv-fit",
    )


def _shown(ways: tuple[Mapping[str, Any], ...]) -> int | None:
    """The best, or where nothing fits what takes least of those that nothing is better than."""
    return best(ways) if best(ways) is not None else next(reversed(front(ways).numbers), None)


def _way(number: int, way: Mapping[str, Any], opening: str) -> Html:
    sign, kind = {"fits": ("✓", "mv-good"), "close": ("≈", "mv-close")}.get(fit_cell(way), ("✗", "mv-bad"))
    fits = tag("b", f"{sign} {fit_cell(way)}", class_=kind)
    error = tag("p", error_words(way), class_="mv-soft mv-truth") if error_words(way) else Html("")
    what = tag("p", tag("b", cut(str(way["title"]))), " ", fits, f" {cost_words(way)}", class_="mv-fit-way")
    button = tag(
        "button", "Open its timeline", type="button", class_="mv-quiet", data_act="timeline", data_number=str(number)
    )
    said = tag("span", opening, class_="mv-soft", role="status") if opening else Html("")
    parts = [code_html("On the command line", str(way["command"]))]
    if way["code"]:
        parts.insert(0, code_html("In your own script", str(way["code"])))
    return joined(
        what, error, tag("p", button, " ", said), tag("section", *parts, class_="mv-take-away", aria_live="polite")
    )


def _table(ways: tuple[Mapping[str, Any], ...]) -> Html:
    """The front in words; and every way, for points may lie on each other."""
    chosen, drawn = best(ways), set(front(ways).numbers)
    # Of equal cost another may take less, and then the front has that one.
    listed = drawn if chosen is None else drawn | {chosen}
    every = sorted(range(len(ways)), key=lambda number: (rank(ways[number]), number))
    in_order = [number for number in every if number in listed]
    return joined(
        _rows(ways, in_order, "The front, cheapest first", "mv-table mv-fit-front"),
        tag(
            "details",
            tag("summary", f"All {count_text(len(ways))} ways that run"),
            _rows(ways, every, "Cheapest first", "mv-table mv-fit-front"),
            class_="mv-more mv-fit-all",
        ),
    )


def _rows(ways: Sequence[Mapping[str, Any]], numbers: Sequence[int], title: str, kind: str) -> Html:
    unit = cost_unit(ways[numbers[0]]) if numbers else ""
    heads = (title, "Reserved", unit[:1].upper() + unit[1:], "")
    head = [tag("th", words, scope="col", class_="mv-number" if at == 1 else None) for at, words in enumerate(heads)]
    chosen = best(ways)
    rows = [_row(number, ways[number], is_chosen=number == chosen) for number in numbers]
    return tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows), class_=kind)


def _row(number: int, way: Mapping[str, Any], *, is_chosen: bool) -> Html:
    label = cut(str(way["title"]))
    name = tag("button", label, type="button", class_="mv-link", data_act="way", data_number=str(number))
    return tag(
        "tr",
        tag("td", name),
        tag("td", rounded(way["peak_reserved_bytes"]), class_="mv-number"),
        tag("td", cost_figure(way)),
        tag("td", tag("b", fit_cell(way), ", chosen") if is_chosen else fit_cell(way)),
        class_="mv-chosen" if is_chosen else None,
    )
