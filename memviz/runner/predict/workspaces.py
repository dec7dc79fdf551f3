"""Memory that operators take on CUDA and no shape shows: workspaces, copies, and tensors inside one kernel call.

Each rule gives the bytes that are alive together while the operator runs, beside its results. "Read" means in
torch's source; "estimated" means that the sizes follow from how the kernel works and were not compared with a card.
A copy between host and card needs a contiguous buffer where the two sides differ in layout or type
(`copy_kernel_cuda`). `unseen_by` lists what has no rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import ceil
from operator import mul
from typing import Any

import torch
from torch import Tensor

from memviz.allocator.context import context_sentence
from memviz.runner.predict import indexing, shapes
from memviz.runner.predict.cards import KnownCard
from memviz.runner.request import DEFAULT_CARD

aten = torch.ops.aten


def _copy_to_new(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """`tensor.to(device)`: what the card takes besides."""
    return _copy_buffers(out, args[0], waits=not kwargs.get("non_blocking"))


def _copy_to_existing(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """`tensor.copy_(other)`."""
    return _copy_buffers(args[0], args[1], waits=_waits(args, kwargs))


def _copy_lists(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterator[tuple[int, ...]]:
    """`torch._foreach_copy_`: one after the other, where they cross."""
    for to, source in zip(args[0], args[1], strict=True):
        yield tuple(_copy_buffers(to, source, waits=_waits(args, kwargs)))


def _waits(args: Any, kwargs: Any) -> bool:
    return not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))


def _copy_buffers(to: Tensor, source: Tensor, *, waits: bool) -> Iterable[int]:
    if to.is_meta == source.is_meta or not to.numel() or _is_one_piece(to, source):
        return ()
    return _host_to_card(to, source, waits=waits) if to.is_meta else _card_to_host(to, source, waits=waits)


def _host_to_card(to: Tensor, source: Tensor, *, waits: bool) -> Iterable[int]:
    """Bytes staged for a copy to a non-contiguous tensor; an asynchronous change of dtype stages in the host's."""
    if not waits and to.dtype != source.dtype:
        return (to.numel() * source.element_size(),)
    return () if to.is_contiguous() else (to.numel() * to.element_size(),)


def _card_to_host(to: Tensor, source: Tensor, *, waits: bool) -> Iterable[int]:
    if not waits and to.dtype != source.dtype:
        source = torch.empty_like(source, dtype=to.dtype, device="meta")
        yield source.nbytes
    if source.shape != to.shape or not source.is_contiguous():
        yield to.numel() * source.element_size()


def _is_one_piece(to: Tensor, source: Tensor) -> bool:
    if to.dtype != source.dtype:
        return False
    if to.numel() == 1 or to.shape == source.shape and to.is_contiguous() and source.is_contiguous():
        return True
    return to.shape == source.shape and _steps(to) == _steps(source) and _has_no_gaps(to)


