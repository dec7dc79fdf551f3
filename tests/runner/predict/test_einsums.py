"""The older way of `einsum`: the same numbers, lying otherwise."""

from __future__ import annotations

import pytest
import torch

from memviz.runner.predict.decompositions import einsum
from memviz.runner.predict.predicted_device import PredictedDevice
from tests.runner.predict.rows import A100

TURNED = [
    ("oi,...i->...o", (8, 4), (2, 3, 4), (3, 1, 6)),
    ("oi, ... i -> ... o", (8, 4), (5, 4), (1, 5)),
    ("bhqd,bhkd->bhkq", (2, 3, 4, 5), (2, 3, 6, 5), (72, 24, 1, 6)),
    ("if,f...->...i", (4, 8), (8, 2, 3), (3, 1, 6)),
]
AS_EVER = [
    ("...i,oi->...o", (2, 3, 4), (8, 4)),
    ("fi,...i->f...", (8, 4), (2, 3, 4)),
    ("aij,ajk->iak", (2, 3, 4), (2, 4, 5)),
    ("...d,...d->...", (2, 3, 4), (2, 3, 4)),
    ("i,j->ij", (3,), (4,)),
    ("ii,ij->ij", (3, 3), (3, 4)),
    ("ij,kj", (3, 4), (5, 4)),
]


@pytest.mark.parametrize(("equation", "left", "right", "strides"), TURNED)
def test_what_later_releases_turn_round_has_its_columns_first(
    equation: str, left: tuple[int, ...], right: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    one, other = torch.randn(left), torch.randn(right)
    found = einsum(equation, [one, other])
    assert found.stride() == strides
    torch.testing.assert_close(found, torch.einsum(equation, one, other))


@pytest.mark.parametrize(("equation", "left", "right"), AS_EVER)
def test_what_is_the_same_in_all_releases_is_left_to_torch(
    equation: str, left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    assert einsum(equation, [torch.randn(left), torch.randn(right)]) is NotImplemented


@pytest.mark.parametrize("halves", [False, True])
def test_it_is_the_release_that_decides(halves: bool) -> None:
    lies = {}
    for release in ((2, 8), (2, 9)):
        with PredictedDevice(A100, release=release), torch.autocast("cuda", dtype=torch.bfloat16, enabled=halves):
            weight = torch.zeros(8, 4, device="cuda", requires_grad=True)
            scores = torch.einsum("oi,...i->...o", weight, torch.zeros(2, 3, 4, device="cuda"))
            scores.sum().backward()
            assert scores.dtype == (torch.bfloat16 if halves else torch.float32)
            assert weight.grad is not None
            lies[release] = scores.is_contiguous()
    assert lies == {(2, 8): False, (2, 9): True}
