from __future__ import annotations

import pytest

from memviz.errors import UsageError
from memviz.runner.predict.cards import CARDS, card_named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h200", "NVIDIA H200"),
        ("A100 40GB", "NVIDIA A100 40GB"),
        ("a100 80", "NVIDIA A100 80GB"),
        ("RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("l4", "NVIDIA L4"),
        ("t4", "NVIDIA T4"),
    ],
)
def test_a_card_is_found_by_a_part_of_its_name(text: str, name: str) -> None:
    assert card_named(text).name == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("A100", "A100 80GB or A100 40GB"),
        ("h20o", "No card is known as 'h20o'.* There are B200, H200"),
        ("", "No card"),
    ],
)
def test_a_name_that_says_too_little_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        card_named(text)


def test_workspaces_follow_the_architecture() -> None:
    sizes = {each.name.split()[-1 if "RTX" in each.name else 1]: each.cublas_workspace_bytes for each in CARDS}
    large = {name for name, size in sizes.items() if size == 32 << 20}
    assert large == {"B200", "H200", "H100", "5090"}
    assert set(sizes.values()) == {32 << 20, 8_519_680}


def test_each_card_has_less_than_it_is_sold_with() -> None:
    sold = {"B200": 192, "H200": 141, "80GB": 80, "40GB": 40, "32GB": 32, "L40S": 48, "A10": 24, "T4": 16}
    for each in CARDS:
        most = sold.get(each.name.split()[-1])
        assert most is None or 0.85 * most < each.memory_gib < most
