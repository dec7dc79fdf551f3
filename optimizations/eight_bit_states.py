"""8-bit optimizer states: blocks of 256 numbers, each with its own scale.

AdamW keeps two numbers a weight, as wide as the weight. Between steps they rest here as one byte each. A step takes one
weight after the other: its states are unpacked, PyTorch's own optimizer steps it, and they are packed again, so that
the wide ones exist for one weight at a time. What to know before using it:

* A byte is spread where numbers are small: the square root of a state's share of its block's largest is rounded, and
  for averages of squares, which reach over many orders of magnitude and are divided by, the fourth root. None of those
  becomes zero that was none.
* Training goes another way, as it does with another batch: each step rounds what was remembered.
* States of fewer than `least` numbers stay as they are, and so do counters.
* It goes by torch's hooks of an optimizer's step, for those of `torch.optim` that step each weight by itself.
* While a step lasts, the gradients are set aside. A closure is called once, before the step.
* A state dict holds wide tensors in host memory, as torch's own does: it loads with `weights_only=True`, with or
  without this file. `load` packs such states before they reach the device; `optimizer.load_state_dict` keeps them wide
  there until the next step.
* Adafactor's row and column averages stay wide: they are small, and its clipping depends on the smallest of them.
* `by="bitsandbytes"` has that library step what `torch.optim.AdamW` would, where it is installed: one kernel reads and
  writes the bytes, and wide states never exist. On the processor it needs bitsandbytes 0.50 or newer.
"""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_BY = ("torch", "bitsandbytes")
_STATE_KEY = "by_bitsandbytes"
_ADAM_STATES = ("exp_avg", "exp_avg_sq")
_BLOCK = 256
_PIECE = 1 << 24
"""Numbers that are packed at once, so that what that takes itself stays small."""
_NEVER_NEGATIVE = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "exp_inf", "step_size", "variance")
"""Names that torch's optimizers give to averages of squares, to sizes and to step sizes."""
_WIDE = ("row_var", "col_var")
"""Adafactor's factored averages: a rounded minimum among them shrinks the step of all other rows."""