def _steps(tensor: Tensor) -> list[tuple[int, int]]:
    """How far apart its elements lie, and how many, along each dimension that has several."""
    return [(step, size) for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _has_no_gaps(tensor: Tensor) -> bool:
    steps = sorted(_steps(tensor))
    return [step for step, _ in steps] == list(accumulate((size for _, size in steps[:-1]), mul, initial=1))


_COPY_TEMPORARIES: dict[Any, Callable[..., Iterable[int | tuple[int, ...]]]] = {
    aten._to_copy: _copy_to_new,
    aten.copy_: _copy_to_existing,
    aten._foreach_copy_: _copy_lists,
}


Temporaries = Callable[[Any, Any, Any, KnownCard], Iterable[int | tuple[int, ...]]]
"""Arguments, keyword arguments, result, card -> bytes of each; a tuple is taken and given back before the next."""

USES_CUBLAS = {
    aten.mm,
    aten.addmm,
    aten.bmm,
    aten.baddbmm,
    aten.addbmm,
    aten._scaled_mm,
    aten._addmm_activation,
    aten.addmv,
    aten.mv,
    aten.dot,
    aten._int_mm,
}
_HALVES = (torch.float16, torch.bfloat16)
_SINGLE, _INDEX = 4, 8
_CHUNK = 65536
_WIDTH_IN_REGISTERS = 128
_LT_WORKSPACE = 1 << 20
LT_KEPT_SINCE, _LT_SHARED_SINCE = (2, 9), (2, 11)
"""A call took it and gave it back; then every handle and stream kept one; now cuBLAS's workspace serves for both."""
_LT_MAY_BE_SHARED_SINCE = (2, 7)
"""First release where a program may ask cublasLt to share cuBLAS's workspace."""
RECURRENT = "recurrent layer"
"""No operator: torch takes these layers apart before any is seen."""


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _flash(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Keys in several parts, where there are too few rows for the card: a partial result each (read)."""
    query, key = args[0], args[1]
    dropout = args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0)
    batch, heads, rows, width = query.shape
    splits = 1 if dropout else _splits(batch * heads * ceil(rows / 64), key.size(2), width, card)
    if splits == 1:
        return ()
    partial = splits * batch * heads * rows * _SINGLE
    return partial, partial * _up(width, 32 if width <= 128 else 64)


def _splits(blocks: int, keys: int, width: int, card: KnownCard) -> int:
    """The least number of parts that keeps the card nearly as busy as any number would."""
    units = 2 * card.multiprocessors
    if blocks >= 0.8 * units:
        return 1
    key_blocks = ceil(keys / (256 if width <= 64 else 128 if width <= 128 else 64))
    parts = range(1, min(128, units, key_blocks) + 1)
    worth = [n for n in parts if n == 1 or ceil(key_blocks / n) != ceil(key_blocks / (n - 1))]
    busy = {n: (blocks * n / units) / ceil(blocks * n / units) for n in worth}
    return next(n for n in worth if busy[n] >= 0.85 * max(busy.values()))


def _flash_backward(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Row sums, the queries' gradient in fp32, and for grouped heads those of keys and values unsummed (read)."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    rows = _up(rows, 128)
    yield batch * heads * rows * _SINGLE
    yield batch * heads * rows * _up(width, 32 if width <= 128 else 64) * _SINGLE
    if key.size(1) != heads:
        expanded = batch * heads * key.size(2) * width * query.element_size()
        yield from (expanded, expanded)


def _efficient(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Wide values of halves are summed in memory, in fp32 (read)."""
    query, value = args[0], args[2]
    batch, heads, rows, _ = query.shape
    width = value.size(-1)
    if query.dtype in _HALVES and width > _WIDTH_IN_REGISTERS:
        yield batch * heads * rows * width * _SINGLE


def _efficient_backward(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Row sums (read), and for halves the queries' gradient in fp32 (estimated)."""
    query = args[1]
    batch, heads, rows, width = query.shape
    yield batch * heads * rows * _SINGLE
    if query.dtype in _HALVES:
        yield batch * heads * _up(rows, 64) * _up(width, 64) * _SINGLE


def _flash_backward_of_rows(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Variable-length flash attention backward, with spare rows between sequences (estimated)."""
    rows, heads, width = args[1].shape
    rows += 128 * (args[6].numel() - 1)
    yield heads * rows * _SINGLE
    yield heads * rows * _up(width, 32 if width <= 128 else 64) * _SINGLE


def _heads_first(rule: Temporaries, first: int) -> Temporaries:
    """Adapt a rule to a kernel that takes rows before heads; its queries, keys and values begin at `first`."""

    def turned(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int | tuple[int, ...]]:
        tensors = [tensor.transpose(1, 2) for tensor in args[first : first + 3]]
        return rule((*args[:first], *tensors), kwargs, out, card)

    return turned


_CONFIG = re.compile(r":([0-9]+):([0-9]+)")
_WHOLE = re.compile(r"\s*\+?([0-9]+)")


@dataclass(frozen=True)
class WorkspaceSizes:
    cublas: int
    """Workspace of each cuBLAS handle."""
    is_shared: bool
    """cuBLAS's serves for cublasLt too."""
    lt_told: int | None = None

    @property
    def lt(self) -> int:
        """Workspace of cublasLt, 0 if it shares cuBLAS's."""
        return 0 if self.is_shared else self.lt_said

    @property
    def lt_said(self) -> int:
        """Size that torch reports for cublasLt."""
        if self.is_shared:
            return self.cublas if self.lt_told is None else min(self.lt_told, self.cublas)
        return _LT_WORKSPACE if self.lt_told is None else self.lt_told


def workspace_sizes(card: KnownCard, release: tuple[int, int], environment: Mapping[str, str]) -> WorkspaceSizes:
    """Return the workspace sizes that the environment sets, cublasLt's in KiB (read)."""
    size = _WHOLE.match(environment.get("CUBLASLT_WORKSPACE_SIZE", ""))
    lt_told = None if size is None else int(size[1]) * 1024
    return WorkspaceSizes(_cublas_size(card, release, environment), _is_shared(release, environment), lt_told)


def _cublas_size(card: KnownCard, release: tuple[int, int], environment: Mapping[str, str]) -> int:
    """Sum the `:KiB:count` pairs of CUBLAS_WORKSPACE_CONFIG, which deterministic programs have to set."""
    told = [] if card.is_amd else _CONFIG.findall(environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if not told:
        return card.cublas_workspace_in(release)
    return sum(int(size) * 1024 * int(count) for size, count in told)


def _is_shared(release: tuple[int, int], environment: Mapping[str, str]) -> bool:
    """TORCH_CUBLASLT_UNIFIED_WORKSPACE is 0 or 1, or not heard."""
    told = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") if release >= _LT_MAY_BE_SHARED_SINCE else None
    return told == "1" or told != "0" and release >= _LT_SHARED_SINCE


def uses_lt(args: Any, kwargs: Any) -> bool:
    """Return whether cublasLt adds the bias within the product (read, recorded)."""
    bias, left, right = args[:3]
    in_one = bias.dim() == 1 and bias.is_contiguous() and bias.size(0) == right.size(1) and min(right.shape) > 1
    return bool(in_one and kwargs.get("beta", 1) == 1 and left.numel() > 0 and bias.is_floating_point())


def _foreach_norm(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """A number for each piece of each tensor (read)."""
    tensors = args[0]
    pieces = max((ceil(tensor.numel() / _CHUNK) for tensor in tensors), default=0)
    return (len(tensors) * pieces * _SINGLE,)


def _lengths_of_sequences(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Both lengths and where targets begin are copied to the card (read)."""
    return (args[0].size(1) * _INDEX,) * 3


def _ctc_backward(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Those, and a second table (read)."""
    yield from _lengths_of_sequences(args[1:], kwargs, out, card)
    yield _bytes(args[6])


def _copies_for_cublas(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Matrices whose rows or columns do not lie one after the other are copied first (read)."""
    for arg in args:
        if isinstance(arg, Tensor) and arg.dim() >= 2 and not _suits_cublas(arg):
            yield _bytes(arg)


def _suits_cublas(matrix: Tensor) -> bool:
    rows, columns = matrix.shape[-2:]
    down, across = matrix.stride()[-2:]
    return (across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))


def _copies_to_be_contiguous(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Kernels that walk memory from end to end copy what does not lie so (read)."""
    return [_bytes(arg) for arg in args[:2] if isinstance(arg, Tensor) and not arg.is_contiguous()]


def _copy_of_the_first(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Padding with its own values, or its gradient, copies a non-contiguous input (read)."""
    return _copies_to_be_contiguous(args[:1], kwargs, out, card)


_PADDING = [
    getattr(aten, f"{kind}_pad{number}d{backward}")
    for kind in ("reflection", "replication")
    for number in (1, 2, 3)
    for backward in ("", "_backward")
]
TEMPORARIES: dict[Any, Temporaries] = {
    **indexing.TEMPORARIES,
    **_COPY_TEMPORARIES,
    **dict.fromkeys((aten.convolution, aten.convolution_backward), shapes.convolution_copies),
    aten._scaled_dot_product_flash_attention: _flash,
    aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    aten._scaled_dot_product_efficient_attention: _efficient,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
    aten._flash_attention_backward: _flash_backward_of_rows,
    aten._efficient_attention_forward: _heads_first(_efficient, 0),
    aten._efficient_attention_backward: _heads_first(_efficient_backward, 1),
    aten._foreach_norm: _foreach_norm,
    aten._ctc_loss: _lengths_of_sequences,
    aten._ctc_loss_backward: _ctc_backward,
    **dict.fromkeys((aten.mm, aten.addmm, aten.bmm, aten.baddbmm), _copies_for_cublas),
    **dict.fromkeys((aten.native_layer_norm, aten.native_layer_norm_backward), _copies_to_be_contiguous),
    **dict.fromkeys((aten._softmax, aten._softmax_backward_data), _copies_to_be_contiguous),
    **dict.fromkeys((aten._log_softmax, aten._log_softmax_backward_data), _copies_to_be_contiguous),
    **dict.fromkeys(_PADDING, _copy_of_the_first),
}

_UNSEEN = (
    (
        ("convolution", "convolution_backward"),
        "cuDNN takes a workspace for each convolution, chosen as it runs; it is not predicted, so peaks of "
        "convolutional models are lower bounds.",
    ),
    (
        ("_scaled_dot_product_cudnn_attention", "_scaled_dot_product_cudnn_attention_backward"),
        "cuDNN's attention takes a workspace that its plan decides on; it is not predicted.",
    ),
    (
        ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"),
        "cuDNN's batch norm may keep a reserve for backward; it is not predicted.",
    ),
    (
        (RECURRENT,),
        "cuDNN runs whole recurrent layers with a workspace and a reserve; here they are predicted step by step.",
    ),
    (
        ("sort_stable", "sort", "topk", "argsort", "cumsum", "unique_dim", "multinomial"),
        "Sorting and scanning take temporary copies of about their input's size; they are not predicted.",
    ),
)


_ONLY_MEMORY = (
    f"Of the card only the memory is known: kernels, workspaces and compute capability are taken from {DEFAULT_CARD}."
)


def unseen_by(operators: Iterable[str], card: KnownCard) -> tuple[str, ...]:
    """Return notes on memory that these operators take on a card beyond the prediction."""
    used = set(operators)
    of_operators = (sentence for names, sentence in _UNSEEN if used.intersection(names))
    alone = (_ONLY_MEMORY,) if card.is_only_memory else ()
    return (*of_operators, *alone, context_sentence(card.name))
