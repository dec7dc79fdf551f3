"""A search for a configuration that fits: peak against cost, the chosen point, and a map of batch × sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log10
from typing import Any

from memviz.predictor.cards import card_named
from memviz.results.fit import (
    cheapest_fitting,
    cost_figure,
    cost_rank,
    cost_text,
    cost_unit,
    error_text,
    fit_cell,
    fit_headline,
    front_of_trials,
    work_text,
)
from memviz.runner.jobs.service import SearchStatus
from memviz.text import Html, cut, joined, rounded, tag
from memviz.ui.html.elements import button, facts_html, table
from memviz.ui.html.labels import headline_html
from memviz.ui.run.results import code_html
from memviz.units import bytes_text, count_text, duration_text, percent_text


def map_html(grid: Mapping[str, Any]) -> Html:
    batches = grid["batches"]
    rows = []
    for row in grid["rows"]:
        largest = row["largest_batch"]
        text = f"{count_text(largest)}{'' if row['next_fails'] else ' or more'}" if largest else "none"
        cells = [_map_cell(row, batch, grid["usable_bytes"]) for batch in batches]
        head = tag("th", count_text(row["sequence"]), scope="row")
        rows.append(tag("tr", head, *cells, tag("td", tag("b", text))))
    grid_html = table(
        [(label, None) for label in ("sequence", *map(count_text, batches), "largest batch")], rows, "mv-fit-map"
    )
    text = "GiB reserved without a limit, by batch. Last column: the largest batch that fits."
    return tag(
        "section",
        tag("h2", "Batch × sequence with this configuration", class_="mv-h2"),
        tag("p", text, class_="mv-soft"),
        tag("div", grid_html, class_="mv-fit-map-frame", tabindex="0", role="region", aria_label="Batch and sequence"),
    )


def _map_cell(row: Mapping[str, Any], batch: int, usable: int) -> Html:
    """Return a cell coloured by the share of the card; a border, not a colour, separates the sizes that fit."""
    peak = row["peak_reserved_without_limit_bytes"].get(str(batch))
    fits = batch <= row["largest_batch"]
    if not fits:
        title = "does not fit" if peak is None else f"does not fit: {bytes_text(peak)} without a limit"
        return tag("td", "–" if peak is None else _gib_text(peak), class_="mv-over", title=title)
    if peak is None:
        return tag("td", "", class_="mv-within", title="fits")
    full = min(peak / usable, 1.0)
    tooltip = f"fits: {bytes_text(peak)}, {percent_text(peak, usable)} of usable memory"
    return tag("td", _gib_text(peak), class_="mv-within", style=f"--mv-full:{full:.3f}", title=tooltip)


def _gib_text(count: int) -> str:
    gib = count / _GIB
    return f"{gib:.1f}" if gib < 100 else f"{gib:,.0f}"


_ROOM = 1.06
_FEW_TICKS = 4
_GIB = 1 << 30
_KEEPS = {"outputs": "keeps outputs", "training": "changes training", "nothing": "changes outputs"}

FitPoint = Mapping[str, Any]


@dataclass(frozen=True)
class _Scale:
    """Shares of the picture, in percent, from the left and from the top."""

    low: float
    high: float
    most_bytes: float

    def x(self, cost: float) -> float:
        return 2 + 96 * (cost - self.low) / ((self.high - self.low) or 1)

    def y(self, count: float) -> float:
        return 100 - 100 * count / self.most_bytes


def picture_html(ways: Sequence[FitPoint], usable_bytes: int, chosen: int | None) -> Html:
    """`chosen` is the point whose code is shown below."""
    if not ways:
        return tag("p", "No configuration predicted yet.", class_="mv-soft")
    costs = [cost_rank(point) for point in ways]
    most = _ROOM * max(usable_bytes, *(point["peak_reserved_bytes"] for point in ways))
    scale = _Scale(min(costs), max(costs), most)
    front = front_of_trials(ways)
    # 1, 2 or 5 times a power of ten.
    least = most / _GIB / _FEW_TICKS
    power = 10.0 ** ceil(log10(least) - 1)
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= least) * _GIB
    levels = [
        (number * step, f"{number * step / _GIB:,.3g} GiB" if number else "0")
        for number in range(int(most // step) + 1)
    ]
    lines = [("mv-fit-tick", text, count) for count, text in levels]
    lines.append(("mv-fit-card", f"the card: {bytes_text(usable_bytes)}", usable_bytes))
    grid = [tag("i", tag("span", text), class_=look, style=f"top:{scale.y(count):.2f}%") for look, text, count in lines]
    line = _line([ways[number] for number in front.numbers], scale)
    points = [_point(place, way, scale, place in front.numbers, place == chosen) for place, way in enumerate(ways)]
    return tag(
        "figure",
        tag("div", *grid, line, *points, class_="mv-fit-plot"),
        tag("div", *_cost_axis(scale, ways), class_="mv-fit-costs"),
        _legend(ways),
        class_="mv-fit-picture",
        aria_label=f"{len(ways)} configurations by cost and by memory; {len(front.numbers)} on the Pareto front",
    )


def _point(number: int, point: FitPoint, scale: _Scale, on_front: bool, is_chosen: bool) -> Html:
    place = f"left:{scale.x(cost_rank(point)):.2f}%;top:{scale.y(point['peak_reserved_bytes']):.2f}%"
    reserved = f"{bytes_text(point['peak_reserved_bytes'])} reserved"
    label = f"{cut(str(point['title']))}: {reserved}, {cost_text(point)}, {fit_cell(point)}"
    looks = f"mv-point mv-is-{point['keeps']}{' mv-fits' if point['fits'] else ''}{' mv-on-front' if on_front else ''}"
    return button(
        "",
        "way",
        looks,
        style=place,
        data_number=number,
        aria_label=label,
        aria_pressed="true" if is_chosen else "false",
        title=label,
        tabindex="0" if on_front or is_chosen else "-1",
    )


def _line(ways: Sequence[FitPoint], scale: _Scale) -> Html:
    """Draw the Pareto front as steps: between two points no configuration is better."""
    places: list[str] = []
    for point in ways:
        x, y = scale.x(cost_rank(point)), scale.y(point["peak_reserved_bytes"])
        if places:
            places.append(f"{x:.2f},{places[-1].split(',')[1]}")
        places.append(f"{x:.2f},{y:.2f}")
    line = tag("polyline", points=" ".join(places), vector_effect="non-scaling-stroke")
    return tag("svg", line, viewBox="0 0 100 100", preserveAspectRatio="none", aria_hidden="true")


def _cost_axis(scale: _Scale, ways: Sequence[FitPoint]) -> list[Html]:
    """Return the labels of the cost axis: lowest, unit, highest."""
    in_seconds, per = ways[0]["cost"]["seconds_low"] is not None, ways[0]["cost"]["per"]
    ends = [scale.low, scale.high] if scale.high > scale.low else [scale.low]
    texts = [duration_text(round(end * 1e6)) if in_seconds else work_text(end) for end in ends]
    what = f"time per {per}, middle of the estimate" if in_seconds else cost_unit(ways[0])
    return [tag("span", texts[0]), tag("span", what, class_="mv-soft"), *(tag("span", text) for text in texts[1:])]


def _legend(ways: Sequence[FitPoint]) -> Html:
    kinds = [keeps for keeps in _KEEPS if any(point["keeps"] == keeps for point in ways)]
    parts = [tag("span", tag("i", class_=f"mv-point-key mv-fits mv-is-{keeps}"), _KEEPS[keeps]) for keeps in kinds]
    if any(not point["fits"] for point in ways):
        parts.append(tag("span", tag("i", class_=f"mv-point-key mv-is-{kinds[0]}"), "does not fit"))
    parts.append(
        tag("span", tag("i", class_="mv-point-key-line"), f"Pareto front ({_KEEPS[front_of_trials(ways).keeps]})")
    )
    return tag("figcaption", *parts)


def fit_head_html(status: SearchStatus, usable_bytes: int) -> Html:
    headline = fit_headline(status)
    request = status.order.request
    facts = [
        ("predicted for", f"{card_named(request.card).name}, {bytes_text(usable_bytes)} usable"),
        ("keeps", status.order.keep),
    ]
    if status.is_over and status.answer is not None:
        tried, of = (count_text(status.answer[name]) for name in ("tried", "of"))
        facts.append((f"{tried} of {of} configurations in", f"{status.seconds:.0f} s"))
    return tag("header", headline_html(headline), facts_html(facts))


def fit_html(status: SearchStatus | None, usable_bytes: int, chosen: int | None, opening: str = "") -> Html:
    """`opening` is the status of the timeline that is being predicted."""
    if status is None or (status.is_over and not status.ways):
        return Html("")
    ways = status.ways
    number = chosen
    if chosen is None or not 0 <= chosen < len(ways):
        # The cheapest point that fits, or the point of the front with the least memory.
        best = cheapest_fitting(ways)
        number = next(reversed(front_of_trials(ways).numbers), None) if best is None else best
    progress = Html("") if status.is_over else tag("i", class_="mv-working")
    details = "" if number is None else _point_details_html(number, ways[number], opening)
    grid = (status.answer or {}).get("grid")
    picture, tables = picture_html(ways, usable_bytes, number), _tables(ways) if status.is_over else ""
    grid_html = map_html(grid) if grid and grid["rows"] else ""
    return tag("section", progress, picture, details, tables, grid_html, class_="mv-fit")


def _point_details_html(number: int, point: Mapping[str, Any], opening: str) -> Html:
    sign, kind = {"fits": ("✓", "mv-good"), "close": ("≈", "mv-close")}.get(fit_cell(point), ("✗", "mv-bad"))
    fits = tag("b", f"{sign} {fit_cell(point)}", class_=kind)
    error = tag("p", error_text(point), class_="mv-soft mv-truth") if error_text(point) else Html("")
    what = tag("p", tag("b", cut(str(point["title"]))), " ", fits, f" {cost_text(point)}", class_="mv-fit-way")
    opens = button("Open its timeline", "timeline", data_number=number)
    status = tag("span", opening, class_="mv-soft", role="status") if opening else Html("")
    parts = [code_html("In your own script", str(point["code"]))] if point["code"] else []
    parts.append(code_html("On the command line", str(point["command"])))
    code = tag("section", *parts, class_="mv-take-away", aria_live="polite")
    return joined(what, error, tag("p", opens, " ", status), code)


def _tables(ways: Sequence[FitPoint]) -> Html:
    """Return a table of the front and one of all points, since points may overlap in the picture."""
    chosen, front = cheapest_fitting(ways), set(front_of_trials(ways).numbers)
    # Of equal cost another may take less, and then the front has that one.
    listed = front if chosen is None else front | {chosen}
    every = sorted(range(len(ways)), key=lambda number: (cost_rank(ways[number]), number))
    in_order = [number for number in every if number in listed]
    return joined(
        _points_table(ways, in_order, "Pareto front, cheapest first"),
        tag(
            "details",
            tag("summary", f"All {count_text(len(ways))} configurations that run"),
            _points_table(ways, every, "Cheapest first"),
            class_="mv-more mv-fit-all",
        ),
    )


def _points_table(ways: Sequence[FitPoint], numbers: Sequence[int], title: str) -> Html:
    unit = cost_unit(ways[numbers[0]]) if numbers else ""
    heads = ((title, None), ("Reserved", "mv-number"), (unit[:1].upper() + unit[1:], None), ("", None))
    chosen = cheapest_fitting(ways)
    rows = []
    for number in numbers:
        point, is_chosen = ways[number], number == chosen
        cells = (
            tag("td", button(cut(str(point["title"])), "way", "mv-link", data_number=number)),
            tag("td", rounded(point["peak_reserved_bytes"]), class_="mv-number"),
            tag("td", cost_figure(point)),
            tag("td", tag("b", fit_cell(point), ", chosen") if is_chosen else fit_cell(point)),
        )
        rows.append(tag("tr", *cells, class_="mv-chosen" if is_chosen else None))
    return table(heads, rows, "mv-table mv-fit-front")
