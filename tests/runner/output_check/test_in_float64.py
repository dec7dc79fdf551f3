"""A module in float64 for a moment."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memviz.runner.output_check import model_runs
from memviz.runner.output_check.model_runs import fits_in_float64, in_double


def test_a_module_computes_in_float64_and_is_as_before():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    kept = {name: (each, each.data_ptr(), each.clone()) for name, each in module.state_dict(keep_vars=True).items()}
    with in_double(module):
        assert module(torch.zeros(2, 3, dtype=torch.float64)).dtype == torch.float64
        assert module[1].num_batches_tracked.dtype == torch.int64
    for name, each in module.state_dict(keep_vars=True).items():
        same, place, values = kept[name]
        assert each is same
        assert each.data_ptr() == place
        assert torch.equal(each, values)


def test_tied_weights_stay_tied():
    first, second = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    second.weight = first.weight
    with in_double(first, second):
        assert second.weight is first.weight
        assert first.weight.dtype == torch.float64
    assert second.weight is first.weight


def test_it_is_as_before_after_an_error_too():
    module = nn.Linear(2, 2)
    with pytest.raises(ZeroDivisionError), in_double(module):
        raise ZeroDivisionError
    assert module.weight.dtype == torch.float32


def test_backward_in_float64_leaves_no_gradient_of_that_type():
    module = nn.Linear(2, 2)
    with in_double(module):
        module(torch.ones(1, 2, dtype=torch.float64)).sum().backward()
        assert module.weight.grad.dtype == torch.float64
    assert module.weight.grad is None
    module(torch.ones(1, 2)).sum().backward()
    assert module.weight.grad.dtype == torch.float32


def test_a_module_that_would_take_too_much_does_not_fit(monkeypatch):
    module = nn.Linear(10, 10, bias=False)
    monkeypatch.setattr(model_runs, "FLOAT64_LIMIT_BYTES", 800)
    assert fits_in_float64(module)
    assert not fits_in_float64(module, nn.Linear(1, 1))
