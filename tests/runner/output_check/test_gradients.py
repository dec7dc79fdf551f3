"""Gradients by name, from wherever they are, and losses."""

from __future__ import annotations

import math

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner.output_check.layers import LossCurve, Rounding, compare_gradients

BOUNDS = Rounding(reductions=1, expected=1e-6, fine=1e-6, floor=None, exact=None)


def test_a_flat_buffer_is_read_by_name():
    reference = {"a": torch.ones(2, 2), "b": torch.zeros(3)}
    flat = torch.tensor([1.0, 1, 1, 2, 0, 0, 0])
    ours = {"a": flat[:4], "b": flat[4:]}
    found = compare_gradients(reference, ours, reference, bounds=BOUNDS)
    assert [(parameter.name, parameter.difference.bitwise, parameter.noise) for parameter in found.parameters] == [
        ("a", False, 0.0),
        ("b", True, 0.0),
    ]
    assert found.relative_l2 == 0.5


def test_names_that_only_one_side_has_are_told():
    one = torch.ones(1)
    found = compare_gradients({"a": one, "b": one}, {"b": one, "c": one}, {"a": one, "b": one}, bounds=BOUNDS)
    assert (found.only_reference, found.only_ours) == (("a",), ("c",))


def test_another_number_of_elements_is_refused():
    with pytest.raises(UsageError, match="gradient of a has 3 elements, the reference's 4"):
        compare_gradients({"a": torch.ones(4)}, {"a": torch.ones(3)}, {"a": torch.ones(4)}, bounds=BOUNDS)


def test_noise_is_the_reference_against_itself():
    reference, again = {"a": torch.tensor([1.0])}, {"a": torch.tensor([1.5])}
    found = compare_gradients(reference, reference, again, bounds=BOUNDS)
    assert found.parameters[0].noise == 0.5


def test_a_gradient_of_nothing_but_rounding_is_measured_by_that_rounding():
    """Exactly zero, 1e-9 in float32 and 1e-17 in float64: the two exact ones agree."""
    reference, ours = {"k.bias": torch.tensor([1e-9])}, {"k.bias": torch.tensor([-2e-9])}
    exact = tuple({"k.bias": torch.tensor([value], dtype=torch.float64)} for value in (1e-17, -1e-17))
    found = compare_gradients(reference, ours, reference, bounds=BOUNDS, exact=exact)
    rounding = found.parameters[0].rounding
    assert found.parameters[0].difference.relative_l2 == pytest.approx(3)
    assert rounding.exact == pytest.approx(2e-8)
    assert rounding.floor == pytest.approx(1)


def test_losses_are_compared_step_by_step():
    curve = LossCurve((2.0, 1.0), (2.0, 1.0), (2.0, 1.1))
    assert (curve.bitwise, curve.finite, curve.noise) == (False, True, 0.0)
    assert curve.worst == pytest.approx(0.1)
    assert LossCurve((2.0,), (2.0,), (2.0,)).bitwise


def test_a_loss_that_is_not_finite_is_told_from_one_that_never_was():
    assert not LossCurve((2.0,), (2.0,), (math.nan,)).finite
    both = LossCurve((math.nan,), (math.nan,), (math.nan,))
    assert both.finite
    assert both.bitwise
