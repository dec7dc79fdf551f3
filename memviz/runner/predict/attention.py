"""Attention kernels: which one a card would choose, what is called then, and what flex attention takes.

The rules are those of torch's `sdp_utils.cpp`: kernels are tried in an order of preference, and the first that is
enabled and supports the call takes it. Flex attention takes memory as its compiled kernels do: the output, and one
number for each query, in backward likewise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.in_place import adding_masks
from memviz.runner.predict.prediction_errors import no_such_kernel

aten = torch.ops.aten
_switches: Any = torch.backends.cuda
_CUDNN_SINCE = (2, 10)
"""The first whose wheels bring a cuDNN that is preferred, 9.15.1."""
_HALVES = (torch.float16, torch.bfloat16)


class Backend(IntEnum):
    """Numbered as torch numbers them."""

    MATH = 0
    FLASH = 1
    EFFICIENT = 2
    CUDNN = 3


_ORDER = (Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN)
_CUDNN_FIRST = (Backend.CUDNN, Backend.FLASH, Backend.EFFICIENT, Backend.MATH)


@dataclass(frozen=True)
class AttentionCall:
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    dropout: float
    is_causal: bool
    grouped: bool
    """Fewer heads of keys and values than of queries are allowed."""

    @property
    def trains(self) -> bool:
        inputs = (self.query, self.key, self.value)
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)

    @property
    def widths(self) -> tuple[int, int, int]:
        return self.query.size(-1), self.key.size(-1), self.value.size(-1)


def backend_for(call: AttentionCall, card: KnownCard, release: tuple[int, int]) -> Backend:
    """`release` is torch's, whose newer ones prefer cuDNN on some cards."""
    for backend in _order(card, release):
        if is_on(backend) and (backend is Backend.MATH or (_any_fused(call) and takes(backend, call, card))):
            return backend
    names = ", ".join(backend.name.lower() for backend in Backend if is_on(backend)) or "none"
    raise no_such_kernel(
        f"No attention kernel that is switched on ({names}) can do this on {card.name}: "
        f"{_described(call)}. Switch on the math kernel too, or another that can."
    )


def is_on(backend: Backend) -> bool:
    switches = {
        Backend.MATH: _switches.math_sdp_enabled,
        Backend.FLASH: _switches.flash_sdp_enabled,
        Backend.EFFICIENT: _switches.mem_efficient_sdp_enabled,
        Backend.CUDNN: _switches.cudnn_sdp_enabled,
    }
    return bool(switches[backend]())


def takes(backend: Backend, call: AttentionCall, card: KnownCard) -> bool:
    """Return whether a fused kernel supports the call's widths and dtypes on the card."""
    return {Backend.FLASH: _flash, Backend.EFFICIENT: _efficient, Backend.CUDNN: _cudnn}[backend](call, card)


def _order(card: KnownCard, release: tuple[int, int]) -> tuple[Backend, ...]:
    set_order = getattr(torch._C, "_get_sdp_priority_order", None)
    known = {int(backend) for backend in Backend}
    order = tuple(Backend(number) for number in set_order() if number in known) if set_order is not None else _ORDER
    if order != _ORDER:
        return order
    put_back = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
    prefers = card.prefers_cudnn_attention and release >= _CUDNN_SINCE
    return _CUDNN_FIRST if prefers and not put_back else _ORDER


def _any_fused(call: AttentionCall) -> bool:
    """Check what all fused kernels need: 4-D tensors, not empty, contiguous within a head, equal batch and heads."""
    tensors = (call.query, call.key, call.value)
    if any(tensor.dim() != 4 or tensor.numel() == 0 for tensor in tensors):
        return False
    if any(tensor.stride(-1) != 1 and tensor.size(-1) != 1 for tensor in tensors):
        return False
    heads = {tensor.size(1) for tensor in tensors}
    return len({tensor.size(0) for tensor in tensors}) == 1 and (len(heads) == 1 or call.grouped)


