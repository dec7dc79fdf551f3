"""Operators that torch runs differently on CUDA, or in another release, than here for tensors without data.

Kernels are registered where torch decides how an operator is composed of others, for tensors without data only, so
they hold however a program reaches them: from Python, from C++ or in backward. `einsum` and indexing with ":"
differ by release. Sums and gradients are written in place where torch would do so without a dispatch mode. Attention
chooses among kernels by the rules of torch's `sdp_utils.cpp`: in an order of preference, the first that is enabled and
supports the call.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from types import CellType
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.nested._internal import sdpa
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from memviz.predictor.assumptions import NoSuchKernel, strided_nested_tensor
from memviz.predictor.cards import KnownCard
from memviz.predictor.compat import CUDNN_ATTENTION_SINCE, EINSUM_REORDERS_SINCE, FUSED_RMS_NORM_SINCE, Patches
from memviz.predictor.recurrent import OPERATORS, run_recurrent
from memviz.predictor.shapes import HALVES, is_dense, lies_on_device

aten = torch.ops.aten

_ELLIPSIS = "."
"""Prefix of the name of an ellipsis dimension, followed by its number from the right."""


def einsum(equation: str, operands: Sequence[Tensor], *, path: Any = None) -> Any:
    """Compute einsum as older releases do; return NotImplemented where they do not differ."""
    if len(operands) != 2 or "->" not in equation:
        return NotImplemented
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2:
        return NotImplemented
    name_lists = [_dimension_names(term, operand.dim()) for term, operand in zip(terms, operands, strict=True)]
    most = max((sum(name.startswith(_ELLIPSIS) for name in names) for names in name_lists), default=0)
    wanted = _dimension_names(output, len(output.replace("...", "")) + (most if "..." in output else 0))
    summed = sorted({name for names in name_lists for name in names} - set(wanted))
    if any(len(set(names)) < len(names) for names in (*name_lists, wanted)) or not summed:
        return NotImplemented
    order = [*wanted, *summed]
    left, right = (_aligned(one, names, order) for one, names in zip(operands, name_lists, strict=True))
    return _matrix_product(left, right, len(wanted))


def _matrix_product(left: Tensor, right: Tensor, output_dims: int) -> Any:
    dims = range(left.dim())
    both = [at for at in dims[:output_dims] if left.size(at) != 1 and right.size(at) != 1]
    of_left = [at for at in dims[:output_dims] if left.size(at) != 1 and at not in both]
    of_right = [at for at in dims[:output_dims] if at not in both and at not in of_left]
    summed = list(dims[output_dims:])
    as_now = not of_left or not of_right or of_right[-1] > of_left[0]
    if as_now or any(left.size(at) == 1 or right.size(at) == 1 for at in summed):
        return NotImplemented
    sizes = [left.size(at) for at in both], [left.size(at) for at in of_left], [right.size(at) for at in of_right]
    batch, rows, columns = (torch.Size(part).numel() for part in sizes)
    inner = torch.Size([left.size(at) for at in summed]).numel()
    left = left.permute(both + of_left + summed + of_right).reshape(batch, rows, inner)
    right = right.permute(both + summed + of_right + of_left).reshape(batch, inner, columns)
    product = torch.bmm(left, right).view(*sizes[0], *sizes[1], *(1 for _ in summed), *sizes[2])
    lies = both + of_left + summed + of_right
    product = product.permute([lies.index(at) for at in dims])
    return product.view(product.shape[:output_dims])


def _dimension_names(term: str, dims: int) -> list[str]:
    before, dots, after = term.partition("...")
    rest = dims - len(before) - len(after) if dots else 0
    return [*before, *(f"{_ELLIPSIS}{number}" for number in reversed(range(rest))), *after]


def _aligned(tensor: Tensor, names: list[str], order: list[str]) -> Tensor:
    """Return the tensor with a dimension for each name, of size 1 if missing."""
    for name in order:
        if name not in names:
            tensor, names = tensor.unsqueeze(-1), [*names, name]
    return tensor.permute([names.index(name) for name in order])


_SLICE_END = 2**63 - 1
_FULL_SLICE = slice(None)


def index_with_every_slice(args: Any, kwargs: Any) -> Any:
    """Index as torch 2.6 does; the default where that makes no difference.

    `Tensor.__getitem__` itself is not replaced: a Python function there makes CPython treat tensors as sequences, and
    `torch.tensor([x.sum()])` fails in the process from then on, even when the function is taken away.
    """
    tensor, index = args
    steps_matter = isinstance(index, tuple) and tensor.is_meta and tensor.requires_grad and torch.is_grad_enabled()
    if not steps_matter or not any(isinstance(part, slice) and part == _FULL_SLICE for part in index):
        return NotImplemented
    return _index_step_by_step(tensor, index)


def _index_step_by_step(tensor: Tensor, index: tuple[Any, ...]) -> Any:
    """Dimension by dimension, as torch does it: numbers, slices and new dimensions first, tensors together at last."""
    consumed = sum(1 for part in index if part is not None and part is not Ellipsis and not isinstance(part, bool))
    consumed += sum(part.dim() - 1 for part in index if isinstance(part, Tensor) and part.dtype == torch.bool)
    left = tensor.dim() - consumed
    at = 0
    later: list[Any] = []
    for part in index:
        if part is Ellipsis:
            later += [_FULL_SLICE] * left
            at += left
        elif part is None:
            tensor = tensor.unsqueeze(at)
            later.append(_FULL_SLICE)
            at += 1
        elif isinstance(part, slice):
            if part == _FULL_SLICE:
                tensor = torch.ops.aten.slice.Tensor(tensor, at, 0, _SLICE_END, 1)
            else:
                tensor = tensor[(*(_FULL_SLICE,) * at, part)]
            later.append(_FULL_SLICE)
            at += 1
        elif isinstance(part, int) and not isinstance(part, bool):
            tensor = tensor.select(at, part)
        else:
            later.append(part)
            at += part.dim() if isinstance(part, Tensor) and part.dtype == torch.bool else 1
    return tensor[tuple(later)] if any(part is not _FULL_SLICE for part in later) else tensor


# With a dispatch mode in force torch cannot rule out that a tensor is a subclass, so it works out of place where it
# would otherwise do so in place: where the gradients of a tensor that was used twice meet, where attention by single
# operators adds its mask, and where gradients of some entries are put among zeros. On a card no memory is taken there.

_adds_masks = ContextVar("adds_masks", default=False)


def add_in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the first term as the sum, or NotImplemented where memory is taken for it."""
    first, second = args[0], args[1]
    if kwargs or not (lies_on_device(first) and lies_on_device(second)):
        return NotImplemented
    if _adds_masks.get():
        fits = first.is_contiguous() and torch.result_type(first, second) == first.dtype
        return first.view(first.shape) if fits else NotImplemented
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
        return NotImplemented
    same_kind = first.shape == second.shape and first.dtype == second.dtype
    if not same_kind or not is_dense(first) or _reference_counts(first) != reference_counts_of_first_term():
        return NotImplemented
    return first


