"""Gradients that torch puts among zeros in place, where a card runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from memviz.runner.predict.predicted_device import PredictedDevice
from tests.runner.predict.rows import A100, allocations

ALL = 64 * 128 * 4


def _of_full_size(run: Callable[[Tensor], Tensor]) -> int:
    """Allocations as large as the input while backward runs."""
    with PredictedDevice(A100) as device:
        x = torch.zeros(64, 128, device="cuda", requires_grad=True)
        out = run(x)
        gradient = torch.ones_like(out)
        before = len(allocations(device.finish()))
        out.backward(gradient)
        assert x.grad is not None and x.grad.shape == x.shape
        return [row.size for row in allocations(device.finish())[before:]].count(ALL)


def _places(*shape: int) -> Tensor:
    return torch.zeros(shape, device="cuda", dtype=torch.int64)


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x[_places(5)],
        lambda x: x.gather(0, _places(3, 128)),
        lambda x: x.index_select(0, _places(3)),
        lambda x: x.max(0).values,
        lambda x: x.topk(3).values,
        lambda x: x.take(_places(7)),
    ],
)
def test_there_are_only_the_zeros(run: Callable[[Tensor], Tensor]) -> None:
    assert _of_full_size(run) == 1


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x[:5].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        zeros = gradients[0].new_zeros(64, 128)
        return zeros.index_add(0, _places(5), gradients[0])


def test_what_a_program_writes_out_of_place_takes_memory() -> None:
    assert _of_full_size(lambda x: _Own.apply(x)) == 2
