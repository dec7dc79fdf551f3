"""What an optimizer remembers of each weight, in 8 bits: blocks of 256 numbers, each with a scale of its own.

AdamW keeps two numbers a weight, as wide as the weight. Between steps they rest here as one byte each. A step takes one
weight after the other: its states are unpacked, PyTorch's own optimizer steps it, and they are packed again, so that
the wide ones exist for one weight at a time. What to know before using it:

* A byte is spread where numbers are small: the square root of a state's share of its block's largest is rounded, and
  for averages of squares, which reach over many orders of magnitude and are divided by, the fourth root. None of those
  becomes zero that was none.
* Training goes another way, as it does with another batch: each step rounds what was remembered.
* States of fewer than `least` numbers stay as they are, and so do counters.
* It goes by torch's hooks of an optimizer's step, for those of `torch.optim` that step each weight by itself.
* While a step lasts, the gradients are set aside. A closure is not called a second time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

_BLOCK = 256
_PIECE = 1 << 24
"""Numbers that are packed at once, so that what that takes itself stays small."""
_NEVER_NEGATIVE = ("exp_avg_sq", "max_exp_avg_sq", "square_avg", "acc_delta", "sum", "exp_inf")
"""As torch's optimizers call their averages of squares and of sizes."""


@dataclass(frozen=True)
class EightBitStates:
    """`undo = EightBitStates().apply(model)`, then train as before."""

    least: int = field(default=4096, metadata={"help": "states of fewer numbers stay as they are", "least": 1})

    name: ClassVar[str] = "eight_bit_states"
    title: ClassVar[str] = "Optimizer states in 8 bits"
    sentence: ClassVar[str] = (
        "What the optimizer remembers rests in a byte a number, with a scale for each 256. "
        "Every step rounds it, so training goes another way."
    )
    not_with: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[Literal["any", "training", "inference"]] = "training"
    needs_optimizer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.least < 1:
            raise ValueError(f"least is {self.least}; it is 1 or more.")

    @property
    def claim(self) -> Literal["bitwise", "rounding", "training", "lossy"]:
        """Outputs and gradients are what they were for the same weights. The steps between are not."""
        return "training"

    @property
    def environment(self) -> Mapping[str, str]:
        return {}

    def check(self, model: nn.Module, *, training: bool) -> None:
        if not training:
            raise ValueError("Inference has no optimizer: train, or leave its states out.")

    def apply(self, model: nn.Module) -> Callable[[], None]:
        steps = _Steps(model, self.least)
        before = register_optimizer_step_pre_hook(steps.before)
        after = register_optimizer_step_post_hook(steps.after)

        def undo() -> None:
            before.remove()
            after.remove()
            for optimizer in steps.stepped:
                _unpack_all(optimizer)

        # Nobody need undo it for a model that is gone.
        return weakref.finalize(model, undo)

    def code(self) -> str:
        return f"from {__name__} import EightBitStates\n\nundo = {self!r}.apply(model)"


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

    def unpacked(self) -> Tensor:
        count = self.codes.numel()
        flat = torch.empty(count, dtype=self.dtype, device=self.codes.device)
        for start in range(0, count, _PIECE):
            codes, scales = self.codes[start : start + _PIECE], self.scales[start // _BLOCK :]
            flat[start : start + _PIECE] = _unpacked(codes, scales)
        return flat.as_strided(self.shape, self.stride)


def _is_dense(tensor: Tensor) -> bool:
    """Whether its numbers fill its memory, in whatever order."""
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

    def before(self, optimizer: Optimizer, *_: Any) -> None:
        """Steps the weights of this model; the step that follows finds no gradients of theirs."""
        model = self.model()
        mine = set() if model is None else set(model.parameters())
        groups = optimizer.param_groups
        todo = [
            (weight, group)
            for group in groups
            for weight in group["params"]
            if weight in mine and weight.grad is not None
        ]
        if not todo:
            return
        _refuse_others(optimizer)
        self.stepped.add(optimizer)
        gradients = {weight: weight.grad for weight, _ in todo}
        for parameter in gradients:
            parameter.grad = None
        try:
            for weight, group in todo:
                weight.grad = gradients[weight]
                optimizer.param_groups = [{**group, "params": [weight]}]
                self.step(optimizer, weight)
                weight.grad = None
        finally:
            optimizer.param_groups = groups
            self.aside = gradients

    # An optimizer that steps one weight at a time, during backward, looks for this.
    before.of_each_weight = True  # type: ignore[attr-defined]

    def step(self, optimizer: Optimizer, weight: nn.Parameter) -> None:
        state = optimizer.state[weight]
        for key, packed in list(_packed_in(state)):
            state[key] = packed.unpacked()
        step: Any = type(optimizer).step
        step = step.__wrapped__ if getattr(step, "hooked", False) else step
        with torch.no_grad():
            step(optimizer)
            for key, value in list(state.items()):
                if isinstance(value, Tensor) and value.is_floating_point() and value.numel() >= self.least:
                    state[key] = Packed.of(value, is_signed=key not in _NEVER_NEGATIVE)

    def after(self, optimizer: Optimizer, *_: Any) -> None:
        for weight, gradient in self.aside.items():
            weight.grad = gradient
        self.aside = {}

    after.of_each_weight = True  # type: ignore[attr-defined]


def _packed_in(state: Mapping[str, Any]) -> Iterator[tuple[str, Packed]]:
    for key, value in state.items():
        if isinstance(value, Packed):
            yield key, value


def _unpack_all(optimizer: Optimizer) -> None:
    for state in optimizer.state.values():
        for key, packed in list(_packed_in(state)):
            state[key] = packed.unpacked()


def _refuse_others(optimizer: Optimizer) -> None:
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim") or isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            f"{kind.__name__} may need all states at once; one of torch.optim other than LBFGS has them packed."
        )
