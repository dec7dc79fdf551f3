"""CUDA features that no rule models are refused with the reason."""

import ctypes.util
from collections.abc import Callable

import pytest
import torch

from memviz.predictor.assumptions import NotPredicted
from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100


def own_allocator() -> None:
    torch.cuda.memory.CUDAPluggableAllocator(ctypes.util.find_library("c"), "malloc", "free")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (own_allocator, "a custom allocator .* its rules are unknown"),
        (lambda: torch.cuda.tunable.enable(True), "torch.cuda.tunable cannot be predicted: while it tunes kernels"),
    ],
)
def test_it_is_named_with_the_reason(program: Callable[[], None], said: str) -> None:
    with PredictedDevice(A100), pytest.raises(NotPredicted, match=said):
        program()


def test_whoever_turns_tuning_off_goes_on() -> None:
    with PredictedDevice(A100):
        torch.cuda.tunable.enable(False)
        assert not torch.cuda.tunable.is_enabled()