def _flash(call: AttentionCall, card: KnownCard) -> bool:
    query, width = call.query, call.query.size(-1)
    if call.mask is not None or len(set(call.widths)) != 1 or width > 256 or card.architecture < 80:
        return False
    if call.trains and (86 <= card.architecture <= 89 or card.architecture >= 120):
        no_backward = 192 < width <= 224 or (width > 224 and call.dropout > 0)
        if no_backward:
            return False
    square = query.size(-2) == call.key.size(-2)
    return query.dtype in _HALVES and (square or not call.is_causal)


def _efficient(call: AttentionCall, card: KnownCard) -> bool:
    query = call.query
    if query.size(1) != call.key.size(1):
        return False
    half = query.dtype in _HALVES
    tensor_cores = card.capability[0] >= 8 or (card.capability[0] == 7 and half)
    alignment = max(4 if card.capability[0] >= 8 else 1, 128 // (16 if half else 32) if tensor_cores else 1)
    if query.size(-1) != call.key.size(-1) or any(width % alignment for width in call.widths):
        return False
    return query.dtype in (torch.float16, torch.float32, *((torch.bfloat16,) if card.capability[0] >= 8 else ()))


def _cudnn(call: AttentionCall, card: KnownCard) -> bool:
    if card.architecture < 80 or call.query.dtype not in _HALVES or torch.are_deterministic_algorithms_enabled():
        return False
    if call.dropout * 16 % 1 or call.key.size(-2) == 1 or (call.dropout and call.query.size(-2) == 1):
        return False
    widest = 256 if card.capability == (9, 0) and not call.trains else 128
    return all(width % 8 == 0 and width <= widest for width in call.widths)


def attend(call: AttentionCall, backend: Backend, scale: float | None) -> Tensor:
    mask = _additive(call.mask, call.query.dtype)
    if backend is Backend.FLASH:
        return _attend_flash(call, scale)
    if backend is Backend.EFFICIENT:
        mask = None if mask is None else _fitting(mask, call)
        out = aten._scaled_dot_product_efficient_attention(
            call.query, call.key, call.value, mask, call.trains, call.dropout, call.is_causal, scale=scale
        )
        return _first(out)
    if backend is Backend.CUDNN:
        out = aten._scaled_dot_product_cudnn_attention(
            call.query, call.key, call.value, mask, call.trains, call.dropout, call.is_causal, False, scale=scale
        )
        return _first(out)
    with adding_masks():
        out = aten._scaled_dot_product_attention_math(
            call.query, call.key, call.value, mask, call.dropout, call.is_causal, scale=scale, enable_gqa=call.grouped
        )
    return _first(out)


def _attend_flash(call: AttentionCall, scale: float | None) -> Tensor:
    """Widths that are no multiple of 8 are padded, in copies."""
    width = call.query.size(-1)
    missing = -width % 8
    tensors = (call.query, call.key, call.value)
    if missing:
        tensors = (_padded(call.query, missing), _padded(call.key, missing), _padded(call.value, missing))
        scale = width**-0.5 if scale is None else scale
    out = aten._scaled_dot_product_flash_attention(*tensors, call.dropout, call.is_causal, False, scale=scale)
    return _first(out)[..., :width] if missing else _first(out)


def _padded(tensor: Tensor, by: int) -> Tensor:
    return functional.pad(tensor, (0, by))


def _first(out: tuple[Tensor, ...]) -> Tensor:
    return out[0]


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A mask of yes and no becomes one of zero and minus infinity."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=dtype, device=mask.device))


def _fitting(mask: Tensor, call: AttentionCall) -> Tensor:
    """Its rows begin at multiples of 16 bytes, if need be in a padded copy."""
    length = mask.size(-1)
    unit = 16 // mask.element_size()
    if length % unit and length > 1:
        mask = _padded(mask, -length % unit)[..., :length]
    query, keys = call.query, call.key.size(2)
    return mask.expand(query.size(0), query.size(1), query.size(2), keys)


def seeds_on_host(func: Any, release: tuple[int, int]) -> Callable[[Any, Any, Any], Any] | None:
    """How a kernel runs that leaves the state of its random numbers on the host, where torch's shapes say the card.

    The efficient kernel's backward reads them there (read), but for graphs that are captured. The flash kernel's are
    one tensor of the card from torch 2.7 on (read; before, none was recorded).
    """
    places, until = _SEEDS.get(func, ((), _NEVER))
    if release > until:
        return None

    def run(func: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        out = list(func(*args, **kwargs))
        for at in places:
            out[at] = torch.empty((), dtype=torch.int64, device="cpu")
        return tuple(out)

    return run


_NEVER, _EVER = (0, 0), (99, 0)
_SEEDS = {
    aten._scaled_dot_product_efficient_attention.default: ((2, 3), _EVER),
    aten._efficient_attention_forward.default: ((2, 3), _EVER),
    aten._scaled_dot_product_flash_attention.default: ((6, 7), (2, 6)),
    aten._flash_attention_forward.default: ((2, 3), (2, 6)),
}
"""Which of the results, and in releases until which."""


def _described(call: AttentionCall) -> str:
    sizes = " ".join(str(tuple(tensor.shape)) for tensor in (call.query, call.key, call.value))
    mask = ", with a mask" if call.mask is not None else ""
    return f"{call.query.dtype} of {sizes}{mask}{f', dropout {call.dropout:g}' if call.dropout else ''}"


FLEX_ASSUMED = (
    "flex_attention runs as its compiled kernels would, and keeps no scores; uncompiled it would keep them all"
)


ForgetValues = Callable[[Tensor], None]
"""The values of a tensor, which seems to hold what lay there before."""


def flex_attention(
    forget: ForgetValues, query: Tensor, key: Tensor, value: Tensor, score_mod: Any
) -> tuple[Tensor, ...]:
    """The output, the logarithms of sums, and no largest scores, without tracing the functions that it is given.

    It is no operator of C++, and uncompiled it would keep every score; programs compile it, so that is predicted.
    """
    inputs: tuple[Tensor, ...] = (query, key, value)
    if torch.is_autocast_enabled("cuda"):
        inputs = tuple(tensor.to(torch.get_autocast_dtype("cuda")) for tensor in inputs)
    made: tuple[Tensor, ...] = _FlexAttention.apply(forget, *inputs, *_learned_biases(score_mod))  # type: ignore[no-untyped-call]
    return made


def _learned_biases(score_mod: Any) -> list[Tensor]:
    """Return the trainable tensors that `score_mod` captures, such as a table of biases."""
    cells = [cell.cell_contents for cell in getattr(score_mod, "__closure__", None) or ()]
    names = getattr(getattr(score_mod, "__code__", None), "co_names", ())
    around = [score_mod.__globals__.get(name) for name in names]
    return [value for value in (*cells, *around) if isinstance(value, Tensor) and value.requires_grad]


class _FlexAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forget: ForgetValues, query: Tensor, key: Tensor, value: Tensor, *learned: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        same = query.size(-1) == value.size(-1)
        output = torch.empty_like(query) if same else query.new_empty(*query.shape[:-1], value.size(-1))
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        largest = query.new_empty(0, dtype=torch.float32)
        for tensor in (output, sums):
            forget(tensor)
        ctx.forget = forget
        ctx.save_for_backward(query, key, value, output, sums, *learned)
        ctx.mark_non_differentiable(largest)
        return output, sums, largest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """The kernel reads the products of output and gradient, one number for each query."""
        query, key, value, _output, _sums, *learned = ctx.saved_tensors
        products = query.new_empty(query.shape[:-1], dtype=torch.float32)
        made = tuple(torch.empty_like(tensor) for tensor in (query, key, value, *learned))
        del products
        for gradient in made:
            ctx.forget(gradient)
        return None, *made
