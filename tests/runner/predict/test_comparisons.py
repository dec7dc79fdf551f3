"""Decisions by comparisons of what nobody computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.predict.prediction_errors import DataNeeded
from tests.runner.predict.rows import A100

DONE: dict[str, Callable[[Tensor], Tensor]] = {
    "all of them": lambda tokens: (tokens == 5).all(),
    "one of them": lambda tokens: tokens[0] == 5,
    "in words": lambda tokens: torch.any(torch.eq(tokens, 5)),
    "the other way round": lambda tokens: ~(tokens != 5).all(),
    "with what was done before": lambda tokens: (torch.zeros(4, dtype=torch.bool, device="cuda") | (tokens == 5)).all(),
    "on the host": lambda tokens: (tokens.cpu() == 5).all(),
}


@pytest.mark.parametrize("way", DONE)
def test_an_unknown_token_is_not_the_end_and_that_is_stated(way: str) -> None:
    with PredictedDevice(A100) as device:
        tokens = torch.rand(4, 100, device="cuda").argmax(-1)
        assert not DONE[way](tokens)
        assert any("is taken to be False" in sentence or "taken to be True" in sentence for sentence in device.unseen())


def test_a_loss_on_the_host_counts_as_one() -> None:
    with PredictedDevice(A100) as device:
        loss = (torch.rand(2, device="cuda") @ torch.rand(2, device="cuda")).cpu()
        assert loss < torch.tensor(float("inf")) and not loss > 3
        assert any("1.0" in sentence or "taken to be" in sentence for sentence in device.unseen())


DRAWN: dict[str, Callable[[], object]] = {
    "a number": lambda: torch.rand(1, device="cuda").item() < 0.5,
    "a tensor": lambda: bool(torch.rand((), device="cuda") < 0.5),
    "any": lambda: bool((torch.randn(8, device="cuda") > 0).any()),
    "a mean": lambda: bool(torch.randn(8, device="cuda").mean() * 2 > 1),
    "a size": lambda: torch.empty(torch.randint(1, 9, (300,), device="cuda")[0].item()),
    "an index": lambda: [1, 2][torch.randint(2, (300,), device="cuda")[0]],
    "a count": lambda: int((torch.rand(8, device="cuda") > 0.5).sum()),
    "of the host": lambda: bool(torch.rand((), device="cuda").cpu() < 0.5),
}


@pytest.mark.parametrize("way", DRAWN)
def test_what_is_drawn_on_the_card_decides_nothing(way: str) -> None:
    with PredictedDevice(A100), pytest.raises(DataNeeded):
        DRAWN[way]()


def test_what_has_no_natural_answer_is_refused() -> None:
    with PredictedDevice(A100):
        tokens = torch.rand(4, 100, device="cuda").argmax(-1)
        with pytest.raises(DataNeeded):
            bool((tokens > 5).any())
