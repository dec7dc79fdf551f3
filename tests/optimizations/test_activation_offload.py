"""Activation offload: activations return bit for bit, and the device memory is free in between."""

import copy
import gc

import pytest
import torch
from torch import Tensor, nn

from optimizations.activation_offload import ActivationOffload, host_bytes
from tests.optimizations.memory import Memory
from tests.optimizations.tiny import Case, different, one_step, stack

EVERYTHING = ActivationOffload(least_mib=0.0, from_host=True)


class Shared(nn.Module):
    """One tensor saved by three operators, by one of them as a transposed view."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        return y.sin() * y.t() * y


class Graph(nn.Module):
    """Multiplies by a sparse matrix, as networks of graphs do; autograd saves that."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        edges = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 2]])
        adjacency = torch.sparse_coo_tensor(edges, torch.ones(4), (3, 3), check_invariants=False)
        return torch.sparse.mm(adjacency, self.layer(x)).relu()


def test_sparse_tensors_stay_and_the_others_go():
    torch.manual_seed(0)
    case = Case(Graph(), lambda model: model(torch.arange(24.0).reshape(3, 8)).square().mean())
    plain = one_step(case.model, case.loss)
    EVERYTHING.apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    assert host_bytes(case.model).most > 0


def test_what_several_operators_keep_is_copied_once_and_lies_as_before():
    model, x = Shared(), torch.randn(8, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    EVERYTHING.apply(model)
    output = model(x)
    # y as it is and transposed, its sine, and the first product.
    assert host_bytes(model).now == host_bytes(model).most == 4 * x.nbytes
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(gradient, expected)
    del output
    gc.collect()
    assert host_bytes(model).now == 0


def test_no_more_than_allowed_waits_there():
    case = stack()
    plain = one_step(case.model, case.loss)
    undo = EVERYTHING.apply(case.model)
    one_step(case.model, case.loss)
    whole = host_bytes(case.model).most
    undo()
    ActivationOffload(least_mib=0.0, from_host=True, most_gib=whole / 2 / (1 << 30)).apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    known = host_bytes(case.model)
    assert 0 < known.most <= known.pinned <= whole / 2


def test_weights_and_small_tensors_stay():
    model = nn.Sequential(nn.Linear(512, 1024, bias=False), nn.Tanh(), nn.Linear(1024, 4, bias=False))
    ActivationOffload(least_mib=1.0, from_host=True).apply(model)
    output = model(torch.randn(256, 512))
    # Of the input (0.5 MiB), the result of tanh (1 MiB) and the weights (2 MiB), the middle one alone.
    assert host_bytes(model).now == 1 << 20
    output.sum().backward()


def test_a_copy_moves_its_own_and_a_failed_forward_leaves_nothing_behind():
    case = stack()
    plain = one_step(case.model, case.loss)
    undo = EVERYTHING.apply(case.model)
    twin = copy.deepcopy(case.model)
    undo()
    with pytest.raises(ValueError, match="Apply ActivationOffload first"):
        host_bytes(case.model)
    assert different(plain, one_step(twin, case.loss)) == []
    assert host_bytes(twin).most > 0
    with pytest.raises(RuntimeError):
        twin(torch.randn(3, 3))
    before = host_bytes(twin).most
    x = torch.randn(100, 100, requires_grad=True)
    (x * x).sum().backward()
    assert host_bytes(twin).most == before


def test_the_device_holds_one_layers_activations_and_not_all():
    depth, width, rows = 16, 256, 4096
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth))).to("meta")
    x = torch.empty(rows, width, device="meta")
    peaks = []
    for applied in (False, True):
        undo = ActivationOffload().apply(model) if applied else lambda: None
        with Memory() as memory:
            memory.note([*model.parameters(), x])
            model(x).sum().backward()
        peaks.append(memory.peak_allocated)
        model.zero_grad()
        undo()
    weights = sum(parameter.nbytes for parameter in model.parameters())
    assert peaks[0] > weights + (depth + 1) * x.nbytes
    assert peaks[1] < 2 * weights + 5 * x.nbytes
