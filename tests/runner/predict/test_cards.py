from __future__ import annotations

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner.predict.cards import CARDS, KnownCard, card_named
from memviz.runner.predict.predicted_device import PredictedDevice
from tests.runner.predict.rows import sizes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "NVIDIA H200"),
        ("H20", "NVIDIA H20"),
        ("A100 40GB", "NVIDIA A100 40GB"),
        ("a100 80", "NVIDIA A100 80GB"),
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("4090 laptop", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        ("4060 ti", "NVIDIA GeForce RTX 4060 Ti"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("l4", "NVIDIA L4"),
        ("t4", "Tesla T4"),
        ("NVIDIA T4", "Tesla T4"),
        ("a6000", "NVIDIA RTX A6000"),
        ("mi300x", "AMD Instinct MI300X"),
    ],
)
def test_a_card_is_found_by_a_part_of_its_name(text: str, name: str) -> None:
    assert card_named(text).name == name


def test_every_card_is_found_by_its_own_name() -> None:
    assert [card_named(card.name) for card in CARDS] == list(CARDS)
    assert len({card.name for card in CARDS}) == len(CARDS)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A100", "A100 80GB or A100 40GB"),
        ("rtx 6000", "RTX PRO 6000 Blackwell or RTX 6000 Ada Generation or RTX A6000"),
        ("h20o", "No card is known as 'h20o'"),
        ("", "No card"),
    ],
)
def test_a_name_that_says_too_little_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        card_named(text)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_workspaces_follow_the_architecture(card: KnownCard) -> None:
    """Blackwell's are as large as Hopper's from torch 2.12 on; what another rule would give is another size."""
    small, large, amd = 8_519_680, 32 << 20, 128 << 20
    major = card.capability[0]
    now, before = (amd, amd) if card.is_amd else (large if major >= 9 else small, large if major == 9 else small)
    assert (card.cublas_workspace_in((2, 13)), card.cublas_workspace_in((2, 11))) == (now, before)
    assert card.cublas_workspace_bytes == now


def test_the_first_product_takes_the_workspace_of_its_release() -> None:
    found = {}
    for release in ((2, 11), (2, 12)):
        with PredictedDevice(card_named("RTX 5090"), release=release) as device:
            x = torch.empty(64, 64, device="cuda")
            x @ x
            found[release] = max(sizes(device.finish()))
    assert found == {(2, 11): 8_519_680, (2, 12): 32 << 20}


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_threads_follow_the_capability(card: KnownCard) -> None:
    """As CUDA's tables of compute capabilities have them."""
    known = {(7, 0): 2048, (7, 5): 1024, (8, 0): 2048, (8, 6): 1536, (8, 9): 1536, (9, 0): 2048}
    known |= {(10, 0): 2048, (12, 0): 1536, (9, 4): 2048}
    assert card.threads_per_multiprocessor == known[card.capability]


_SOLD = (4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 141, 180, 192)


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_each_card_has_a_little_less_than_a_size_that_is_sold(card: KnownCard) -> None:
    """And as much as its own name says."""
    size = min(size for size in _SOLD if size >= card.memory_gib)
    assert 0.91 * size < card.memory_gib < size
    said = [int(word[:-2]) for word in card.name.split() if word.endswith("GB")]
    assert said in ([], [size], [480])
