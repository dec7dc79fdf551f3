"""What is said of memory beside PyTorch's allocator, by kind of card."""

from __future__ import annotations

import pytest

from memviz.allocator.context import A100, context_sentence, overhead_on
from memviz.allocator.what_if import OVERHEAD_BYTES

GiB = 1 << 30


@pytest.mark.parametrize("card", ["NVIDIA A100 40GB", "NVIDIA A100 80GB"])
def test_where_it_is_known_the_most_that_was_seen_is_set_aside(card: str) -> None:
    assert overhead_on(card) == A100.most_bytes == int(1.75 * GiB)
    assert "1.38 to 1.75 GiB on an A100, by nvidia-smi in two public data sets" in context_sentence(card)
    assert "1,792 MiB set aside" in context_sentence(card) and "assumption" not in context_sentence(card)


@pytest.mark.parametrize("card", ["NVIDIA A10", "NVIDIA H100 80GB", "NVIDIA T4", ""])
def test_where_it_is_not_known_it_is_said_to_be_an_assumption(card: str) -> None:
    assert overhead_on(card) == OVERHEAD_BYTES
    assert "not known for this card" in context_sentence(card) and "512 MiB set aside" in context_sentence(card)
    assert context_sentence(card).endswith("an assumption.")
