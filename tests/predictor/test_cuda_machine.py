"""Device queries of `torch.cuda` and `torch.accelerator`, and their removal afterwards."""

from __future__ import annotations

import copy
import ctypes.util
import pickle
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from memviz.errors import UsageError
from memviz.predictor.assumptions import NotPredicted
from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Action, Category
from tests.predictor.rows import A100, H100, allocations

CUDA_0 = torch.device("cuda", 0)
SAID: dict[str, tuple[Callable[[], Any], Any]] = {
    "is_available": (lambda: torch.cuda.is_available(), True),
    "device_count": (lambda: torch.cuda.device_count(), 1),
    "current_device": (lambda: torch.cuda.current_device(), 0),
    "get_device_name": (lambda: torch.cuda.get_device_name("cuda:0"), "NVIDIA A100 40GB"),
    "get_device_capability": (lambda: torch.cuda.get_device_capability(), (8, 0)),
    "is_bf16_supported": (lambda: torch.cuda.is_bf16_supported(), True),
    "is_tf32_supported": (lambda: torch.cuda.is_tf32_supported(), True),
    "peers": (lambda: torch.cuda.can_device_access_peer(0, 0), False),
    "sync debug": (lambda: (torch.cuda.set_sync_debug_mode("warn"), torch.cuda.get_sync_debug_mode()), (None, 1)),
    "ranges": (
        lambda: (torch.cuda.nvtx.range_push("a"), torch.cuda.nvtx.range_pop(), torch.cuda.nvtx.mark("b")),
        (0, 0, 0),
    ),
    "profiler": (lambda: (torch.cuda.profiler.start(), torch.cuda.profiler.stop()), (None, None)),
    "ipc_collect": (lambda: torch.cuda.ipc_collect(), None),
    "built": (lambda: torch.backends.cuda.is_built(), True),
    "tuning off": (lambda: (torch.cuda.tunable.enable(False), torch.cuda.tunable.is_enabled()), (None, False)),
    "cudnn": (lambda: (torch.backends.cudnn.is_available(), type(torch.backends.cudnn.version())), (True, int)),
    "cufft": (lambda: torch.backends.cuda.cufft_plan_cache.size, 0),
    "module": (lambda: torch.get_device_module() is torch.get_device_module("cuda") is torch.cuda, True),
    "accelerator": (lambda: torch.accelerator.current_accelerator(), torch.device("cuda")),
    "accelerators": (lambda: (torch.accelerator.is_available(), torch.accelerator.device_count()), (True, 1)),
    "index": (
        lambda: (torch.accelerator.set_device_index("cuda:0"), torch.accelerator.current_device_index()),
        (None, 0),
    ),
    "device": (lambda: torch.device(type="cuda", index=0), CUDA_0),
    "a device as a context": (lambda: torch.cuda.device(CUDA_0).__enter__(), None),
    "device_of": (lambda: torch.cuda.device_of(torch.zeros(1, device="cuda")).__enter__(), None),
    "is_meta": (lambda: torch.zeros(1, device="cuda").is_meta, False),
    "handles": (lambda: torch.cuda.current_blas_handle() > 0, True),
    "version": (lambda: torch.version.cuda is not None and torch.version.cuda[:3] in ("12.", "13."), True),
}


@pytest.mark.parametrize("what", SAID)
def test_a_machine_with_the_card_answers(what: str, device: PredictedDevice) -> None:
    ask, answer = SAID[what]
    assert ask() == answer


def test_properties_are_the_cards() -> None:
    with PredictedDevice(H100):
        known = torch.cuda.get_device_properties(0)
        assert (known.name, known.major, known.minor, known.multi_processor_count) == ("NVIDIA H100 80GB", 9, 0, 132)
        assert (known.total_memory, known.warp_size) == (H100.memory_bytes, 32)
        assert (known.max_threads_per_multi_processor, known.regs_per_multiprocessor) == (2048, 65_536)
        assert (known.shared_memory_per_block, known.shared_memory_per_multiprocessor) == (49_152, 233_472)
        assert known.L2_cache_size == 50 << 20 and not hasattr(known, "gcnArchName")
        assert "NVIDIA H100 80GB" in repr(known) and str(known.uuid) in repr(known)
        with pytest.raises(AttributeError):
            known.name = "another"


