"""FlashAttention 3 for programs that get it from the `kernels` package or as `flash_attn_interface`.

Its kernels are not run: the operators allocate what FlashAttention's C++ interface (hopper/flash_api.cpp of
github.com/Dao-AILab/flash-attention) allocates for packed sequences on an H100.
"""

import sys
from typing import Any

import torch
from torch import Tensor

_ROWS = 64
"""Rows of a block of queries in the backward of heads up to 128 wide, where attention is causal."""


def _rounded(length: int, multiple: int) -> int:
    return -(-length // multiple) * multiple


def _sums(query: Tensor) -> Tensor:
    return query.new_empty((query.shape[1], query.shape[0]), dtype=torch.float32)


@torch.library.custom_op("flash_attention_3::forward", mutates_args=())
def _forward(query: Tensor, key: Tensor, value: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), _sums(query)


@torch.library.custom_op("flash_attention_3::backward", mutates_args=())
def _backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, sums: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    rows, heads, width = query.shape
    padded = _rounded(rows + (len(starts) - 1) * _ROWS, _ROWS)
    kept = [query.new_empty((heads, padded), dtype=torch.float32) for _ in range(2)]
    kept += [query.new_empty((heads, padded, _rounded(width, 32)), dtype=torch.float32)]
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


@_forward.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), _sums(query)


@_backward.register_fake
def _(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:3], *output, inputs[3])


def _differentiate(ctx: Any, gradient: Tensor, _: Any) -> tuple[Any, ...]:
    query, key, value, output, sums, starts = ctx.saved_tensors
    return (*_backward(gradient.contiguous(), query, key, value, output, sums, starts), None)


_forward.register_autograd(_differentiate, setup_context=_save)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, **_: Any) -> Tensor:
    output: Tensor = _forward(*(tensor.contiguous() for tensor in (q, k, v)), cu_seqlens_q)[0]
    return output


def get_kernel(*_: Any, **__: Any) -> Any:
    return sys.modules[__name__]


flash_attn_interface = sys.modules[__name__]
