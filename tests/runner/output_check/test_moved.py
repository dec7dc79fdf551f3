"""Weights that are moved: only into models that hold them as they are."""

from __future__ import annotations

from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from memviz.runner.output_check.model_runs import can_perturb, perturbed_weights


def test_a_weight_that_is_made_of_other_tensors_is_left_alone() -> None:
    """As codes and scales are, which stand for a matrix in the dtype that it had."""
    plain, ours = nn.Linear(4, 3), nn.Linear(4, 3)
    weights = perturbed_weights(plain, {})
    assert can_perturb(ours, weights, {})
    matrix = ours.weight.detach()
    ours.weight = nn.Parameter(TwoTensor(matrix, matrix.clone()))
    assert (ours.weight.dtype, ours.weight.shape) == (matrix.dtype, matrix.shape)
    assert not can_perturb(ours, weights, {})
