"""Tests of the published examples: precomputed tables, and a model for each finding."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from memviz.runner.execute import predict
from memviz.runner.listing import listing
from memviz.runner.plan import plan_of
from memviz.ui.explore.findings import _RUN, _TABS
from memviz.ui.run import published_examples as run_tables
from memviz.ui.run.form import form_fields_of, requests_of, without_effect
from memviz.ui.run.form_html import stand_in_note
from memviz.ui.run.published_examples import STAND_INS, PublishedTables, published_table_html, stand_in_fields

SMALL = {"gpt2": {"batch": "4"}, "flux": {"double_layers": "2", "single_layers": "2"}}


@pytest.mark.slow
def test_every_finding_that_leads_to_run_has_one() -> None:
    assert {kind for kind, tab in _TABS.items() if tab == _RUN} == STAND_INS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("finding", STAND_INS)
def test_what_helps_has_an_effect_on_it(finding: str) -> None:
    offered = json.loads(json.dumps(listing()))
    form = form_fields_of(stand_in_fields(finding, {"card": "NVIDIA L4", "o:lora": True}), offered)
    found = requests_of(form, offered)
    assert (found.faults, found.count, len(form.chosen)) == ({}, 2, 1), "where it runs stays, and nothing else"
    assert form.chosen[0] not in without_effect(form, offered)
    title = next(row["title"] for row in offered["workloads"] if row["name"] == form.workload)
    assert title in stand_in_note(form, offered)
    peaks = []
    for request in found.requests:
        small = replace(request, settings={**request.settings, **SMALL[form.workload]}, numerics=False)
        peaks.append(predict(plan_of(small), lambda _: None).run.peak_reserved_bytes)
    assert peaks[1] < 0.95 * peaks[0]


def test_a_table_is_computed_once_for_all_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def rows_of(seed: str) -> Iterator[dict[str, Any]]:
        begun.append(seed)
        yield from ({"case": str(number)} for number in range(3))

    monkeypatch.setattr(run_tables, "rows_of", rows_of)
    tables = PublishedTables()
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(list(tables.rows("flat")))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun == ["flat"]
    assert sorted(map(len, found)) == [1, 1, 4]
    assert [each[-1] for each in found] == [([{"case": "0"}, {"case": "1"}, {"case": "2"}], True)] * 3


def test_a_table_that_was_left_half_way_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tables, "rows_of", lambda seed: iter([{"case": "0"}, {"case": "1"}]))
    tables = PublishedTables()
    rows = tables.rows("flat")
    assert next(rows) == ([{"case": "0"}], False)
    rows.close()  # type: ignore[attr-defined]
    assert list(tables.rows("flat"))[-1] == ([{"case": "0"}, {"case": "1"}], True)


def test_the_published_table_is_computed_on_demand() -> None:
    assert published_table_html("", None) == ""
    assert "Compute it" in published_table_html("checkpointing", None)
    row = {"case": "none", "figure": "reserved GiB", "published": 26.719, "ours": 26.5, "difference_percent": -0.82}
    html = published_table_html(
        "checkpointing", [{**row, "note": "<b>"}, {**row, "published": None, "difference_percent": None, "note": ""}]
    )
    assert "26.719" in html and "-0.82 %" in html and "&lt;b&gt;" in html
    assert "it broke" in published_table_html("checkpointing", [], fault="it broke")
    half = published_table_html("checkpointing", [{**row, "note": ""}], waiting=True)
    assert "26.719" in half and "1 done" in half
