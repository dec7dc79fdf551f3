"""Models and optimizers are discovered through the garbage collector, and tensors by their addresses."""

import gc

import pytest
import torch
from torch import nn

from memviz.runner.record.log import Log
from memviz.runner.record.model_hooks import addresses, see_everything_alive, tensors_in
from memviz.trace.model import Category


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 5, bias=False)
        self.register_buffer("mean", torch.zeros(7))


def seen(*tensors: torch.Tensor) -> list[list[tuple[str, str]]]:
    """Return the labels of each tensor after a scan of all models and optimizers in this process."""
    gc.collect()
    log = Log(lambda: None)
    see_everything_alive(log, "cpu")
    at = [next(addresses(tensor, "cpu")) for tensor in tensors]
    return [
        [
            (each.category.label, each.module.rpartition("Pair")[2])
            for each in log.tensors_seen
            if each.address == address
        ]
        for address in at
    ]


@pytest.mark.slow
def test_a_model_with_its_gradients_and_state_is_found_without_being_named():
    model = Pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.inner(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    weight = model.inner.weight
    momentum = optimizer.state[weight]["momentum_buffer"]
    found = seen(weight, model.mean, weight.grad, momentum)
    assert [[category for category, _ in each] for each in found] == [
        ["parameter"],
        ["parameter"],
        ["gradient"],
        ["optimizer state"],
    ]
    assert {module.lstrip(".") for each in found for _, module in each} == {"inner", ""}


def test_several_models_are_told_apart_by_their_classes():
    first, second = Pair(), nn.Sequential(nn.Linear(2, 2))
    gc.collect()
    log = Log(lambda: None)
    see_everything_alive(log, "cpu")
    modules = {each.module for each in log.tensors_seen if each.category == Category.PARAMETER}
    assert {"Pair.inner", "Sequential.0"} <= modules
    del first, second


def test_a_view_is_found_at_its_storage():
    whole = torch.zeros(100)
    assert list(addresses(whole[50:], "cpu")) == [whole.data_ptr()]


def test_what_lies_elsewhere_or_nowhere_is_left_out():
    sparse = torch.eye(3).to_sparse()
    assert [list(addresses(each, "cuda")) for each in (torch.zeros(3), torch.zeros(0), sparse)] == [[], [], []]
    assert list(addresses(torch.zeros(0), "cpu")) == []
    assert list(addresses(sparse, "cpu")) == []
    assert list(addresses(torch.zeros(3, device="meta"), "cpu")) == []


def test_tensors_are_found_in_what_models_take_and_return():
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert [each.numel() for each in tensors_in(({"a": one, "b": [two]}, "text", None, (three,)))] == [1, 2, 3]


def test_a_structure_that_contains_itself_comes_to_an_end():
    loop: list[object] = [torch.zeros(1)]
    loop.append(loop)
    assert len(list(tensors_in(loop))) > 0
