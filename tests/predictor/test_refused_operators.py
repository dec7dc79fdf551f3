"""Unpredictable operators are refused with their name and a remedy."""

import pytest
import torch
from torch import Tensor

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100


@torch.library.custom_op("tests_of_memviz::without_shapes", mutates_args=())
def without_shapes(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("tests_of_memviz::with_shapes", mutates_args=())
def with_shapes(x: Tensor) -> Tensor:
    return x * 2


with_shapes.register_fake(torch.empty_like)


def test_an_operator_of_ones_own_is_told_to_say_its_shapes() -> None:
    remedy = r'with @torch\.library\.register_fake\("tests_of_memviz::without_shapes"\)'
    with PredictedDevice(A100), pytest.raises(UsageError, match=f"without_shapes cannot be predicted: .* {remedy}"):
        without_shapes(torch.ones(3, device="cuda"))


def test_one_that_says_its_shapes_is_predicted() -> None:
    with PredictedDevice(A100) as device:
        x = torch.ones(300, device="cuda")
        before = device.allocated_bytes
        doubled = with_shapes(x)
        assert device.allocated_bytes - before == 1536 and doubled.is_cuda


def test_operators_without_a_rule_of_torchs_own_have_one_here() -> None:
    with PredictedDevice(A100):
        scores = torch.rand(4, 5, device="cuda", requires_grad=True)
        targets = torch.zeros(4, 5, dtype=torch.long, device="cuda")
        loss = torch.nn.functional.multi_margin_loss(scores, targets[:, 0])
        (loss + torch.nn.functional.multilabel_margin_loss(scores, targets)).backward()
        assert scores.grad is not None and scores.grad.is_cuda and scores.grad.shape == (4, 5)
        factors, tau = torch.geqrf(scores.detach())
        assert factors.is_cuda and factors.shape == (4, 5) and factors.stride() == (1, 4) and tau.shape == (4,)
