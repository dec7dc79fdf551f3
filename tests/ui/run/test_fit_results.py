"""Tests of the search for a configuration: its picture, its map, and its order."""

import re
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.runner.jobs.service import SearchOrder, SearchStatus
from memviz.runner.request import Request
from memviz.ui.run.fit_results import fit_head_html, fit_html, map_html, picture_html
from memviz.ui.run.form import FormFields, RunRequests, search_order
from memviz.ui.run.form_html import form_html
from tests.facts import missing
from tests.results.test_fit import told
from tests.runner.fit.ways import way as tried
from tests.ui.page import HOSTILE, elements, rows, words

GiB = 1 << 30
ORDER = SearchOrder(Request("gpt2"))
ASKED = RunRequests((Request("gpt2", {"batch": "4"}, (("checkpointing", {}),)),), ("Baseline",))


def ways() -> tuple[dict[str, Any], ...]:
    made = [
        told(tried(1, 30 * GiB, fits=False), "baseline"),
        told(tried(2, 20 * GiB), "split"),
        told(tried(4, 10 * GiB), "checkpointing"),
        told(tried(3, 25 * GiB, fits=False), "worse"),
    ]
    return tuple({**way, "command": "python -m memviz run", "code": "undo = x"} for way in made)


def places(html: str) -> list[tuple[float, float]]:
    styles = [element["style"] or "" for element in elements(html, "button", data_act="way") if element.get("style")]
    return [(float(x), float(y)) for style in styles for x, y in re.findall(r"left:([\d.]+)%;top:([\d.]+)%", style)]


def test_every_way_is_a_point_where_its_cost_and_its_peak_are() -> None:
    html = picture_html(ways(), 24 * GiB, 1)
    points = places(html)
    assert len(points) == 4
    by_cost = sorted(range(4), key=lambda number: points[number][0])
    assert by_cost == [0, 1, 3, 2]
    by_peak = sorted(range(4), key=lambda number: -points[number][1])
    assert by_peak == [2, 1, 3, 0]
    (card,) = elements(html, "i", class_="mv-fit-card")
    line = float(re.findall(r"top:([\d.]+)%", card["style"] or "")[0])
    assert points[3][1] < line < points[1][1]
    pressed = elements(html, "button", aria_pressed="true")
    assert [each["data-number"] for each in pressed] == ["1"]
    # The front and what is chosen can be reached by the keyboard; the rest is in the way there.
    assert [element["data-number"] for element in elements(html, "button", tabindex="0")] == ["0", "1", "2"]


def test_the_front_is_drawn_in_steps_and_the_axis_ends_at_the_costs_that_the_list_says() -> None:
    html = picture_html(ways(), 24 * GiB, None)
    (line,) = elements(html, "polyline")
    corners = [tuple(map(float, corner.split(","))) for corner in (line["points"] or "").split()]
    points = places(html)
    assert corners[0::2] == [points[number] for number in (0, 1, 2)]
    assert all(
        corner[0] == after[0] and corner[1] == before[1]
        for before, corner, after in zip(corners[::2], corners[1::2], corners[2::2], strict=False)
    )

    def unknown(flops: int) -> dict[str, Any]:
        cost = {"flops": flops, "bytes_moved": 10**12, "host_bytes": 0, "link_bytes": 10**12, "per": "step"}
        return {**ways()[1], "cost": {**cost, "seconds_low": None, "seconds_high": None}}

    both = (unknown(164 * 10**12), unknown(165 * 10**12))
    listed = [row[2] for row in rows(fit_html(SearchStatus("id", ORDER, ways=both, answer={}), 24 * GiB, None))[1:]]
    axis = words(picture_html(both, 24 * GiB, None))
    assert {text for text in listed if text.endswith(" T")} == {"166.00 T", "167.00 T"}
    assert "166.00 T" in axis and "167.00 T" in axis


def test_a_name_stays_a_name() -> None:
    status = SearchStatus(
        "id",
        SearchOrder(Request("gpt2")),
        ways=({**ways()[1], "label": HOSTILE, "title": HOSTILE, "code": HOSTILE},),
        answer={},
    )
    html = fit_html(status, 24 * GiB, None)
    assert "<b>x" not in html and "</script>" not in html


