"""Operators that torch decomposes differently on CUDA, or in another release, than here for tensors without data.

Kernels are registered where torch decides how an operator is composed of others, for tensors without data only, so
they hold however a program reaches them: from Python, from C++ or in backward. `einsum` and indexing with ":"
differ by release; attention over jagged tensors (torch.nested) chooses its kernel in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nested._internal import sdpa

from memviz.runner.predict.attention import AttentionCall, Backend, attend, backend_for, is_on, takes
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.compat import Patches

aten = torch.ops.aten
# Since then torch swaps the operands where the rows of the result then lie as the equation orders them (read; the older
# way is proved by recordings of torch 2.6). It decides the layout of the result, and so what the next operators copy.
EINSUM_REORDERS_SINCE = (2, 9)
_ELLIPSIS = "."
"""Stands for one dimension of an ellipsis, followed by its number from the right."""


def einsum(equation: str, operands: Sequence[Tensor], *, path: Any = None) -> Any:
    """Compute einsum as older releases do; return NotImplemented where they do not differ."""
    if len(operands) != 2 or "->" not in equation:
        return NotImplemented
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != 2:
        return NotImplemented
    named = [_dimension_names(term, operand.dim()) for term, operand in zip(terms, operands, strict=True)]
    most = max((sum(name.startswith(_ELLIPSIS) for name in names) for names in named), default=0)
    wanted = _dimension_names(output, len(output.replace("...", "")) + (most if "..." in output else 0))
    summed = sorted({name for names in named for name in names} - set(wanted))
    if any(len(set(names)) < len(names) for names in (*named, wanted)) or not summed:
        return NotImplemented
    order = [*wanted, *summed]
    left, right = (_aligned(one, names, order) for one, names in zip(operands, named, strict=True))
    return _matrix_product(left, right, len(wanted))


def _dimension_names(term: str, dims: int) -> list[str]:
    before, dots, after = term.partition("...")
    rest = dims - len(before) - len(after) if dots else 0
    return [*before, *(f"{_ELLIPSIS}{number}" for number in reversed(range(rest))), *after]


def _aligned(tensor: Tensor, names: list[str], order: list[str]) -> Tensor:
    """With a dimension for each name, of size 1 where it has none."""
    for name in order:
        if name not in names:
            tensor, names = tensor.unsqueeze(-1), [*names, name]
    return tensor.permute([names.index(name) for name in order])


def _matrix_product(left: Tensor, right: Tensor, kept: int) -> Any:
    dims = range(left.dim())
    both = [at for at in dims[:kept] if left.size(at) != 1 and right.size(at) != 1]
    of_left = [at for at in dims[:kept] if left.size(at) != 1 and at not in both]
    of_right = [at for at in dims[:kept] if at not in both and at not in of_left]
    summed = list(dims[kept:])
    as_now = not of_left or not of_right or of_right[-1] > of_left[0]
    if as_now or any(left.size(at) == 1 or right.size(at) == 1 for at in summed):
        return NotImplemented
    sizes = [left.size(at) for at in both], [left.size(at) for at in of_left], [right.size(at) for at in of_right]
    batch, rows, columns = (torch.Size(part).numel() for part in sizes)
    inner = torch.Size([left.size(at) for at in summed]).numel()
    left = left.permute(both + of_left + summed + of_right).reshape(batch, rows, inner)
    right = right.permute(both + summed + of_right + of_left).reshape(batch, inner, columns)
    made = torch.bmm(left, right).view(*sizes[0], *sizes[1], *(1 for _ in summed), *sizes[2])
    lies = both + of_left + summed + of_right
    made = made.permute([lies.index(at) for at in dims])
    return made.view(made.shape[:kept])


# Up to it every ":" of `x[:, -1, :]` makes a slice, though it shows the whole dimension, and the gradient of a slice is
# padded with zeros to the size of the sliced tensor.
SLICES_UNTIL = (2, 6)
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
    taken = sum(1 for part in index if part is not None and part is not Ellipsis and not isinstance(part, bool))
    taken += sum(part.dim() - 1 for part in index if isinstance(part, Tensor) and part.dtype == torch.bool)
    left = tensor.dim() - taken
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


_JAGGED_KERNELS = {
    "can_use_flash_attention": Backend.FLASH,
    "can_use_efficient_attention": Backend.EFFICIENT,
}


@contextmanager
def jagged_attention_on(card: KnownCard) -> Iterator[None]:
    """Answer which kernels the build has: torch.nested asks for them, and a build for the host has none."""
    with Patches() as patches:
        for name, backend in _JAGGED_KERNELS.items():
            patches.replace(sdpa, name, _kernel_check(backend, card))
        # It comes after all others there, and those can do what it can.
        patches.replace(sdpa, "can_use_cudnn_attention", lambda params, debug=False: False)
        yield


def _kernel_check(backend: Backend, card: KnownCard) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:
        if not (params.query.is_meta and is_on(backend)):
            return False
        dropout, grouped = params.dropout, getattr(params, "enable_gqa", False)
        tensors = (params.query, params.key, params.value)
        with torch._C.DisableTorchFunction():
            call = AttentionCall(*tensors, params.attn_mask, dropout, params.is_causal, grouped)
        return params.attn_mask is None and takes(backend, call, card)

    return can_use


_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
_ATTENTION_TAKES = ("attn_mask", "dropout_p", "is_causal")
_FUSED_RMS_NORM_SINCE = (2, 9)

_Library: Any = torch.library.Library
Kernel = Callable[..., Any]


@contextmanager
def registered_kernels(kernels: dict[str, Kernel]) -> Iterator[None]:
    library: Any = _Library("aten", "IMPL")
    try:
        for name, kernel in kernels.items():
            library.impl(name, kernel, "AutogradMeta")
        yield
    finally:
        library._destroy()


def kernels_for(card: KnownCard, release: tuple[int, int]) -> dict[str, Kernel]:
    """Return the kernels by operator name; inference mode passes these operators whole, and uses the same kernels."""

    def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Tensor:
        given = {**dict(zip(_ATTENTION_TAKES, rest, strict=False)), **named}
        call = AttentionCall(
            query,
            key,
            value,
            mask=given.get("attn_mask"),
            dropout=given.get("dropout_p", 0.0),
            is_causal=given.get("is_causal", False),
            grouped=given.get("enable_gqa", False),
        )
        return attend(call, backend_for(call, card, release), given.get("scale"))

    kernels: dict[str, Kernel] = {"scaled_dot_product_attention": attention, "dropout": _dropout, "linear": _linear}
    if release >= _FUSED_RMS_NORM_SINCE:
        kernels["rms_norm"] = _rms_norm
    if release < EINSUM_REORDERS_SINCE:
        kernels["einsum"] = _einsum
    kernels["mish_backward"] = _mish_backward
    kernels["one_hot"] = _one_hot
    kernels["_sample_dirichlet"] = _empty_like
    kernels["ctc_loss.Tensor"] = _ctc_loss
    kernels["softmax.int"] = _softmax_in_fp32(aten.softmax.int, aten._softmax.default)
    kernels["log_softmax.int"] = _softmax_in_fp32(aten.log_softmax.int, aten._log_softmax.default)
    return kernels


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """CUDA keeps a mask of one byte an element; elsewhere it is as wide as the input."""
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
    made = einsum(equation, tensors, path=path)
    if made is not NotImplemented:
        return made
    return aten.einsum.default._op_dk(_COMPOSED, equation, tensors, path=path)


def _rms_norm(
    input: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    """One kernel that keeps a number a row, if the weight has the input's type."""
    if weight is not None and weight.dtype != input.dtype:
        return _as_composed(aten.rms_norm.default, input, normalized_shape, weight, eps)
    return _RmsNorm.apply(input, weight, len(normalized_shape))  # type: ignore[no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    """Takes what the fused kernel takes; there is nothing to compute."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor | None, width: int) -> Tensor:
        rows = (*input.shape[:-width], *(1 for _ in range(width)))
        wide = torch.float32 if input.dtype in (torch.float16, torch.bfloat16) else input.dtype
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


def _mish_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    return torch.empty_like(self)


def _one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """Zeros, and ones put among them; elsewhere all are compared with all classes, which takes their numbers too."""
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


def _empty_like(self: Tensor, generator: torch.Generator | None = None) -> Tensor:
    return torch.empty_like(self)


def _ctc_loss(log_probs: Tensor, targets: Tensor, steps: Tensor, lengths: Tensor, *options: Any) -> Any:
    """With lengths as numbers of the host, which torch takes out of the tensors where nobody watches."""
    return _as_composed(aten.ctc_loss.IntList, log_probs, targets, steps.tolist(), lengths.tolist(), *options)


def _softmax_in_fp32(composed: Any, fused: Any) -> Kernel:
    """From fp16 to fp32 within the kernel, where elsewhere the input is copied first."""

    def kernel(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if self.dtype == torch.float16 and dtype == torch.float32:
            return fused(self, dim, True)
        return _as_composed(composed, self, dim, dtype)

    return kernel


def _as_composed(func: Any, *args: Any) -> Any:
    return func._op_dk(_COMPOSED, *args)