def test_cuda_begins_when_it_is_first_used_and_ends_with_the_device() -> None:
    torch.cuda.manual_seed_all(3)
    before = {
        name: vars(torch.cuda)[name] for name in ("Stream", "Event", "_initialized", "default_generators", "_cudart")
    }
    words, release, there = set(vars(torch._C)), torch.version.cuda, torch.cuda.is_available()
    with PredictedDevice(A100):
        assert not torch.cuda.is_initialized() and torch.cuda.memory_allocated() == 0
        held = torch.zeros(1, device="cuda")
        assert torch.cuda.is_initialized() and torch.cuda.memory_allocated() == 512
        # Set before there was a device, as programs do.
        assert torch.cuda.initial_seed() == 3
    assert not held.is_cuda and (torch.version.cuda, torch.cuda.is_available()) == (release, there)
    assert {name: vars(torch.cuda)[name] for name in before} == before
    assert set(vars(torch._C)) == words


@pytest.mark.parametrize(
    ("chosen", "count"), [("", 0), ("-1", 0), ("0", 1), ("3", 1), ("0,1,2,3", 1), ("GPU-3c689e86", 1)]
)
def test_a_program_may_hide_the_card_from_itself_or_choose_it_by_any_name(
    chosen: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    with PredictedDevice(A100):
        assert (torch.cuda.is_available(), torch.cuda.device_count()) == (bool(count), count)
        with nullcontext() if count else pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
            assert torch.zeros(1, device="cuda:0").is_cuda


def test_old_types_are_of_the_card(device: PredictedDevice) -> None:
    made = torch.cuda.FloatTensor(256, 2)
    assert isinstance(made, torch.cuda.FloatTensor) and not isinstance(torch.zeros(1), torch.cuda.FloatTensor)
    assert device.allocated_bytes == 2048
    halved = torch.zeros(2).type(torch.cuda.HalfTensor)
    assert halved.type() == torch.zeros(2).type("torch.cuda.HalfTensor").type() == "torch.cuda.HalfTensor"
    assert made.type("torch.FloatTensor").device.type == "cpu"
    assert torch.cuda.LongTensor([1, 2]).dtype == torch.int64
    assert made.new_zeros(3, requires_grad=True).is_cuda and made.new(4, 5).shape == (4, 5)
    edges = torch.cuda.sparse.FloatTensor(torch.tensor([[0, 2]]).cuda(), torch.ones(2).cuda(), torch.Size([4]))
    assert isinstance(edges, torch.cuda.sparse.FloatTensor) and not isinstance(edges, torch.cuda.FloatTensor)
    assert edges.to_dense().shape == (4,)
    del made, halved


def made_here() -> Tensor:
    return torch.zeros(128) + torch.ones(128)


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
@pytest.mark.parametrize(
    "choose",
    [
        lambda: torch.set_default_device("cuda"),
        lambda: torch.set_default_device(torch.device("cuda", 0)),
        lambda: torch.set_default_tensor_type(torch.cuda.FloatTensor),
        lambda: torch.set_default_tensor_type("torch.cuda.DoubleTensor"),
    ],
)
def test_a_default_device_is_followed_and_taken_back(choose: Callable[[], None]) -> None:
    with PredictedDevice(A100) as device:
        choose()
        assert made_here().device == torch.get_default_device() == CUDA_0
        assert device.peak_requested_bytes == 3 * 128 * made_here().element_size()
        torch.set_default_device("cpu")
        assert not made_here().is_cuda
        choose()
    assert made_here().device.type == torch.get_default_device().type == "cpu"
    assert made_here().dtype == torch.float32


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_a_profile_of_the_card_is_one_of_the_host(device: PredictedDevice) -> None:
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, profile_memory=True, record_shapes=True, with_stack=True) as found:
        x = torch.ones(8, 64, device="cuda")
        (x @ x.T).sum()
    assert "aten::mm" in {row.key for row in found.key_averages()}
    assert "Self CPU time total" in found.key_averages().table(sort_by="cuda_time_total", row_limit=3)
    with profile(activities=[ProfilerActivity.CUDA]), torch.autograd.profiler.emit_nvtx():
        x + 1


# Generators of the card, their seeds and states.