def test_while_it_goes_on_the_front_so_far_stands_there_and_the_best_ones_code() -> None:
    status = SearchStatus("id", SearchOrder(Request("gpt2")), done=4, of=9, ways=ways())
    html = fit_html(status, 24 * GiB, None)
    assert "mv-working" in html and "undo = x" in words(html)
    assert words(html).count("Split") and not elements(html, "table")
    assert "4 of 9 configurations tried" in words(fit_head_html(status, 24 * GiB))
    over = SearchStatus("id", SearchOrder(Request("gpt2")), ways=ways(), answer={"tried": 4, "of": 9, "grid": None})
    table = rows(fit_html(over, 24 * GiB, 2))
    # The unit appears once, in the column head.
    assert table[0][2] == "A step, estimated" and table[1][2].endswith(" s")
    assert [row[0] for row in table[1:4]] == ["Baseline", "Split", "Checkpointing"]
    assert [row[0] for row in table[5:]] == ["Baseline", "Split", "Worse", "Checkpointing"]
    assert "✗ does not fit" in words(fit_html(over, 24 * GiB, 0)) and "✓ fits" in words(fit_html(over, 24 * GiB, 2))


def row(sequence: int, largest: int, **peaks: int) -> dict[str, Any]:
    by_batch = {name.removeprefix("of_"): peak * GiB for name, peak in peaks.items()}
    known = {"sequence": sequence, "largest_batch": largest, "next_fails": True}
    return {**known, "peak_reserved_without_limit_bytes": by_batch}


GRID = {
    "usable_bytes": 10 * GiB,
    "batches": [1, 2, 4, 8],
    "rows": [
        row(64, 5, of_1=1, of_2=3, of_4=9, of_8=18),
        row(128, 0, of_1=11),
        # What is cached goes back, so it may fit though it would reserve more without a limit.
        row(32, 8, of_8=11),
    ],
}


def test_the_border_is_where_it_stops_fitting_and_not_where_a_colour_ends() -> None:
    html = map_html(GRID)
    found = [[element.get("class") for element in elements(f"<tr{row}", "td")] for row in html.split("<tr")[2:]]
    inside, outside = "mv-within", "mv-over"
    assert found == [[inside, inside, inside, outside, None], [outside] * 4 + [None], [inside] * 4 + [None]]
    assert [row[-1] for row in rows(html)[1:]] == ["5", "none", "8"]
    assert [row[1:5] for row in rows(html)[1:]] == [
        ["1.0", "3.0", "9.0", "18.0"],
        ["11.0", "–", "–", "–"],
        ["", "", "", "11.0"],
    ]


def test_the_form_asks_for_a_search_of_the_workload_as_it_stands_and_keeps_what_was_chosen() -> None:
    order = search_order({"fit:keep": "training", "fit:largest": "batch", "fit:grid": True}, ASKED)
    assert (order.keep, order.largest, order.grid) == ("training", "batch", True)
    assert order.request == Request("gpt2", {"batch": "4"}, on="predict", numerics=False)
    assert search_order({}, ASKED) == SearchOrder(order.request)
    form = FormFields(workload="a", search={"fit:keep": "nothing", "fit:grid": True})
    row = {"name": "a", "title": "A", "sentence": "A.", "knobs": []}
    html = form_html(form, {"workloads": [row], "optimizations": [], "cards": []})
    chosen = [element["value"] for element in elements(html, "option") if "selected" in element]
    assert chosen[-2:] == ["nothing", ""]
    (grid,) = elements(html, "input", name="fit:grid")
    assert "checked" in grid


@pytest.mark.parametrize(
    ("fields", "asked", "said"),
    [
        ({"fit:keep": "everything"}, ASKED, "no such search"),
        ({"fit:largest": "layers"}, ASKED, "no such search"),
        ({}, RunRequests(), "Nothing was searched"),
        (
            {},
            RunRequests((Request("gpt2"), Request("gpt2", {"batch": "2"})), ("a", "b")),
            "needs one value for each knob",
        ),
    ],
)
def test_what_is_no_search_is_refused(fields: dict[str, Any], asked: RunRequests, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        search_order(fields, asked)


def test_a_search_that_was_stopped_shows_its_table_with_what_was_chosen() -> None:
    status = SearchStatus("id", ORDER, done=4, of=9, ways=ways(), failed="Cancelled.")
    table = rows(fit_html(status, 24 * GiB, None))
    assert [row[0] for row in table if row[-1].endswith(", chosen")] == ["Split", "Split"]
    assert missing(words(fit_head_html(status, 24 * GiB)), "4 of", "9 configurations") == []
    close = tuple({**way, "fit": "close"} for way in ways())
    assert "≈ close" in words(fit_html(SearchStatus("id", ORDER, ways=close), 24 * GiB, 1))
