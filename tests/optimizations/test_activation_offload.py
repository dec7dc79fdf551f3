"""Activations on the host: they come back to the bit, and the device is free of them meanwhile."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import Tensor, nn

from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from optimizations import activation_offload
from optimizations.activation_offload import ActivationOffload, host_bytes
from optimizations.checkpointing import Checkpointing
from tests.optimizations.memory import Memory
from tests.optimizations.tiny import Case, different, gpt2, llama, ltx, one_step, stack, vit

EVERYTHING = ActivationOffload(least_mib=0.0)


@pytest.fixture
def cpu_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that numbers travel, there being no other device here."""
    monkeypatch.setattr(activation_offload, "_is_on_host", lambda tensor: False)


@pytest.mark.slow
@pytest.mark.usefixtures("cpu_is_a_device")
@pytest.mark.parametrize("case", [stack, gpt2, llama, ltx, vit], ids=lambda each: each.__name__)
@pytest.mark.parametrize("checkpointed", [False, True])
def test_loss_and_gradients_are_the_same_to_the_bit(case, checkpointed):
    made = case()
    plain = one_step(made.model, made.loss)
    undo_checkpointing = Checkpointing().apply(made.model) if checkpointed else lambda: None
    undo = EVERYTHING.apply(made.model)
    assert different(plain, one_step(made.model, made.loss)) == []
    moved = host_bytes(made.model)
    assert moved.now == 0
    assert moved.most > 0
    undo()
    undo_checkpointing()
    assert different(plain, one_step(made.model, made.loss)) == []


class Shared(nn.Module):
    """One tensor kept by three operators, by one of them as a transposed view."""

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


@pytest.mark.usefixtures("cpu_is_a_device")
def test_sparse_tensors_stay_and_the_others_go():
    torch.manual_seed(0)
    case = Case(Graph(), lambda model: model(torch.arange(24.0).reshape(3, 8)).square().mean())
    plain = one_step(case.model, case.loss)
    EVERYTHING.apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    assert host_bytes(case.model).most > 0


@pytest.mark.usefixtures("cpu_is_a_device")
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


@pytest.mark.usefixtures("cpu_is_a_device")
def test_no_more_than_allowed_waits_there():
    case = stack()
    plain = one_step(case.model, case.loss)
    undo = EVERYTHING.apply(case.model)
    one_step(case.model, case.loss)
    whole = host_bytes(case.model).most
    undo()
    ActivationOffload(least_mib=0.0, most_gib=whole / 2 / (1 << 30)).apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    known = host_bytes(case.model)
    assert 0 < known.most <= known.pinned <= whole / 2


@pytest.mark.usefixtures("cpu_is_a_device")
def test_weights_and_small_tensors_stay():
    model = nn.Sequential(nn.Linear(512, 1024, bias=False), nn.Tanh(), nn.Linear(1024, 4, bias=False))
    ActivationOffload(least_mib=1.0).apply(model)
    output = model(torch.randn(256, 512))
    # Of the input (0.5 MiB), the result of tanh (1 MiB) and the weights (2 MiB), the middle one alone.
    assert host_bytes(model).now == 1 << 20
    output.sum().backward()


@pytest.mark.usefixtures("cpu_is_a_device")
def test_a_copy_moves_its_own_and_a_failed_forward_leaves_nothing_behind():
    case = stack()
    plain = one_step(case.model, case.loss)
    undo = EVERYTHING.apply(case.model)
    twin = copy.deepcopy(case.model)
    undo()
    with pytest.raises(ValueError, match="apply ActivationOffload first"):
        host_bytes(case.model)
    assert different(plain, one_step(twin, case.loss)) == []
    assert host_bytes(twin).most > 0
    with pytest.raises(RuntimeError):
        twin(torch.randn(3, 3))
    before = host_bytes(twin).most
    x = torch.randn(100, 100, requires_grad=True)
    (x * x).sum().backward()
    assert host_bytes(twin).most == before
    with pytest.raises(ValueError, match="already"):
        EVERYTHING.apply(twin)


@pytest.mark.parametrize("knobs", [{"least_mib": -1.0}, {"most_gib": -0.5}])
def test_sizes_below_nothing_are_refused(knobs):
    with pytest.raises(ValueError, match="the least is 0"):
        ActivationOffload(**knobs)
    with pytest.raises(ValueError, match="keeps nothing for backward"):
        ActivationOffload().check(stack().model, training=False)


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


@pytest.mark.slow
def test_a_prediction_counts_the_bytes_both_ways():
    settings, runs = {"layers": "3", "sequence": "4096"}, []
    for chosen in ((), (("activation_offload", {}),)):
        chosen = (("chunked_cross_entropy", {}), *chosen)
        runs.append(predict(plan_of(Request("llama", settings, chosen, numerics=False)), lambda _: None).run)
    assert runs[0].host_bytes == 0
    assert runs[1].peak_allocated_bytes < runs[0].peak_allocated_bytes
    # There and back again; each block keeps at least its input, its queries and the inner tensors of its feed-forward.
    assert runs[1].host_bytes % 2 == 0
    assert runs[1].host_bytes > 2 * 3 * 4096 * 2 * (2 * 2048 + 3 * 8192)
    assert runs[1].flops == runs[0].flops
