"""Results whose length depends on values: the program or a rule states it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import memviz
from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from tests.facts import missing
from tests.predictor.rows import A100
from tests.predictor.test_unknown_values import WHOLE, there

LENGTHS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "bins": (lambda: torch.bincount(there(9, dtype=WHOLE)), lambda: torch.zeros(4, dtype=WHOLE)),
    "bins of weights": (
        lambda: torch.bincount(there(9, dtype=WHOLE), there(9).double()),
        lambda: torch.zeros(4).double(),
    ),
    "bins of the host": (lambda: torch.bincount(there(9, dtype=WHOLE).cpu()), lambda: torch.zeros(4, dtype=WHOLE)),
    "different": (lambda: there(3, 3).unique(), lambda: torch.zeros(4)),
    "where each went": (
        lambda: there(3, 3).unique(return_inverse=True)[1],
        lambda: torch.zeros(3, 3, dtype=WHOLE),
    ),
    "how many of each": (
        lambda: there(9).unique_consecutive(return_counts=True)[1],
        lambda: torch.zeros(4, dtype=WHOLE),
    ),
    "rows": (lambda: there(5, 2).unique(dim=0), lambda: torch.zeros(4, 2)),
    "repeated": (lambda: there(2).repeat_interleave(there(2, dtype=WHOLE)), lambda: torch.zeros(4)),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_that_nobody_computes_can_be_stated(name: str) -> None:
    ask, like = LENGTHS[name]
    line = ask.__code__.co_firstlineno
    with PredictedDevice(A100, assume={f"{Path(__file__).name}:{line}": 4}):
        found = ask()
        assert found.is_cuda is not name.endswith("the host")
        expected = like()
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)


def test_bins_are_as_many_as_the_program_says_at_least() -> None:
    """A confusion matrix, as evaluations write it."""
    with PredictedDevice(A100) as device:
        counted = torch.bincount(there(9, dtype=WHOLE).cpu() * 3, minlength=9).reshape(3, 3)
        assert (counted.shape, counted.is_cuda) == ((3, 3), False)
    (stated,) = device.recorder.assumptions.stated
    assert missing(stated.what, "counted values", "below 9") == []
    assert f"{Path(__file__).name}:" in stated.where


def test_what_is_counted_into_bins_falls_evenly_into_them() -> None:
    """Tokens per expert are assumed even, so that each part has a size; printed values stay unknown."""
    with PredictedDevice(A100) as device:
        tokens, counts = torch.zeros(48, 4, device="cuda"), torch.bincount(there(48, dtype=WHOLE), minlength=8)
        assert [part.shape for part in tokens.split(counts.tolist())] == [(6, 4)] * 8
        assert counts.cpu().numpy().cumsum().tolist() == list(range(6, 54, 6))
        assert str(counts.tolist()) == str(["unknown"] * 8).replace("'", "")
        uneven = torch.bincount(there(50, dtype=WHOLE), minlength=8)
        assert [part.size(0) for part in torch.zeros(50, device="cuda").split(uneven.tolist())] == [7, 7, *[6] * 6]
    said = [stated.what for stated in device.recorder.assumptions.stated]
    assert any("counts as 6 in conditions" in what for what in said)


def test_a_recording_proves_no_size_that_is_assumed() -> None:
    assumed = memviz.predict(lambda: there(9)[there(9) > 0.5]).expected_error
    known = memviz.predict(lambda: there(9)[torch.arange(9, device="cuda") > 5]).expected_error
    assert known.not_covered == () and len(assumed.not_covered) == 1


def test_a_length_that_is_none_is_refused() -> None:
    with PredictedDevice(A100, assume={f"{Path(__file__).name}:{_LINE}": 0.5}), pytest.raises(UsageError, match="0.5"):
        _count()


def _count() -> Any:
    return there(3).unique()


_LINE = _count.__code__.co_firstlineno + 1
