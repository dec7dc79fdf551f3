"""The palette's colours are distinguishable with colour blindness, and readable on both backgrounds."""

from itertools import combinations

import pytest

from memviz.figures.theme import CONFIG, DARK, LIGHT, mixed, text_on
from memviz.trace.model import Category
from tests.figures.colour import SIGHT, contrast, distance

LEAST_DISTANCE = 0.08
both_modes = pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])


@both_modes
@pytest.mark.parametrize("sight", SIGHT)
def test_any_two_categories_and_growing_and_shrinking_look_different(colours, sight):
    hues = set(colours.categories.values())
    assert min(distance(one, other, sight) for one, other in combinations(hues, 2)) >= LEAST_DISTANCE
    assert distance(colours.grew, colours.shrank, sight) > 0.17


@both_modes
def test_words_and_text_on_any_fill_can_be_read_and_every_category_has_a_colour(colours):
    assert contrast(colours.ink, colours.page) > 15
    assert contrast(colours.ink_2, colours.page) > 7
    assert contrast(colours.ink_3, colours.page) > 4.5
    assert min(contrast(each, colours.page) for each in (colours.grew, colours.shrank, colours.bad, colours.warn)) > 4.5
    assert min(contrast(text_on(fill), fill) for fill in colours.categories.values()) > 4.5
    assert set(colours.categories) == set(Category)
    # Trainers by reinforcement have both in one process.
    assert colours.category(Category.KV_CACHE) != colours.category(Category.OPTIMIZER_STATE)


def test_mixing_goes_from_one_colour_to_the_other_and_nothing_is_sent_anywhere():
    assert [mixed("#000000", "#ff8000", share) for share in (0, 0.5, 1)] == ["#000000", "#804000", "#ff8000"]
    assert CONFIG["showSendToCloud"] is False
    assert CONFIG["displaylogo"] is False
