"""Convolutions: which way their results lie in memory, and what they copy first to lie that way.

cuDNN works channels last where the input or the weight does, and the result lies so too
(`cudnn_conv_suggest_memory_format` in torch's source). On tensors without data torch gives a contiguous result, as it
cannot know the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def laid_out(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of a convolution, where it isn't contiguous; a shape as in `shapes`."""
    tensor, weight = args[0], args[1]
    if not tensor.is_meta or tensor.is_contiguous() and weight.is_contiguous():
        return NotImplemented
    layout = _layout(tensor, weight)
    if layout is torch.contiguous_format:
        return NotImplemented
    return torch.empty_like(func(*args, **kwargs), memory_format=layout)


def copies(args: Any, kwargs: Any, out: Any, card: Any) -> Iterable[int]:
    """What lies another way than the convolution works is copied first (read); of a backward, the gradient too."""
    tensors = [arg for arg in args[:3] if isinstance(arg, Tensor) and arg.dim() > 2]
    layout = _layout(*tensors[-2:])
    return [_bytes(tensor) for tensor in tensors if not tensor.is_contiguous(memory_format=layout)]


def _layout(tensor: Tensor, weight: Tensor) -> torch.memory_format:
    """Of one dimension, what is permuted is made contiguous; float64 has no kernels for channels last."""
    from torch._prims_common import suggest_memory_format

    if tensor.dim() not in (4, 5) or torch.float64 in (tensor.dtype, weight.dtype):
        return torch.contiguous_format
    layout: torch.memory_format = suggest_memory_format(tensor)
    if layout is not torch.contiguous_format:
        return layout
    layout = suggest_memory_format(weight)
    return layout


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
