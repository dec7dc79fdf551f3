"""Operators that torch takes apart differently on CUDA than on tensors without data.

They are put in at the place where torch itself decides how an operator is made of others, for tensors without
data only: so they hold however a program reaches them, from Python, from C++ or within backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict import einsums
from memviz.runner.predict.attention import AttentionCall, attend, backend_for
from memviz.runner.predict.cards import KnownCard

aten = torch.ops.aten
_COMPOSED = torch._C.DispatchKey.CompositeImplicitAutograd
_ATTENTION_TAKES = ("attn_mask", "dropout_p", "is_causal")
_FUSED_RMS_NORM_SINCE = (2, 9)

_Library: Any = torch.library.Library
Kernel = Callable[..., Any]


@contextmanager
def registered(kernels: dict[str, Kernel]) -> Iterator[None]:
    library: Any = _Library("aten", "IMPL")
    try:
        for name, kernel in kernels.items():
            library.impl(name, kernel, "AutogradMeta")
        yield
    finally:
        library._destroy()


def kernels_for(card: KnownCard, release: tuple[int, int]) -> dict[str, Kernel]:
    """By operator; the same where inference mode hands us the operator itself."""

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
    if release < einsums.TURNED_SINCE:
        kernels["einsum"] = _einsum
    kernels["mish_backward"] = _mish_backward
    kernels["one_hot"] = _one_hot
    kernels["_sample_dirichlet"] = _drawn_beside
    kernels["ctc_loss.Tensor"] = _ctc_loss
    kernels["softmax.int"] = _widening(aten.softmax.int, aten._softmax.default)
    kernels["log_softmax.int"] = _widening(aten.log_softmax.int, aten._log_softmax.default)
    return kernels


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    """CUDA keeps a mask of one byte an element; elsewhere it is as wide as the input."""
    if train and 0 < p < 1 and input.numel() > 0:
        out: Tensor = aten.native_dropout(input, p, train)[0]
        return out
    composed: Tensor = _as_composed(aten.dropout.default, input, p, train)
    return composed


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Where the bias is not part of the product it is added in place, as torch does when nobody watches."""
    if bias is None or input.dim() <= 2 or input.is_contiguous():
        composed: Tensor = _as_composed(aten.linear.default, input, weight, bias)
        return composed
    return torch.matmul(input, weight.t()).add_(bias)


def _einsum(equation: str, tensors: list[Tensor], *, path: Any = None) -> Any:
    made = einsums.einsum(equation, tensors, path=path)
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


def _drawn_beside(self: Tensor, generator: torch.Generator | None = None) -> Tensor:
    return torch.empty_like(self)


def _ctc_loss(log_probs: Tensor, targets: Tensor, steps: Tensor, lengths: Tensor, *options: Any) -> Any:
    """With lengths as numbers of the host, which torch takes out of the tensors where nobody watches."""
    return _as_composed(aten.ctc_loss.IntList, log_probs, targets, steps.tolist(), lengths.tolist(), *options)


def _widening(composed: Any, fused: Any) -> Kernel:
    """From fp16 to fp32 within the kernel, where elsewhere the input is copied first."""

    def kernel(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
        if self.dtype == torch.float16 and dtype == torch.float32:
            return fused(self, dim, True)
        return _as_composed(composed, self, dim, dtype)

    return kernel


def _as_composed(func: Any, *args: Any) -> Any:
    return func._op_dk(_COMPOSED, *args)