def test_seeds_are_kept_and_states_come_back(device: PredictedDevice) -> None:
    torch.cuda.manual_seed(7)
    assert torch.cuda.initial_seed() == torch.cuda.default_generators[0].initial_seed() == 7
    torch.cuda.manual_seed_all(8)
    assert torch.cuda.initial_seed() == 8
    torch.manual_seed(9)
    assert torch.cuda.initial_seed() == torch.initial_seed() == 9
    torch.cuda.seed()
    assert torch.cuda.initial_seed() != 9
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()
    assert (state.device.type, state.dtype, state.numel()) == ("cpu", torch.uint8, 16)
    with torch.random.fork_rng(devices=[0]):
        torch.cuda.manual_seed(6)
    assert torch.cuda.initial_seed() == 5
    torch.cuda.manual_seed(6)
    torch.cuda.set_rng_state_all([state])
    assert torch.cuda.initial_seed() == 5 and torch.equal(torch.cuda.get_rng_state("cuda:0"), state)
    with pytest.raises(RuntimeError, match="wrong size"):
        torch.cuda.set_rng_state(state[:3])
    assert device.peak_allocated_bytes == 0


def test_a_generator_draws_on_its_own_device(device: PredictedDevice) -> None:
    ours, hosts = torch.Generator(device="cuda").manual_seed(3), torch.Generator().manual_seed(3)
    assert ours.device == torch.device("cuda", 0) and hosts.device == torch.device("cpu")
    assert isinstance(ours, torch.Generator) and isinstance(hosts, torch.Generator)
    made = [
        torch.randn(128, device="cuda", generator=ours),
        torch.randint(0, 5, (64,), device="cuda", generator=ours),
        torch.randperm(64, device="cuda", generator=ours),
        torch.empty(128, device="cuda").normal_(generator=ours),
    ]
    assert device.allocated_bytes == 4 * 512 and {each.device.type for each in made} == {"cuda"}
    assert "values unknown" in repr(made[0])
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(3, device="cuda", generator=hosts)
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        torch.randint(0, 5, (3,), generator=ours)
    twin = pickle.loads(pickle.dumps(ours))
    assert twin.initial_seed() == copy.copy(ours).initial_seed() == 3
    for where in ("cpu", "cuda"):
        weight = torch.empty(1024, 1024, device=where)
        assert nn.init.trunc_normal_(weight, std=0.02) is weight


def test_a_generator_of_the_card_shuffles_data_in_their_order_and_that_is_said(device: PredictedDevice) -> None:
    torch.set_default_device("cuda")
    data = TensorDataset(torch.arange(32))
    loader = DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator(device="cuda"))
    seen = [batch.tolist() for (batch,) in loader]
    assert all(batch.is_cuda for (batch,) in loader)
    assert sum(seen, []) == list(range(32))
    assert [said for said in device.unseen() if "keep their order" in said]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_keeps_the_state_of_the_card(reentrant: bool, device: PredictedDevice) -> None:
    seeds = []

    class Asks(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seeds.append(torch.cuda.initial_seed())
            torch.cuda.manual_seed(2)
            return nn.functional.dropout(x, 0.5)

    torch.cuda.manual_seed(1)
    x = torch.zeros(8, 64, device="cuda", requires_grad=True)
    checkpoint(Asks(), x, use_reentrant=reentrant).sum().backward()
    assert seeds == [1, 1]


# Scripts that use "cuda", and CPU tensors next to it.


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))


LARGEST = 4 * 128 * 256
WEIGHTS = 2 * LARGEST + 4 * (256 + 128)
"""Whole blocks of 512 bytes, all of them."""


def test_a_program_may_set_the_allocator_and_read_its_figures(device: PredictedDevice) -> None:
    first = torch.empty(1 << 20, device="cuda")
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    second = torch.empty(1 << 23, device="cuda")
    figures = torch.cuda.memory_stats()
    assert figures["allocated_bytes.all.current"] == first.nbytes + second.nbytes
    assert figures["segment.all.current"] == 1
    actions = set(device.finish().devices[0].events.action.tolist())
    assert {Action.SEGMENT_ALLOC, Action.SEGMENT_MAP} <= actions


def test_what_goes_to_the_host_leaves_the_device(device: PredictedDevice) -> None:
    model = layers()
    model.to("cuda")
    model.to("cpu")
    assert device.allocated_bytes == 0
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
    model.to("cuda")
    assert device.allocated_bytes == WEIGHTS
    assert torch.ones(4, device="cuda").cpu().device.type == "cpu"


