"""`one_hot` is zeros on a card, and ones put among them: what it gives, takes and says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from memviz.runner.predict.predicted_device import PredictedDevice
from tests.runner.predict.rows import A100, sizes


def taken(program: Callable[[Tensor], Any], *, inference: bool = False) -> list[int]:
    """Behind the places themselves."""
    with PredictedDevice(A100) as device, torch.inference_mode(inference):
        program(torch.tensor([[4, 1, 0], [2, 2, 3]], device="cuda"))
        return sizes(device.finish())[1:]


@pytest.mark.parametrize("inference", [False, True])
def test_it_takes_its_result_and_nothing_else(inference: bool) -> None:
    assert taken(lambda places: one_hot(places, 8), inference=inference) == [6 * 8 * 8]
    # How many there are is looked up: the largest is a number of its own.
    assert taken(one_hot, inference=inference) == [8, 6 * 5 * 8]
    assert taken(lambda places: one_hot(places[:0], 8), inference=inference) == []


def test_values_that_are_known_stay_so() -> None:
    with PredictedDevice(A100):
        places = torch.tensor([2, 0], device="cuda")
        assert one_hot(places).tolist() == [[0, 0, 1], [1, 0, 0]]
        assert one_hot(places, 4).sum(0).tolist() == [1, 0, 1, 0]


ERRORS: dict[str, Callable[[Tensor], Any]] = {
    "LongTensor": lambda places: one_hot(places.int(), 8),
    "should be positive": lambda places: one_hot(places, 0),
    "from empty tensor": lambda places: one_hot(places[:0]),
}


@pytest.mark.parametrize("said", ERRORS)
def test_errors_are_those_of_a_card(said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        taken(ERRORS[said])
