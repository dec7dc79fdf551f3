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
        assert any("equal none" in sentence for sentence in device.unseen())


def test_a_loss_on_the_host_counts_as_one() -> None:
    with PredictedDevice(A100) as device:
        loss = torch.rand((), device="cuda").cpu()
        assert loss < torch.tensor(float("inf")) and not loss > 3
        assert any("as if it were 1.0" in sentence for sentence in device.unseen())


def test_what_has_no_natural_answer_is_refused() -> None:
    with PredictedDevice(A100):
        many = torch.rand(4, device="cuda")
        with pytest.raises(DataNeeded):
            bool((many > 0.5).any())
        tokens = torch.rand(4, 100, device="cuda").argmax(-1)
        with pytest.raises(DataNeeded):
            bool((tokens > 5).any())
