"""Tests of the cards of the first visit: their fields, their figures against the predictor, and their words."""

import json
import re
from functools import cache
from typing import Any

import pytest

from memviz.predictor.cards import card_named
from memviz.runner.listing import listing
from memviz.ui.run import cards
from memviz.ui.run.cards import CARDS, cards_html, load_cards, predict_card, shown_requests
from memviz.ui.run.form import form_fields_of, requests_of
from memviz.ui.run.published_examples import PUBLISHED, STORIES, published_table_html, story_fields
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
