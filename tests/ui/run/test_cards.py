"""The examples: cards of the first visit against the predictor, published tables, and a model for each finding."""

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from memviz.predictor.cards import card_named
from memviz.runner.execute import predict
from memviz.runner.listing import listing
from memviz.runner.plan import plan_of
from memviz.ui.explore.findings import _RUN, _TABS
from memviz.ui.run import cards
from memviz.ui.run import published_examples as run_tables
from memviz.ui.run.cards import CARDS, cards_html, load_cards, predict_card, shown_requests
from memviz.ui.run.form import form_fields_of, requests_of, without_effect
from memviz.ui.run.form_html import stand_in_note
from memviz.ui.run.published_examples import (
    PUBLISHED,
    STAND_INS,
    STORIES,
    PublishedTables,
    published_table_html,
    stand_in_fields,
    story_fields,
)
from tests.ui.page import words

AGAIN = "Predict them again: python -m memviz.ui.run.cards"
ON_A_CARD = ("flux-12-gb", "sdxl-8-gb", "llama-8b-lora", "llama-1b")
"""Stories of a baseline that does not fit on the card of the title, and of a variant that does."""


@cache
def offered() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(listing()))
    return found


@pytest.mark.parametrize("story", STORIES)
def test_the_fields_of_every_story_are_accepted(story: str) -> None:
    found = requests_of(form_fields_of(story_fields(story, {}), offered()), offered())
    assert found.faults == {} and found.count > 1
    assert "optimizer" in STORIES[story], "the form's own default is another one"


def test_six_cards_and_two_links_offer_all_stories_in_few_words() -> None:
    html = cards_html()
    assert len(CARDS) == 6
    assert sorted(re.findall(r'data-story="([^"]+)"', html)) == sorted(STORIES)
    assert html.count('data-act="story"') == len(STORIES)
    assert len(words(cards_html()).split()) <= 90
    assert len(re.sub("<[^>]+>", "", re.findall("<h2>(.*?)</h2>", cards_html())[0]).split()) <= 12
    assert cards._FILE.stat().st_size < 60 << 10
    for name in CARDS:
        baseline, variant = shown_requests(name, offered())
        assert not baseline.optimizations and variant.optimizations, name
        assert baseline.settings == variant.settings


def test_a_story_of_a_card_sets_it_and_has_no_published_table() -> None:
    for name in ON_A_CARD:
        fields = story_fields(name, {"card": "NVIDIA L4"})
        assert fields["card"] == load_cards()[name]["card"]
        assert not published_table_html(name, None)
    assert all(published_table_html(name, None) for name in PUBLISHED)


def test_the_figures_say_what_the_titles_claim() -> None:
    stored = load_cards()
    assert stored.keys() == CARDS.keys()
    for name in (*ON_A_CARD, "checkpointing"):
        assert [run["fit"] for run in stored[name]["runs"]] == ["no", "yes"]
    for name, title in ((name, CARDS[name]) for name in ON_A_CARD):
        size = int(title.split(" on ")[1].removesuffix(" GB"))
        assert size - 0.5 < card_named(stored[name]["card"]).memory_gib < size
        before, after = (run["reserved_bytes"] / (1 << 30) for run in stored[name]["runs"])
        assert f"{before:.1f} → {after:.1f} GiB" in cards_html()
    whole, split = stored["split-feed-forward"]["runs"]
    assert split["reserved_bytes"] < 0.7 * whole["reserved_bytes"]


def test_the_pictures_reach_the_peaks_and_their_lines_leave_nothing_out() -> None:
    for card in load_cards().values():
        for run in card["runs"]:
            peak = run["reserved_bytes"] >> 20
            assert max(run["reserved"]) == peak
            totals = [sum(column) for column in zip(*run["layers"].values(), strict=True)]
            assert len(totals) == len(run["reserved"]) == 80
            # Each category is rounded by itself.
            rounding = len(run["layers"])
            assert all(total <= most + rounding for total, most in zip(totals, run["reserved"], strict=True))
    assert cards._svg_steps([0, 0, 60, 60, 120], 120) == "120h1l1 -60h1l1 -60"
    assert cards._svg_steps([120], 120) == "0"


@pytest.mark.slow
@pytest.mark.parametrize("name", CARDS)
def test_peaks_and_lines_are_those_that_are_predicted(name: str) -> None:
    assert predict_card(name, offered()) == load_cards()[name], AGAIN


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