@pytest.mark.parametrize("pinned", [False, True])
def test_saved_tensors_on_the_host_are_on_the_device_only_for_their_backward(pinned: bool) -> None:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(8)))

    def held_and_peak(hooks: AbstractContextManager[Any]) -> tuple[int, int]:
        with PredictedDevice(A100) as device:
            model.cuda()
            x = torch.zeros(512, 256, device="cuda", requires_grad=True)
            before = device.allocated_bytes
            with hooks:
                out = model(x)
            held = device.allocated_bytes - before - A100.cublas_workspace_bytes
            device.reset_peak()
            out.sum().backward()
            return held // (512 * 256 * 4), device.peak_allocated_bytes

    on_host = held_and_peak(torch.autograd.graph.save_on_cpu(pin_memory=pinned))
    on_card = held_and_peak(nullcontext())
    assert (on_host[0], on_card[0]) == (1, 8) and on_host[1] < on_card[1]


@pytest.mark.parametrize("reentrant", [False, True])
def test_autocast_casts_weights_once_and_answers_in_fp32_where_cuda_does(
    reentrant: bool, device: PredictedDevice
) -> None:
    model = layers()
    model.cuda()
    x = torch.zeros(16, 128, device="cuda", requires_grad=True)
    before = device.allocated_bytes
    with torch.autocast("cuda", dtype=torch.bfloat16):
        first, second = model(x), checkpoint(model, x, use_reentrant=reentrant)
        assert (first.dtype, second.dtype) == (torch.bfloat16, torch.bfloat16)
        assert first.softmax(-1).dtype == first.exp().dtype == first.sum().dtype == torch.float32
        assert torch.cat([first, x]).dtype == torch.float32
        assert nn.functional.mse_loss(first, x).dtype == torch.float32
    cast = [row for row in allocations(device.finish()) if row.operator == "_to_copy" and row.size == LARGEST // 2]
    assert len(cast) == 2
    assert device.allocated_bytes - before > WEIGHTS // 2
    (first + second).float().sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}


@pytest.mark.parametrize("kind", ["foreach", "fused", "for-loop"])
def test_optimizers_take_what_their_kernels_take(kind: str, device: PredictedDevice) -> None:
    model = layers()
    options = {"foreach": {}, "fused": {"fused": True}, "for-loop": {"foreach": False}}[kind]
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    for _ in range(2):
        model(torch.zeros(2, 128, device="cuda")).sum().backward()
        before, start = device.allocated_bytes, len(allocations(device.finish()))
        device.reset_peak()
        optimizer.step()
        optimizer.zero_grad()
    rows = allocations(device.finish())[start:]
    temporaries = [row.size for row in rows if row.category is Category.TEMPORARY]
    beside = device.peak_allocated_bytes - before
    if kind == "foreach":
        assert (sum(temporaries), beside) == (WEIGHTS, WEIGHTS)
    elif kind == "fused":
        assert (temporaries, beside) == ([], 0)
    else:
        # The one before is let go only when the next is there.
        assert beside <= 2 * LARGEST + 1024 and sum(temporaries) >= WEIGHTS


@pytest.mark.parametrize(
    ("kind", "options", "states_of_each"),
    [
        (torch.optim.SGD, {}, 0),
        (torch.optim.SGD, {"momentum": 0.9}, 1),
        (torch.optim.Adagrad, {}, 1),
        (torch.optim.AdamW, {"lr": torch.tensor(0.1), "capturable": True}, 2),
    ],
)
def test_fused_steps_take_nothing_beside_their_states(
    kind: Any, options: dict[str, Any], states_of_each: int, device: PredictedDevice
) -> None:
    model = layers()
    model.cuda()
    optimizer = kind(model.parameters(), **({"lr": 0.1} | options), fused=True)
    model(torch.zeros(2, 128, device="cuda")).sum().backward()
    optimizer.step()
    before = device.allocated_bytes
    device.reset_peak()
    optimizer.step()
    assert device.peak_allocated_bytes == before
    states = [state for of in optimizer.state.values() for name, state in of.items() if name != "step"]
    assert sum(state.numel() * 4 for state in states) == states_of_each * WEIGHTS


def test_memory_follows_storages_and_not_views(device: PredictedDevice) -> None:
    x = torch.zeros(1000, device="cuda")
    x.resize_(5000)
    assert device.allocated_bytes == 20_480
    x.untyped_storage().resize_(0)
    assert device.allocated_bytes == 0
    out = torch.empty(0, device="cuda")
    torch.add(torch.ones(300, device="cuda"), 1, out=out)
    assert device.allocated_bytes == 1536
    del x, out
    x = torch.zeros(1024, device="cuda")
    views = x[:8].view(2, 4).t()
    assert device.allocated_bytes == 4096
    del x
    assert device.allocated_bytes == 4096
    del views
    assert device.allocated_bytes == 0


