"""What is set aside of each card, against its architecture."""

from __future__ import annotations

import pytest

from memviz.allocator import context
from memviz.allocator.context import context_on
from memviz.runner.predict.cards import CARDS, KnownCard

_OF_CAPABILITY = {
    (7, 0): context.VOLTA,
    (7, 5): context.TURING,
    (8, 0): context.A100,
    (8, 6): context.AMPERE,
    (8, 9): context.ADA,
    (9, 0): context.HOPPER,
    (9, 4): context.UNKNOWN,
    (10, 0): context.BLACKWELL,
    (12, 0): context.BLACKWELL,
}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_card_is_of_the_generation_that_its_capability_says(card: KnownCard) -> None:
    assert context_on(card.name) is _OF_CAPABILITY[card.capability]
