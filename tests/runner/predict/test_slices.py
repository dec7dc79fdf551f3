"""Whole slices that older releases make, and the zeros of their gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memviz.runner.predict.predicted_device import PredictedDevice
from tests.runner.predict.rows import A100, allocations

ALL, LAST = 8 * 16 * 64 * 4, 8 * 64 * 4


def _zeros_of(index: Any, release: tuple[int, int]) -> list[int]:
    with PredictedDevice(A100, release=release) as device:
        x = torch.zeros(8, 16, 64, device="cuda", requires_grad=True)
        shown = x[index]
        gradient = torch.ones_like(shown)
        before = len(allocations(device.finish()))
        shown.backward(gradient)
        return [row.size for row in allocations(device.finish())[before:] if "backward" in row.operator]


@pytest.mark.parametrize(
    ("index", "older", "newer"),
    [
        # The last slice is of what was selected, so its zeros come first and are smaller.
        ((slice(None), -1, slice(None)), [LAST, ALL, ALL], [ALL]),
        ((slice(None), -1), [ALL, ALL], [ALL]),
        ((Ellipsis, slice(None)), [ALL], []),
        ((slice(None), slice(2, 6)), [8 * 4 * 64 * 4, ALL][1:] + [ALL], [ALL]),
        (3, [ALL], [ALL]),
    ],
)
def test_every_colon_has_zeros_of_its_own_up_to_2_6(index: Any, older: list[int], newer: list[int]) -> None:
    assert _zeros_of(index, (2, 6)) == older
    assert _zeros_of(index, (2, 11)) == newer


@pytest.mark.parametrize(
    "index",
    [
        (slice(None), -1, None, slice(1, 5)),
        (None, slice(None), Ellipsis, 3),
        (slice(None), torch.tensor([1, 2, 2]), slice(None)),
        (slice(None), torch.tensor([True] * 8 + [False] * 8)),
        (slice(None), slice(None, None, 2), [0, 5]),
        (slice(None), slice(None), True),
    ],
)
def test_the_result_is_the_same(index: Any) -> None:
    real = torch.zeros(8, 16, 64)[index]
    with PredictedDevice(A100, release=(2, 6)):
        shown = torch.zeros(8, 16, 64, device="cuda", requires_grad=True)[index]
        assert (shown.shape, shown.stride()) == (real.shape, real.stride())


def test_tensors_are_no_sequences_after_it() -> None:
    with PredictedDevice(A100, release=(2, 6)):
        torch.zeros(8, 16, device="cuda")[:, 3]
    assert torch.tensor([torch.ones(()), 2.0]).tolist() == [1.0, 2.0]