# CUDA features that no rule models are refused with the reason.


def own_allocator() -> None:
    torch.cuda.memory.CUDAPluggableAllocator(ctypes.util.find_library("c"), "malloc", "free")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (own_allocator, "a custom allocator .* its rules are unknown"),
        (lambda: torch.cuda.tunable.enable(True), "torch.cuda.tunable cannot be predicted: while it tunes kernels"),
    ],
)
def test_it_is_named_with_the_reason(program: Callable[[], None], said: str, device: PredictedDevice) -> None:
    with pytest.raises(NotPredicted, match=said):
        program()


# Device names in programs, and the devices that tensors report.


SECOND = torch.device("cuda", 1)


class _Names(StrEnum):
    CARD = "cuda:0"


WRONG: dict[str, Callable[[], Any]] = {
    "tensor.to": lambda: torch.ones(2).to("cuda:1"),
    "tensor.to a number": lambda: torch.ones(2).to(1),
    "tensor.to a device": lambda: torch.ones(2).to(SECOND),
    "tensor.cuda": lambda: torch.ones(2).cuda(1),
    "factory": lambda: torch.ones(2, device="cuda:1"),
    "factory with a number": lambda: torch.ones(2, device=1),
    "module.to": lambda: nn.Linear(2, 2).to("cuda:1"),
    "module.to a number": lambda: nn.Linear(2, 2).to(1),
    "module.cuda": lambda: nn.Linear(2, 2).cuda(1),
    "module there": lambda: nn.Linear(2, 2, device=SECOND),
    "set_device": lambda: torch.cuda.set_device(1),
    "set_device by name": lambda: torch.cuda.set_device("cuda:1"),
    "device as a context": lambda: torch.cuda.device(1).__enter__(),
    "memory_allocated": lambda: torch.cuda.init() or torch.cuda.memory_allocated(1),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_second_card_is_the_error_that_it_is_on_a_machine_with_one(how: str, device: PredictedDevice) -> None:
    with pytest.raises(UsageError, match=r"cuda_machine\.py, line \d+: .*invalid device ordinal.*one NVIDIA A100"):
        WRONG[how]()
    # Programs that look for a second card catch torch's own error.
    with pytest.raises(RuntimeError):
        WRONG[how]()
    assert device.allocated_bytes == 0


def test_what_a_second_card_is_like_is_torchs_own_error(device: PredictedDevice) -> None:
    for ask in (torch.cuda.get_device_name, torch.cuda.get_device_properties):
        with pytest.raises(AssertionError, match="Invalid device id"):
            ask("cuda:1")


def test_the_one_card_goes_by_all_its_names(device: PredictedDevice) -> None:
    with torch.cuda.device(0):
        made = [torch.ones(128).to(name) for name in ("cuda", _Names.CARD, 0, torch.device("cuda"))]
    made += [torch.ones(128).cuda(0), torch.ones(128, device=0), torch.ones(128, device=torch.device("cuda", 0))]
    made.append(nn.Linear(128, 1, bias=False).to(0).weight)
    assert {each.device for each in made} == {torch.device("cuda", 0)}
    assert device.allocated_bytes == 8 * 512
    torch.cuda.set_device(0)
    assert torch.device(0) == torch.device("cuda", 0)


def test_a_tensor_says_that_it_is_on_the_card_wherever_it_is_asked(device: PredictedDevice) -> None:
    seen = []

    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.device)
            mask = torch.ones(x.shape[0], 1, device=x.device)
            return torch.relu(x * mask)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            seen.append(x.device)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            seen.append(gradients[0].device)
            return gradients[0] * 2

    def pack(x: Tensor) -> Tensor:
        seen.append(x.device)
        return x

    x = torch.ones(2, 3, device="cuda", requires_grad=True)
    x.register_hook(lambda gradient: seen.append(gradient.device))
    with torch.autograd.graph.saved_tensors_hooks(pack, pack):
        checkpoint(Asks(), Twice.apply(x), use_reentrant=False).sum().backward()
    assert x.get_device() == 0 and x.type() == "torch.cuda.FloatTensor" and x.grad is not None
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        assert (x @ x.T).dtype == torch.bfloat16
    seen.append(x.grad.device)
    assert len(seen) >= 7 and set(seen) == {torch.device("cuda", 0)}


