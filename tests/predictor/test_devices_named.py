"""Device names in programs, and the devices that tensors report."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100

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
PROPERTIES: dict[str, Callable[[], Any]] = {
    "get_device_name": lambda: torch.cuda.get_device_name(1),
    "get_device_properties": lambda: torch.cuda.get_device_properties("cuda:1"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_second_card_is_the_error_that_it_is_on_a_machine_with_one(how: str) -> None:
    with PredictedDevice(A100) as device:
        with pytest.raises(UsageError, match=r"devices_named\.py, line \d+: .*invalid device ordinal.*one NVIDIA A100"):
            WRONG[how]()
        # Programs that look for a second card catch torch's own error.
        with pytest.raises(RuntimeError):
            WRONG[how]()
        assert device.allocated_bytes == 0


@pytest.mark.parametrize("how", PROPERTIES)
def test_what_a_second_card_is_like_is_torchs_own_error(how: str) -> None:
    with PredictedDevice(A100), pytest.raises(AssertionError, match="Invalid device id"):
        PROPERTIES[how]()


def test_the_one_card_goes_by_all_its_names() -> None:
    with PredictedDevice(A100) as device:
        with torch.cuda.device(0):
            made = [torch.ones(128).to(name) for name in ("cuda", _Names.CARD, 0, torch.device("cuda"))]
        made += [torch.ones(128).cuda(0), torch.ones(128, device=0), torch.ones(128, device=torch.device("cuda", 0))]
        made.append(nn.Linear(128, 1, bias=False).to(0).weight)
        assert {each.device for each in made} == {torch.device("cuda", 0)}
        assert device.allocated_bytes == 8 * 512
        torch.cuda.set_device(0)
        assert torch.device(0) == torch.device("cuda", 0)


def test_a_tensor_says_that_it_is_on_the_card_wherever_it_is_asked() -> None:
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

    with PredictedDevice(A100):
        x = torch.ones(2, 3, device="cuda", requires_grad=True)
        x.register_hook(lambda gradient: seen.append(gradient.device))
        with torch.autograd.graph.saved_tensors_hooks(pack, pack):
            checkpoint(Asks(), Twice.apply(x), use_reentrant=False).sum().backward()
        assert x.get_device() == 0 and x.type() == "torch.cuda.FloatTensor" and x.grad is not None
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            assert (x @ x.T).dtype == torch.bfloat16
        seen.append(x.grad.device)
    assert len(seen) >= 7 and set(seen) == {torch.device("cuda", 0)}


def test_addresses_tell_what_shares_memory() -> None:
    with PredictedDevice(A100):
        one, other = torch.ones(8, device="cuda"), torch.ones(8, device="cuda")
        assert one.data_ptr() != other.data_ptr()
        assert one.view(2, 4)[1].data_ptr() == one.data_ptr() + 16
        assert one.data_ptr() % 512 == 0
        assert one.untyped_storage().data_ptr() == one.data_ptr() != other.untyped_storage().data_ptr()


def test_pinned_memory_is_the_hosts_and_says_so() -> None:
    with PredictedDevice(A100) as device:
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
def test_what_is_compiled_and_never_called_is_not_said(settings: Any) -> None:
    with PredictedDevice(A100) as device, torch._inductor.config.patch({"triton.cudagraphs": not settings}):
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


def test_a_module_that_was_compiled_before_is_said_too() -> None:
    model = nn.Linear(8, 8)
    model._compiled_call_impl = model._call_impl
    with PredictedDevice(A100) as device:
        model.cuda()(torch.zeros(2, 8, device="cuda"))
        assert [each for each in device.unseen() if each.startswith("torch.compile is not predicted")]
