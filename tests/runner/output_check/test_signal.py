"""How much an output can show."""

from __future__ import annotations

import pytest
import torch

from memviz.runner.output_check.verdict import Signal, signal_of
from tests.runner.output_check.models import stack, tokens


def signal_through(residual: bool) -> Signal:
    inputs = tokens()
    with torch.no_grad():
        outputs = stack(residual=residual)()(**inputs)
    found = signal_of(inputs.values(), outputs.values())
    assert found is not None
    return found


def test_plain_layers_of_default_initialization_end_in_a_bias():
    found = signal_through(residual=False)
    assert found.weak
    assert found.varying < 1e-3
    assert "varies from row to row" in found.words


def test_residual_layers_keep_the_signal():
    found = signal_through(residual=True)
    assert not found.weak
    assert found.varying > 0.9
    assert found.words == ""


def test_an_output_far_smaller_than_its_input_says_so():
    x = torch.randn(10, 4)
    found = signal_of([x], [x * 1e-3])
    assert found is not None
    assert found.varying > 0.9
    assert found.words.startswith("The output's standard deviation is ")


def test_one_row_varies_by_definition():
    found = signal_of([], [torch.tensor([[1.0, 2.0]])])
    assert found == Signal(None, 0.5, 1.0)


@pytest.mark.parametrize("outputs", [[], [torch.tensor([1, 2])], [torch.empty(0)]])
def test_nothing_to_look_at(outputs):
    assert signal_of([torch.ones(1)], outputs) is None