def write_into_zeros(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the fresh zeros that backward writes a gradient into as the result, or NotImplemented.

    Only the nodes of torch that make such zeros themselves do it: what a program's own backward writes out of place
    takes memory on a card too.
    """
    zeros = args[0]
    if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled() or not zeros.is_meta:
        return NotImplemented
    node: Any = getattr(torch._C, "_current_autograd_node", lambda: None)()
    name = "" if node is None else node.name().rstrip("0123456789")
    return zeros if name in _WRITERS[func] else NotImplemented


_CHOICES = frozenset(
    f"{name}Backward" for name in ("Max", "Min", "Median", "Nanmedian", "Kthvalue", "Mode", "Sort", "Topk", "Aminmax")
)
_WRITERS = {
    aten.index_put.default: {"IndexBackward", "UnsafeIndexBackward"},
    aten.scatter.src: _CHOICES,
    aten.scatter_add.default: {"GatherBackward", "CummaxBackward", "CumminBackward"},
    aten.index_add.default: {"IndexSelectBackward"},
    aten.put.default: {"TakeBackward"},
    aten.masked_scatter.default: {"MaskedSelectBackward"},
}
"""Operators out of place, and the nodes that on a card write in place instead."""
WRITES_INTO_ZEROS = frozenset(_WRITERS)


def _reference_counts(tensor: Any) -> tuple[int, int] | None:
    """Return the reference counts of the tensor and its storage; None if torch does not expose them."""
    storages: Any = getattr(torch._C, "_storage_Use_Count", None)
    tensors: Any = getattr(tensor, "_use_count", None)
    if storages is None or tensors is None:
        return None
    return int(tensors()), int(storages(tensor.untyped_storage()._cdata))


@cache
def reference_counts_of_first_term() -> tuple[int, int] | None:
    """Measure `_reference_counts` the first term when two gradients are added and nothing else refers to it."""
    probe = _Probe()
    with probe, torch.enable_grad():
        leaf = torch.empty(2, device="meta", requires_grad=True)
        once = leaf * 1
        total: Any = (once.sin() + once.cos()).sum()
        total.backward()
    return probe.owners


class _Probe(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owners: tuple[int, int] | None = None
        self._watched: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch's own answer imports all of torch._dynamo, which takes as long as the rest of a start.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.add.Tensor and torch._C._current_graph_task_id() != -1:
            self.owners = _reference_counts(args[0])
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            # As the ledger does, since that counts.
            self._watched.append(ref(out.untyped_storage()))
        return out


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
    """`release` is torch's: newer releases prefer cuDNN on some cards."""
    for backend in _backend_order(card, release):
        if is_on(backend) and (backend is Backend.MATH or (_any_fused(call) and takes(backend, call, card))):
            return backend
    names = ", ".join(backend.name.lower() for backend in Backend if is_on(backend)) or "none"
    sizes = " ".join(str(tuple(tensor.shape)) for tensor in (call.query, call.key, call.value))
    mask = ", with a mask" if call.mask is not None else ""
    dropout = f", dropout {call.dropout:g}" if call.dropout else ""
    # The first sentences are torch's.
    raise NoSuchKernel(
        f"No available kernel. Aborting execution. No enabled attention kernel ({names}) supports this on {card.name}: "
        f"{call.query.dtype} of {sizes}{mask}{dropout}. Enable the math kernel, or another that supports it."
    )


def is_on(backend: Backend) -> bool:
    name = {Backend.EFFICIENT: "mem_efficient"}.get(backend, backend.name.lower())
    return bool(getattr(torch.backends.cuda, f"{name}_sdp_enabled")())


def takes(backend: Backend, call: AttentionCall, card: KnownCard) -> bool:
    """Return whether a fused kernel supports the call's widths and dtypes on the card."""
    return {Backend.FLASH: _flash_supports, Backend.EFFICIENT: _efficient_supports, Backend.CUDNN: _cudnn_supports}[
        backend
    ](call, card)


def _backend_order(card: KnownCard, release: tuple[int, int]) -> tuple[Backend, ...]:
    set_order = getattr(torch._C, "_get_sdp_priority_order", None)
    numbers = {int(backend) for backend in Backend}
    order = tuple(Backend(number) for number in set_order() if number in numbers) if set_order is not None else _ORDER
    if order != _ORDER:
        return order
    put_back = os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1"
    prefers = card.prefers_cudnn_attention and release >= CUDNN_ATTENTION_SINCE
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


def _flash_supports(call: AttentionCall, card: KnownCard) -> bool:
    query, width = call.query, call.query.size(-1)
    if call.mask is not None or len(set(call.widths)) != 1 or width > 256 or card.architecture < 80:
        return False
    if call.trains and (86 <= card.architecture <= 89 or card.architecture >= 120):
        no_backward = 192 < width <= 224 or (width > 224 and call.dropout > 0)
        if no_backward:
            return False
    square = query.size(-2) == call.key.size(-2)
    return query.dtype in HALVES and (square or not call.is_causal)


def _efficient_supports(call: AttentionCall, card: KnownCard) -> bool:
    query = call.query
    if query.size(1) != call.key.size(1):
        return False
    half = query.dtype in HALVES
    tensor_cores = card.capability[0] >= 8 or (card.capability[0] == 7 and half)
    alignment = max(4 if card.capability[0] >= 8 else 1, 128 // (16 if half else 32) if tensor_cores else 1)
    if query.size(-1) != call.key.size(-1) or any(width % alignment for width in call.widths):
        return False
    return query.dtype in (torch.float16, torch.float32, *((torch.bfloat16,) if card.capability[0] >= 8 else ()))


def _cudnn_supports(call: AttentionCall, card: KnownCard) -> bool:
    if card.architecture < 80 or call.query.dtype not in HALVES or torch.are_deterministic_algorithms_enabled():
        return False
    if call.key.size(-2) == 1 or (call.dropout and call.query.size(-2) == 1):
        return False
    widest = 256 if card.capability == (9, 0) else 128
    return all(width % 8 == 0 and width <= widest for width in call.widths)


def attend(call: AttentionCall, backend: Backend, scale: float | None) -> Tensor:
    mask = call.mask
    if mask is not None and mask.dtype == torch.bool:
        lowest = torch.scalar_tensor(float("-inf"), dtype=call.query.dtype, device=mask.device)
        mask = torch.where(mask, 0.0, lowest)
    tensors: tuple[Tensor, ...] = (call.query, call.key, call.value)
    out: tuple[Tensor, ...]
    if backend is Backend.FLASH:
        # Widths that are no multiple of 8 are padded, in copies.
        width = call.query.size(-1)
        if width % 8:
            tensors = tuple(functional.pad(tensor, (0, -width % 8)) for tensor in tensors)
            scale = width**-0.5 if scale is None else scale
        out = aten._scaled_dot_product_flash_attention(*tensors, call.dropout, call.is_causal, False, scale=scale)
        return out[0][..., :width] if width % 8 else out[0]
    if backend is Backend.EFFICIENT:
        mask = None if mask is None else _aligned_mask(mask, call)
        out = aten._scaled_dot_product_efficient_attention(
            *tensors, mask, call.trains, call.dropout, call.is_causal, scale=scale
        )
    elif backend is Backend.CUDNN:
        out = aten._scaled_dot_product_cudnn_attention(
            *tensors, mask, call.trains, call.dropout, call.is_causal, False, scale=scale
        )
    else:
        token = _adds_masks.set(True)
        try:
            out = aten._scaled_dot_product_attention_math(
                *tensors, mask, call.dropout, call.is_causal, scale=scale, enable_gqa=call.grouped
            )
        finally:
            _adds_masks.reset(token)
    return out[0]


def _aligned_mask(mask: Tensor, call: AttentionCall) -> Tensor:
    """Expand a mask whose rows begin at multiples of 8 elements, if need be in a padded copy.

    By `preprocess_mask` in `attention.cpp`, which pads a row that is one already to the next.
    """
    length = mask.size(-1)
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        mask = functional.pad(mask, (0, 8 - length % 8))[..., :length]
    query, keys = call.query, call.key.size(2)
    return mask.expand(query.size(0), query.size(1), query.size(2), keys)


def seeds_on_host(func: Any, release: tuple[int, int]) -> Callable[[Any, Any, Any], Any] | None:
    """Return how to run a kernel whose results are unlike torch's shapes: most leave their random state on the host.

    The efficient kernel's backward reads it there (read), but for graphs that are captured. The flash kernel's is
    one tensor of the card from torch 2.7 on (read; before, none was recorded).
    """
    if func is aten._scaled_dot_product_cudnn_attention.default:
        return _cudnn_attention
    places, until = _SEEDS.get(func, ((), _NEVER))
    if release > until:
        return None

    def run(func: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
        out = list(func(*args, **kwargs))
        for at in places:
            out[at] = torch.empty((), dtype=torch.int64, device="cpu")
        return tuple(out)

    return run


def _cudnn_attention(func: Any, args: Any, kwargs: Any) -> tuple[Any, ...]:
    """Return no logsumexp unless `compute_log_sumexp` is set, unlike torch's meta kernel (measured)."""
    out = list(func(*args, **kwargs))
    if not args[4]:
        out[1] = None
    return tuple(out)


_NEVER, _EVER = (0, 0), (99, 0)
_SEEDS = {
    aten._scaled_dot_product_efficient_attention.default: ((2, 3), _EVER),
    aten._efficient_attention_forward.default: ((2, 3), _EVER),
    aten._scaled_dot_product_flash_attention.default: ((6, 7), (2, 6)),
    aten._flash_attention_forward.default: ((2, 3), (2, 6)),
}
"""Indices of the seed results, and the last release that returns them on the host."""


# Flex attention takes memory as its compiled kernels do: the output and one number for each query, also in backward.
FLEX_ASSUMED = "flex_attention is predicted as compiled, and keeps no scores; uncompiled it would keep them all"
ForgetValues = Callable[[Tensor], None]
"""Drops the values of a tensor, which seems to hold what lay there before."""


def flex_attention(
    forget: ForgetValues, query: Tensor, key: Tensor, value: Tensor, score_mod: Any
) -> tuple[Tensor, ...]:
    """The output, the logarithms of sums, and no largest scores, without tracing the functions that it is given.

    It is no operator of C++, and uncompiled it would keep every score; programs compile it, so that is predicted.
    """
    inputs = flex_inputs(query, key, value)
    # Trainable tensors of `score_mod`, such as a table of biases.
    learned = [one for one in captured_by(score_mod) if isinstance(one, Tensor) and one.requires_grad]
    outputs: tuple[Tensor, ...] = _FlexAttention.apply(forget, *inputs, *learned)  # type: ignore[no-untyped-call]
    return outputs


def flex_inputs(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Return query, key and value in autocast's dtype, where it is on."""
    if torch.is_autocast_enabled("cuda"):
        return tuple(tensor.to(torch.get_autocast_dtype("cuda")) for tensor in inputs)
    return inputs


def flex_results(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output, and the logarithm of the sum for each query."""
    same = query.size(-1) == value.size(-1)
    output = torch.empty_like(query) if same else query.new_empty(*query.shape[:-1], value.size(-1))
    return output, query.new_empty(query.shape[:-1], dtype=torch.float32)


def captured_by(function: Any) -> list[Any]:
    """Return what a function closes over, and the globals that it names."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != CellType()]
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    return [*cells, *(function.__globals__.get(name) for name in names)]


class _FlexAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, forget: ForgetValues, query: Tensor, key: Tensor, value: Tensor, *learned: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        output, sums = flex_results(query, value)
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
        new_gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value, *learned))
        del products
        for gradient in new_gradients:
            ctx.forget(gradient)
        return None, *new_gradients


_JAGGED_KERNELS = {"can_use_flash_attention": Backend.FLASH, "can_use_efficient_attention": Backend.EFFICIENT}


@contextmanager
def jagged_attention_on(card: KnownCard) -> Iterator[None]:
    """Answer torch.nested's checks for attention kernels by the card's rules; a CPU build has none."""
    strided: Any = torch._C._nested  # type: ignore[attr-defined]
    make: Callable[..., Any] = strided.nested_tensor

    def can_use(backend: Backend, params: Any, debug: bool = False) -> bool:
        if not (params.query.is_meta and is_on(backend)):
            return False
        dropout, grouped = params.dropout, getattr(params, "enable_gqa", False)
        tensors = (params.query, params.key, params.value)
        with torch._C.DisableTorchFunction():
            call = AttentionCall(*tensors, params.attn_mask, dropout, params.is_causal, grouped)
        return params.attn_mask is None and takes(backend, call, card)

    def make_on_host(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is not None and torch.device(device).type != "cpu":
            raise strided_nested_tensor()
        return make(*args, device=device, **kwargs)

    with Patches() as patches:
        for name, backend in _JAGGED_KERNELS.items():
            patches.replace(sdpa, name, partial(can_use, backend))
        # It comes after all others there, and those can do what it can.
        patches.replace(sdpa, "can_use_cudnn_attention", lambda params, debug=False: False)
        patches.put(strided, "nested_tensor", make_on_host)
        yield


_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
_ATTENTION_TAKES = ("attn_mask", "dropout_p", "is_causal")
Kernel = Callable[..., Any]
_Library: Any = torch.library.Library


@contextmanager
def registered_kernels(kernels: dict[str, Kernel]) -> Iterator[None]:
    library: Any = _Library("aten", "IMPL")
    try:
        for name, kernel in kernels.items():
            if "::" not in name:
                library.impl(name, kernel, "AutogradMeta")
        yield
    finally:
        library._destroy()


def kernels_for(
    card: KnownCard, release: tuple[int, int], cast_to: Callable[[], torch.dtype | None]
) -> dict[str, Kernel]:
    """Return the kernels by operator name; inference mode passes these operators whole, and uses the same kernels."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
        arguments = {**dict(zip(_ATTENTION_TAKES, rest, strict=False)), **kwargs}
        call = AttentionCall(
            query,
            key,
            value,
            mask=arguments.get("attn_mask"),
            dropout=arguments.get("dropout_p", 0.0),
            is_causal=arguments.get("is_causal", False),
            grouped=arguments.get("enable_gqa", False),
        )
        return attend(call, backend_for(call, card, release), arguments.get("scale"))

    kernels: dict[str, Kernel] = {"scaled_dot_product_attention": attention, "dropout": _dropout, "linear": _linear}
    if release >= FUSED_RMS_NORM_SINCE:
        kernels["rms_norm"] = _rms_norm
    if release < EINSUM_REORDERS_SINCE:
        kernels["einsum"] = _einsum
    kernels["mish_backward"] = lambda grad_output, self: torch.empty_like(self)
    kernels["one_hot"] = _one_hot
    kernels["ctc_loss.Tensor"] = _ctc_loss
    kernels["softmax.int"] = _softmax_in_fp32(aten.softmax.int, aten._softmax.default)
    kernels["log_softmax.int"] = _softmax_in_fp32(aten.log_softmax.int, aten._log_softmax.default)
    kernels["bitsandbytes::gemm_4bit"] = _gemm_4bit
    states: list[Tensor] = []
    return kernels | {name: partial(run_recurrent, name, cast_to, states) for name in OPERATORS}


_MOST_ROWS_PACKED = 1536
"""Rows up to which bitsandbytes 0.50 may multiply packed weights as they are."""


_PACKED_TAKES = ("blocksize", "quant_type", "bias", "absmax_8bit", "absmax_code", "absmax_offset")


def _gemm_4bit(
    input: Tensor, packed: Tensor, shape: Sequence[int], absmax: Tensor, *rest: Any, **kwargs: Any
) -> Tensor:
    """Unpack the whole weight, unless bitsandbytes has a faster kernel for so few rows on this card, and multiply."""
    given = {**dict(zip(_PACKED_TAKES, rest, strict=False)), **kwargs}
    (outer, inner), rows = shape, input.numel() // input.shape[-1]
    is_faster: Any = getattr(sys.modules.get("bitsandbytes.backends.cuda.ops"), "_gemm_4bit_use_custom_cuda", None)
    may_be = rows <= _MOST_ROWS_PACKED and inner % given["blocksize"] == 0 and is_faster is not None
    if may_be and is_faster(0, input.dtype, rows, outer, inner):
        return torch.empty((*input.shape[:-1], outer), dtype=input.dtype, device=input.device)
    scales: list[Any] = [absmax]
    if given.get("absmax_8bit") is not None:
        scales.append(torch.empty_like(given["absmax_8bit"], dtype=torch.float32))
        scales.append(scales[-1] + given["absmax_offset"])
    weight = torch.empty(tuple(shape), dtype=input.dtype, device=input.device)
    return functional.linear(input, weight, given.get("bias"))


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """Save a mask of one byte an element as CUDA does; on other devices it has the input's dtype."""
    if train and 0 < p < 1 and input.numel() > 0:
        out: Tensor = aten.native_dropout(input, p, train)[0]
        return out
    composed: Tensor = _as_composed(aten.dropout.default, input, p, train)
    return composed


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Add the bias in place where the product does not include it, as torch does for plain tensors."""
    if bias is None or input.dim() <= 2 or input.is_contiguous():
        composed: Tensor = _as_composed(aten.linear.default, input, weight, bias)
        return composed
    return torch.matmul(input, weight.t()).add_(bias)


def _einsum(equation: str, tensors: list[Tensor], *, path: Any = None) -> Any:
    result = einsum(equation, tensors, path=path)
    if result is not NotImplemented:
        return result
    return _as_composed(aten.einsum.default, equation, tensors, path=path)


def _rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    """One kernel that keeps a number a row, if the weight has the input's type."""
    if weight is not None and weight.dtype != input.dtype:
        return _as_composed(aten.rms_norm.default, input, normalized_shape, weight, eps)
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None:
        # torch's compiler traces what is computed of what, and then fuses it.
        return aten._fused_rms_norm.default(input, normalized_shape, weight, eps)[0]
    return _RmsNorm.apply(input, weight, len(normalized_shape))  # type: ignore[no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    """Takes what the fused kernel takes; there is nothing to compute."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor | None, width: int) -> Tensor:
        rows = (*input.shape[:-width], *(1 for _ in range(width)))
        wide = torch.float32 if input.dtype in HALVES else input.dtype
        if not input.is_contiguous():
            input = input.contiguous()
        out = torch.empty_like(input)
        ctx.save_for_backward(input, weight, torch.empty(rows, dtype=wide, device=input.device))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        input, weight, _ = ctx.saved_tensors
        for_input = torch.empty_like(input) if ctx.needs_input_grad[0] else None
        for_weight = torch.empty_like(weight) if weight is not None and ctx.needs_input_grad[1] else None
        return for_input, for_weight, None


def _one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """Scatter ones into zeros as CUDA does; other devices compare with an arange of the classes, which takes memory."""
    if self.dtype != torch.long:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if self.numel() == 0 and num_classes <= 0:
        raise RuntimeError("Can not infer total number of classes from empty tensor.")
    if self.numel() == 0:
        return torch.empty((*self.shape, num_classes), dtype=self.dtype, device=self.device)
    if num_classes == -1:
        num_classes = aten._local_scalar_dense.default(self.max()) + 1
    if num_classes < 1:
        raise RuntimeError("num_classes should be positive")
    zeros = torch.zeros((*self.shape, num_classes), dtype=self.dtype, device=self.device)
    return zeros.scatter_(-1, self.unsqueeze(-1), 1)


def _ctc_loss(log_probs: Tensor, targets: Tensor, steps: Tensor, lengths: Tensor, *options: Any) -> Any:
    """Convert lengths to Python numbers here, because torch reads the tensors in C++, below the modes."""
    return _as_composed(aten.ctc_loss.IntList, log_probs, targets, steps.tolist(), lengths.tolist(), *options)


def _softmax_in_fp32(composed: Any, fused: Any) -> Kernel:
    """Convert fp16 to fp32 within the kernel as CUDA does; other devices copy the input first."""

    def kernel(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if self.dtype == torch.float16 and dtype == torch.float32:
            return fused(self, dim, True)
        return _as_composed(composed, self, dim, dtype)

    return kernel


def _as_composed(func: Any, *args: Any, **kwargs: Any) -> Any:
    return func._op_dk(_COMPOSED, *args, **kwargs)