def test_addresses_tell_what_shares_memory(device: PredictedDevice) -> None:
    one, other = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
    assert one.data_ptr() != other.data_ptr()
    assert one.view(2, 4)[1].data_ptr() == one.data_ptr() + 16
    assert one.data_ptr() % 512 == 0
    assert one.untyped_storage().data_ptr() == one.data_ptr() != other.untyped_storage().data_ptr()


def test_pinned_memory_is_the_hosts_and_says_so(device: PredictedDevice) -> None:
    host = torch.arange(4.0)
    pinned = host.pin_memory()
    assert (host.is_pinned(), pinned.is_pinned(), pinned[1:].is_pinned()) == (False, True, True)
    assert pinned.data_ptr() != host.data_ptr() and pinned.tolist() == [0, 1, 2, 3]
    assert torch.empty(3, pin_memory=True).is_pinned() and pinned.pin_memory() is pinned
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(2, device="cuda").pin_memory()
    assert device.peak_allocated_bytes == 512


class Int8(Tensor):
    """A tensor of int8 values with a scale per row, which reports fp32."""

    values: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor) -> Int8:
        return Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32, device=values.device)

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        self.values, self.scale = values, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["values", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], context: None, size: Any, stride: Any) -> Int8:
        return Int8(parts["values"], parts["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.detach.default:
            return Int8(args[0].values, args[0].scale)
        if func is torch.ops.aten._to_copy.default:
            parts = (each.to(device=kwargs["device"]) for each in (args[0].values, args[0].scale))
            return Int8(*parts)
        if func is torch.ops.aten.t.default:
            return Int8(args[0].values.t(), args[0].scale.t())
        return func(*tree_map(_as_fp32, args), **kwargs)


def _as_fp32(value: Any) -> Any:
    return value.values.float() * value.scale if isinstance(value, Int8) else value


@pytest.mark.parametrize("built", ["cpu", "meta", "cuda"])
def test_a_quantized_weight_counts_what_it_is_made_of(built: str) -> None:
    def build() -> nn.Module:
        model = nn.Linear(512, 512, bias=False)
        parts = torch.zeros(512, 512, dtype=torch.int8), torch.ones(512, 1)
        model.weight = nn.Parameter(Int8(*parts), requires_grad=False)
        return model

    def run(model: nn.Module) -> tuple[int, int]:
        model.to("cuda")
        held = device.allocated_bytes
        device.reset_peak()
        assert model(torch.zeros(4, 512, device="cuda")).shape == (4, 512)
        return held, device.peak_allocated_bytes - held - A100.cublas_workspace_bytes

    if built == "cuda":
        with PredictedDevice(A100) as device:
            with torch.device("cuda"):
                model = build()
            device.empty_cache()
            held, beside = run(model)
    else:
        with torch.device(built):
            model = build()
        with PredictedDevice(A100) as device:
            held, beside = run(model)
    assert held == 512 * 512 + 512 * 4
    # Both fp32 copies of the weight, then the inputs in addition to the copy in use.
    assert 2 * 4 * 512 * 512 <= beside + A100.cublas_workspace_bytes <= 2 * 4 * 512 * 512 + A100.cublas_workspace_bytes


@pytest.mark.parametrize("settings", [{"mode": "max-autotune"}, {"options": {"triton.cudagraphs": True}}, {}])
def test_what_is_compiled_and_never_called_is_not_said(settings: Any, device: PredictedDevice) -> None:
    with torch._inductor.config.patch({"triton.cudagraphs": not settings}):
        never = torch.compile(lambda x: x * 2, **settings)
        scripted = torch.jit.script(lambda x: x * 2)
        module = torch.jit.script(nn.Linear(8, 8)), nn.Linear(8, 8)
        module[1].compile(mode="reduce-overhead")
        kinds = ("torch.compile", "TorchScript", "Code compiled")
        assert not [each for each in device.unseen() if each.startswith(kinds)]
        never(torch.zeros(3, device="cuda"))
        assert [each.split(" ")[0] for each in device.unseen() if each.startswith(kinds)] == ["torch.compile", "Code"]
        scripted(torch.zeros(3, device="cuda"))
        assert len([each for each in device.unseen() if each.startswith(kinds)]) == 3


def test_a_module_that_was_compiled_before_is_said_too(device: PredictedDevice) -> None:
    model = nn.Linear(8, 8)
    model._compiled_call_impl = model._call_impl
    model.cuda()(torch.zeros(2, 8, device="cuda"))
    assert [each for each in device.unseen() if each.startswith("torch.compile is not predicted")]
