"""Batch × sequence as a heat map: how full the card would be, and the border of what fits, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memviz.ui.html.markup import Html, tag
from memviz.units import bytes_text, count_text, percent_text


def map_html(grid: Mapping[str, Any]) -> Html:
    batches = grid["batches"]
    head = [tag("th", "sequence", scope="col"), *(tag("th", count_text(batch), scope="col") for batch in batches)]
    rows = [_row(row, batches, grid["usable_bytes"]) for row in grid["rows"]]
    return tag(
        "section",
        tag("h2", "Batch × sequence with this configuration", class_="mv-h2"),
        tag(
            "p",
            "GiB reserved without a limit, by batch. The last column is the border: that fits, and one more does not.",
            class_="mv-soft",
        ),
        tag(
            "div",
            tag(
                "table",
                tag("thead", tag("tr", *head, tag("th", "largest batch", scope="col"))),
                tag("tbody", *rows),
                class_="mv-fit-map",
            ),
            class_="mv-fit-map-frame",
            tabindex="0",
            role="region",
            aria_label="Batch and sequence",
        ),
    )


def _row(row: Mapping[str, Any], batches: list[int], usable: int) -> Html:
    largest = row["largest_batch"]
    cells = [_cell(row, batch, usable) for batch in batches]
    words = f"{count_text(largest)}{'' if row['next_fails'] else ' or more'}" if largest else "none"
    return tag("tr", tag("th", count_text(row["sequence"]), scope="row"), *cells, tag("td", tag("b", words)))


def _cell(row: Mapping[str, Any], batch: int, usable: int) -> Html:
    """What fits is coloured by the share of the card; the border is where that ends, and not where a colour does."""
    peak = row["peak_reserved_without_limit_bytes"].get(str(batch))
    fits = batch <= row["largest_batch"]
    if not fits:
        title = "does not fit" if peak is None else f"does not fit: {bytes_text(peak)} without a limit"
        return tag("td", "–" if peak is None else _short(peak), class_="mv-over", title=title)
    if peak is None:
        return tag("td", "", class_="mv-within", title="fits")
    full = min(peak / usable, 1.0)
    words = f"fits: {bytes_text(peak)}, {percent_text(peak, usable)} of what a process gets"
    return tag("td", _short(peak), class_="mv-within", style=f"--mv-full:{full:.3f}", title=words)


def _short(count: int) -> str:
    gib = count / (1 << 30)
    return f"{gib:.1f}" if gib < 100 else f"{gib:,.0f}"
