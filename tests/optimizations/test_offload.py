"""Weights and activations that wait in host memory: what is copied when, the peak, and the pinned memory."""

import copy
import gc
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.runner.plan import make_workload
from memviz.trace.model import Action
from optimizations import activation_offload, weight_offload
from optimizations.activation_offload import ActivationOffload
from optimizations.split_feed_forward import SplitFeedForward
from optimizations.weight_offload import WeightOffload
from tests.marks import slow
from tests.optimizations.memory import Memory, predicted
from tests.optimizations.tiny import Case, different, llama, one_step, stack
from tests.optimizations.whole import Whole

WAYS = [WeightOffload(), WeightOffload(group=3), WeightOffload("leaf"), WeightOffload("model")]
WAYS += [WeightOffload(ahead=True), WeightOffload("leaf", ahead=True)]


def named(way: WeightOffload) -> str:
    return f"{way.granularity} {way.group}{' ahead' * way.ahead}"


@pytest.fixture
def wrong_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negate weights at rest, because the host is the only device here; a read of them there gives wrong results."""
    monkeypatch.setattr(weight_offload, "_on_host", lambda tensor: -tensor)
    monkeypatch.setattr(weight_offload, "_on_device", lambda tensor, device: -tensor)


def output(model: nn.Module, loss) -> torch.Tensor:
    with torch.no_grad():
        return loss(model.eval())


@pytest.mark.usefixtures("wrong_on_the_host")
@pytest.mark.parametrize("way", WAYS, ids=named)
def test_a_forward_that_reads_its_layers_weights_finds_them(way):
    model, x = Whole(), torch.randn(2, 5, 16)
    SplitFeedForward(4).apply(model)
    with torch.no_grad():
        expected = model(x)
        way.apply(model)
        assert torch.equal(model(x), expected)


@pytest.mark.usefixtures("wrong_on_the_host")
def test_after_a_failed_forward_pass_the_next_one_is_right():
    case = stack()
    expected = output(case.model, case.loss)
    undo = WeightOffload("leaf").apply(case.model)
    with pytest.raises(RuntimeError):
        case.model(torch.randn(3, 5))
    assert torch.equal(output(case.model, case.loss), expected)
    undo()
    assert torch.equal(output(case.model, case.loss), expected)


def test_the_bound_keeps_the_last_blocks_on_the_device():
    case = stack()
    sizes = [parameter.nbytes for parameter in case.model.blocks[0].parameters()]
    block, pinned = sum(sizes), sum(1 << (size - 1).bit_length() for size in sizes)
    for blocks, bound in ((5, 0.0), (3, 3.5), (1, 1.0)):
        undo = WeightOffload(most_gib=bound * pinned / (1 << 30)).apply(case.model)
        assert weight_offload.host_bytes(case.model) == blocks * block
        undo()
    assert weight_offload.host_bytes(case.model) == 0


def test_tied_weights_are_counted_once():
    case = llama(tie_word_embeddings=True)
    WeightOffload("leaf").apply(case.model)
    assert weight_offload.host_bytes(case.model) == sum(parameter.nbytes for parameter in case.model.parameters())


@pytest.mark.parametrize("granularity", ["leaf", "block", "model"])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_backward_pass_is_refused_and_a_forward_pass_is_not(granularity, frozen):
    """Frozen weights are read by the backward pass of what comes before them, as of an adapter."""
    case = llama()
    if frozen:
        case.model.requires_grad_(False)
        case.model.get_input_embeddings().requires_grad_(True)
    expected = case.loss(case.model).detach()
    undo = WeightOffload(granularity).apply(case.model)
    loss = case.loss(case.model)
    torch.testing.assert_close(loss, expected, rtol=0, atol=0, check_stride=False)
    with pytest.raises(RuntimeError, match="Offloaded weights cannot be trained"):
        loss.backward()
    undo()
    case.model.zero_grad()
    case.loss(case.model).backward()


@pytest.mark.slow
def test_ahead_the_stream_brings_every_block_but_the_first_and_two_are_there_at_once():
    settings = {"double_layers": "1", "single_layers": "3"}

    def run(ahead: str):
        done = predicted("flux", settings, ("weight_offload", {"ahead": ahead}))
        events = done.trace.devices[0].events
        return done.run, events.size[(events.stream != 0) & (events.action == Action.ALLOC)]

    (plain, nothing), (ahead, beside) = run("false"), run("true")
    with torch.device("meta"):
        model = make_workload("flux", settings).build()
    single = [parameter.nbytes for parameter in model.single_transformer_blocks[0].parameters()]
    assert len(nothing) == 0
    assert sorted(beside) == sorted(2 * single)
    grown = ahead.peak_allocated_bytes - plain.peak_allocated_bytes
    assert grown == pytest.approx(sum(single), rel=0.01)
    same = ("host_bytes", "pinned_host_bytes", "weights_bytes", "flops", "bytes_moved")
    assert [getattr(ahead, name) for name in same] == [getattr(plain, name) for name in same]


@pytest.mark.usefixtures("wrong_on_the_host")
def test_what_came_ahead_is_not_taken_where_the_weight_has_been_loaded_since():
    case = stack()
    WeightOffload(ahead=True).apply(case.model)
    before = output(case.model, case.loss)
    first, second = (case.model.blocks[place] for place in (0, 1))

    def load(*_: object) -> None:
        for parameter in second.parameters():
            parameter.mul_(2)

    loading = first.register_forward_hook(load)
    changed = output(case.model, case.loss)
    loading.remove()
    assert changed != before
    assert torch.equal(output(case.model, case.loss), changed)


@pytest.mark.slow
def test_weights_in_fp8_come_over_the_bus_as_they_are_and_half_as_many_bytes_wait():
    settings, offload = {"double_layers": "1", "single_layers": "3"}, ("weight_offload", {"granularity": "block"})
    plain = predicted("flux", settings, offload).run
    cast = predicted("flux", settings, offload, ("layerwise_casting", {"skip": "norm"})).run
    assert 0.5 < cast.host_bytes / plain.host_bytes < 0.62
    assert cast.peak_allocated_bytes < 0.85 * plain.peak_allocated_bytes


@pytest.mark.slow
def test_the_run_says_what_the_host_holds_and_the_bound_bounds_it():
    """PyTorch takes the next power of two for each weight."""
    knobs = {"layers": "2", "mode": "inference"}

    def pinned(**more: str) -> int:
        return predicted("gpt2", knobs, ("weight_offload", more)).run.pinned_host_bytes or 0

    with torch.device("meta"):
        model = make_workload("gpt2", knobs).build()
    blocks = [parameter.nbytes for parameter in model.transformer.h.parameters()]
    assert pinned() == sum(1 << (size - 1).bit_length() for size in blocks) > sum(blocks)
    bound = pinned() / 2 / (1 << 30)
    assert 0 < pinned(most_gib=str(bound)) <= pinned() / 2
    assert predicted("gpt2", knobs).run.pinned_host_bytes == 0


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1024, 1024)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(1024, 1024), nn.ReLU()) for _ in range(16))
        self.register_buffer("scale", torch.ones(1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) * self.scale
        for block in self.blocks:
            x = block(x)
        return x


def places(model: nn.Module) -> dict[str, str]:
    return {name: each.device.type for name, each in (*model.named_parameters(), *model.named_buffers())}


@pytest.mark.parametrize("way", [WAYS[0], *slow(*WAYS[2:3], *WAYS[4:])], ids=named)
def test_a_model_in_host_memory_computes_on_the_device_and_is_never_there_as_a_whole(way):
    """It may be larger than the device: only the rest and what computes are there."""
    seen = []
    with PredictedDevice(card_named("RTX 3060")) as device, torch.no_grad():
        model = Wide()
        undo = replace(way, onload_device="cuda").apply(model)
        at_rest = places(model)
        waits = "blocks." if way.granularity == "block" else ("blocks.", "first.")
        assert at_rest == {name: "cpu" if name.startswith(waits) else "cuda" for name in at_rest}
        for block in model.blocks:
            block[1].register_forward_hook(lambda *_: seen.append([*places(model.blocks).values()].count("cuda")))
            block[0].register_forward_pre_hook(lambda module, _: seen.append({*places(module).values()}))
        for _ in range(2):
            assert model(torch.randn(2, 1024, device="cuda")).is_cuda
        assert all(there == {"cuda"} for there in seen[::2]) and max(seen[1::2]) <= 2
        assert places(model) == at_rest
        assert device.peak_allocated_bytes < sum(each.nbytes for each in model.parameters()) // 2
        assert device.pinned_host_bytes > 16 << 20
        undo()
        assert {*places(model).values()} == {"cpu"}


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
    assert activation_offload.host_bytes(case.model).most > 0


def test_what_several_operators_keep_is_copied_once_and_lies_as_before():
    model, x = Shared(), torch.randn(8, 8, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    EVERYTHING.apply(model)
    output = model(x)
    # y as it is and transposed, its sine, and the first product.
    assert activation_offload.host_bytes(model).now == activation_offload.host_bytes(model).most == 4 * x.nbytes
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert torch.equal(gradient, expected)
    del output
    gc.collect()
    assert activation_offload.host_bytes(model).now == 0


def test_no_more_than_allowed_waits_there():
    case = stack()
    plain = one_step(case.model, case.loss)
    undo = EVERYTHING.apply(case.model)
    one_step(case.model, case.loss)
    whole = activation_offload.host_bytes(case.model).most
    undo()
    ActivationOffload(least_mib=0.0, from_host=True, most_gib=whole / 2 / (1 << 30)).apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    known = activation_offload.host_bytes(case.model)
    assert 0 < known.most <= known.pinned <= whole / 2


def test_weights_and_small_tensors_stay():
    model = nn.Sequential(nn.Linear(512, 1024, bias=False), nn.Tanh(), nn.Linear(1024, 4, bias=False))
    ActivationOffload(least_mib=1.0, from_host=True).apply(model)
    output = model(torch.randn(256, 512))
    # Of the input (0.5 MiB), the result of tanh (1 MiB) and the weights (2 MiB), the middle one alone.
    assert activation_offload.host_bytes(model).now == 1 << 20
    output.sum().backward()


def test_a_copy_moves_its_own_and_a_failed_forward_leaves_nothing_behind():
    case = stack()
    plain = one_step(case.model, case.loss)
    undo = EVERYTHING.apply(case.model)
    twin = copy.deepcopy(case.model)
    undo()
    with pytest.raises(ValueError, match="Apply ActivationOffload first"):
        activation_offload.host_bytes(case.model)
    assert different(plain, one_step(twin, case.loss)) == []
    assert activation_offload.host_bytes(twin).most > 0
    with pytest.raises(RuntimeError):
        twin(torch.randn(3, 3))
    before = activation_offload.host_bytes(twin).most
    x = torch.randn(100, 100, requires_grad=True)
    (x * x).sum().backward()
    assert activation_offload.host_bytes(twin).most == before


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