@dataclass(frozen=True)
class EightBitStates:
    """`undo = EightBitStates().apply(model)`, then train as before."""

    least: int = field(
        default=4096,
        metadata={
            "help": "smaller states keep their dtype",
            "least": 1,
            "says": "states of {} elements or more",
        },
    )
    by: str = field(default="torch", metadata={"help": "implementation: this file or bitsandbytes", "choices": _BY})

    name: ClassVar[str] = "eight_bit_states"
    title: ClassVar[str] = "8-bit optimizer"
    sentence: ClassVar[str] = "Store AdamW states in 8 bits."
    not_with: ClassVar[Mapping[str, str]] = {}
    claim: ClassVar[Literal["training"]] = "training"
    """Outputs and gradients are what they were for the same weights. The steps between are not."""
    environment: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    needs_optimizer: ClassVar[bool] = True
    idle_where: ClassVar[str] = "no optimizer state is that large"

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"least is {self.least}; the minimum is 1.")
        if self.by not in _BY:
            raise ValueError(f"by is {self.by!r}; it must be one of {', '.join(_BY)}.")

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference has no optimizer. Use it in training only.")
        if self.by == "bitsandbytes":
            _bitsandbytes()

    def apply(self, model: nn.Module) -> Callable[[], None]:
        steps = _Steps(model, self.least) if self.by == "torch" else _StepsOfBitsandbytes(model, self.least)
        before = register_optimizer_step_pre_hook(steps.before)
        after = register_optimizer_step_post_hook(steps.after)

        def undo() -> None:
            before.remove()
            after.remove()
            for hook in steps.hooks:
                hook.remove()
            for optimizer in steps.stepped:
                steps.unpack(optimizer)

        # A deleted model needs no undo.
        return weakref.finalize(model, undo)

    def load(self, optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
        """Load a state dict as `optimizer.load_state_dict` does, each state packed before it reaches the device."""
        optimizer.load_state_dict({**state_dict, "state": {}})
        for number, weight in _weights_of(optimizer, state_dict).items():
            for key, value in state_dict["state"].get(number, {}).items():
                packed = _packed_state(key, value, self.least)
                if isinstance(packed, Packed):
                    packed = replace(packed.to(weight.device), dtype=weight.dtype)
                elif isinstance(packed, Tensor) and key != "step":
                    packed = packed.to(weight.device, weight.dtype)
                optimizer.state[weight][key] = packed


@dataclass(frozen=True)
class Packed:
    """Numbers as bytes, and the largest of each block."""

    codes: Tensor
    scales: Tensor
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    is_signed: bool

    @classmethod
    def of(cls, state: Tensor, *, is_signed: bool) -> Packed:
        shape, stride, count = tuple(state.shape), tuple(map(int, state.stride())), state.numel()
        flat = state.as_strided((count,), (1,)) if _is_dense(state) else state.contiguous().view(-1)
        stride = stride if _is_dense(state) else tuple(map(int, torch.empty(shape, device="meta").stride()))
        codes = torch.empty(count, dtype=torch.int8 if is_signed else torch.uint8, device=state.device)
        scales = torch.empty(-(-count // _BLOCK), dtype=torch.float32, device=state.device)
        for start in range(0, count, _PIECE):
            _pack(flat[start : start + _PIECE], codes[start : start + _PIECE], scales[start // _BLOCK :])
        return cls(codes, scales, shape, stride, state.dtype, is_signed)

    def to(self, device: torch.device) -> Packed:
        return replace(self, codes=self.codes.to(device), scales=self.scales.to(device))

    def unpacked(self) -> Tensor:
        count = self.codes.numel()
        flat = torch.empty(count, dtype=self.dtype, device=self.codes.device)
        for start in range(0, count, _PIECE):
            codes, scales = self.codes[start : start + _PIECE], self.scales[start // _BLOCK :]
            flat[start : start + _PIECE] = _unpacked(codes, scales)
        return flat.as_strided(self.shape, self.stride)


def _is_dense(tensor: Tensor) -> bool:
    """Return whether the elements fill the storage, in any order."""
    return tensor.storage_offset() == 0 and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _pack(numbers: Tensor, codes: Tensor, scales: Tensor) -> None:
    count = numbers.numel()
    blocks = _in_blocks(numbers.to(torch.float32, copy=True))
    largest = blocks.abs().amax(1)
    scales[: len(largest)] = largest
    shares = blocks.div_(largest.clamp(min=torch.finfo(torch.float32).tiny)[:, None])
    if codes.dtype is torch.int8:
        rounded = shares.abs().sqrt_().mul_(127).round_().copysign_(shares)
    else:
        is_some = shares > 0
        rounded = shares.sqrt_().sqrt_().mul_(255).round_().clamp_(min=1).mul_(is_some)
    codes.copy_(rounded.view(-1)[:count])


def _unpacked(codes: Tensor, scales: Tensor) -> Tensor:
    shares = _in_blocks(codes.to(torch.float32))
    if codes.dtype is torch.int8:
        shares = shares.div_(127)
        shares = shares.mul_(shares.abs())
    else:
        shares = shares.div_(255).square_().square_()
    return shares.mul_(scales[: len(shares), None]).view(-1)[: codes.numel()]


def _in_blocks(numbers: Tensor) -> Tensor:
    missing = -numbers.numel() % _BLOCK
    padded = nn.functional.pad(numbers, (0, missing)) if missing else numbers
    return padded.view(-1, _BLOCK)


class _Steps:
    def __init__(self, model: nn.Module, least: int) -> None:
        self.model = weakref.ref(model)
        self.least = least
        self.stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.aside: dict[nn.Parameter, Tensor] = {}
        self.hooks: list[Any] = []

    def before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Step the weights of this model; the step that follows has no gradients of them."""
        model = self.model()
        own_weights = set() if model is None else set(model.parameters())
        weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight in own_weights]
        if not weights:
            return None
        self.refuse(optimizer)
        if optimizer not in self.stepped:
            self.stepped.add(optimizer)
            self.hooks.append(optimizer.register_state_dict_post_hook(self.widen))
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self.step_all(optimizer, own_weights)
            return None
        # The closure makes the gradients of this step; existing gradients are of the step before.
        with torch.enable_grad():
            loss = closure()
        self.step_all(optimizer, own_weights)
        return (optimizer, lambda: loss), {}

    def step_all(self, optimizer: Optimizer, own_weights: set[nn.Parameter]) -> None:
        todo = [
            (weight, group)
            for group in optimizer.param_groups
            for weight in group["params"]
            if weight in own_weights and weight.grad is not None
        ]
        gradients = {weight: weight.grad for weight, _ in todo}
        for parameter in gradients:
            parameter.grad = None
        try:
            for weight, group in todo:
                weight.grad = gradients[weight]
                self.step(optimizer, weight, group)
                weight.grad = None
        finally:
            self.aside = gradients

    # An optimizer that steps one weight at a time, during backward, looks for this.
    before.of_each_weight = True  # type: ignore[attr-defined]

    def refuse(self, optimizer: Optimizer) -> None:
        kind = type(optimizer)
        if not kind.__module__.startswith("torch.optim") or isinstance(optimizer, torch.optim.LBFGS):
            raise ValueError(
                f"{kind.__name__} may need all states at once. Use an optimizer of torch.optim other than LBFGS."
            )

    def step(self, optimizer: Optimizer, weight: nn.Parameter, group: dict[str, Any]) -> None:
        state = optimizer.state[weight]
        for key, packed in [(key, value) for key, value in state.items() if isinstance(value, Packed)]:
            state[key] = packed.unpacked()
        _step_one(optimizer, weight, group)
        for key, value in list(state.items()):
            state[key] = _packed_state(key, value, self.least)

    def unpack(self, optimizer: Optimizer) -> None:
        for weight, state in optimizer.state.items():
            optimizer.state[weight] = self.unpacked(state, weight)

    def widen(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Replace packed states of a state dict by wide ones in host memory, one at a time."""
        weights = _weights_of(optimizer, state_dict)
        wide = {
            number: self.unpacked(state, weights.get(number), device="cpu")
            for number, state in state_dict["state"].items()
        }
        return {**state_dict, "state": wide}

    def unpacked(self, state: Mapping[str, Any], weight: Any, device: str | None = None) -> dict[str, Any]:
        return {
            key: value.unpacked().to(device) if isinstance(value, Packed) else value for key, value in state.items()
        }

    def after(self, optimizer: Optimizer, *_: Any) -> None:
        for weight, gradient in self.aside.items():
            weight.grad = gradient
        self.aside = {}

    after.of_each_weight = True  # type: ignore[attr-defined]


def _weights_of(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> dict[int, nn.Parameter]:
    """Weights of an optimizer by their numbers in its state dict."""
    numbers = (number for group in state_dict["param_groups"] for number in group["params"])
    return dict(zip(numbers, (each for group in optimizer.param_groups for each in group["params"]), strict=True))


def _packed_state(key: str, value: Any, least: int) -> Any:
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.numel() < least or key in _WIDE:
        return value
    return Packed.of(value, is_signed=key not in _NEVER_NEGATIVE)


@torch.no_grad()
def _step_one(optimizer: Optimizer, weight: nn.Parameter, group: dict[str, Any]) -> None:
    """Step one weight without hooks, which are for steps of all weights."""
    groups, step = optimizer.param_groups, type(optimizer).step
    step = getattr(step, "__wrapped__", step) if getattr(step, "hooked", False) else step
    optimizer.param_groups = [{**group, "params": [weight]}]
    try:
        step(optimizer)
    finally:
        optimizer.param_groups = groups


@dataclass(frozen=True)
class BitsandbytesState:
    """bitsandbytes' state of one weight. Wrapped, since torch would cast bare tensors to the weight's dtype."""

    states: dict[str, Any]


class _StepsOfBitsandbytes(_Steps):
    """The same order of steps, each made by that library's optimizer, whose states stand where torch's would."""

    def __init__(self, model: nn.Module, least: int) -> None:
        super().__init__(model, least)
        self.library = _bitsandbytes()
        # Made of a separate weight, since hooks listen for optimizers of the model's weights.
        self.library_optimizer = self.library.optim.AdamW8bit([nn.Parameter(torch.zeros(1))], min_8bit_size=least)
        self.library_optimizer.state.clear()

    def refuse(self, optimizer: Optimizer) -> None:
        if type(optimizer) is not torch.optim.AdamW or any(
            group["amsgrad"] or group["maximize"] for group in optimizer.param_groups
        ):
            raise ValueError("by=bitsandbytes supports torch.optim.AdamW without amsgrad and maximize. Use by=torch.")

    def step(self, optimizer: Optimizer, weight: nn.Parameter, group: dict[str, Any]) -> None:
        state = optimizer.state[weight]
        if _STATE_KEY in state:
            self.library_optimizer.state[weight] = state[_STATE_KEY].states
        elif "exp_avg" in state:
            self.take_over(state, weight)
        # As they are now: a scheduler may have changed them since the last step.
        now = {name: group[name] for name in ("betas", "eps", "weight_decay")} | {"lr": float(group["lr"])}
        _step_one(self.library_optimizer, weight, {**self.library_optimizer.defaults, **now})
        # States live as long as torch's optimizer remembers them.
        saved = state[_STATE_KEY] = BitsandbytesState(self.library_optimizer.state.pop(weight))
        state["step"] = torch.tensor(float(saved.states["step"]))

    def take_over(self, state: dict[str, Any], weight: nn.Parameter) -> None:
        """Give the library the states that torch's optimizer made or loaded."""
        self.library_optimizer.init_state({**self.library_optimizer.defaults}, weight, 0, 0)
        states = self.library_optimizer.state[weight]
        states["step"] = int(state["step"])
        for number, key in enumerate(_ADAM_STATES, start=1):
            wide = state.pop(key)
            wide = wide.unpacked() if isinstance(wide, Packed) else wide
            if states[f"state{number}"].is_floating_point():
                states[f"state{number}"].copy_(wide)
                continue
            codes, scales = self.library.functional.quantize_blockwise(
                wide, code=states[f"qmap{number}"], blocksize=_BLOCK
            )
            states[f"state{number}"], states[f"absmax{number}"] = codes, scales.absmax

    def unpacked(self, state: Mapping[str, Any], weight: Any, device: str | None = None) -> dict[str, Any]:
        saved = state.get(_STATE_KEY)
        if saved is None:
            return super().unpacked(state, weight, device)
        wide = {
            key: self._unpacked(saved.states, number).to(device, weight.dtype).view_as(weight)
            for number, key in enumerate(_ADAM_STATES, start=1)
        }
        return {"step": state["step"], **wide}

    def _unpacked(self, states: dict[str, Any], number: int) -> Tensor:
        state: Tensor = states[f"state{number}"]
        if state.is_floating_point():
            return state
        scales, codes = states[f"absmax{number}"], states[f"qmap{number}"]
        wide: Tensor = self.library.functional.dequantize_blockwise(state, absmax=scales, code=codes, blocksize=_BLOCK)
        return wide


def _bitsandbytes() -> Any:
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError:
        raise ValueError(
            "by=bitsandbytes needs a library that is not installed: pip install bitsandbytes, or use by=torch."
        ) from None
