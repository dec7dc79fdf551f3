"""Shapes of the commonest operators, found without torch's own way.

On tensors without data torch runs most operators in Python, at a third of a millisecond and more each: a training
step would take half a minute. Here are those that make up nine tenths of a step, for the plain case; for any other
they answer NotImplemented, and torch's own rules decide. A test holds them to torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.convolutions import laid_out

aten = torch.ops.aten
Shape = Callable[[Any, Any, Any], Any]
"""Operator, arguments, keyword arguments -> the result, or NotImplemented."""

_META = torch.device("meta")
_HALVES = (torch.float16, torch.bfloat16)


def _new(size: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(size, dtype=dtype, device=_META)


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN_TYPES and value.is_meta and value.is_contiguous() and value.is_floating_point()


_PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def _one_to_one(func: Any, args: Any, kwargs: Any) -> Any:
    """Every tensor of one shape and type, and so the result; numbers change nothing."""
    first = args[0]
    if not _is_plain(first):
        return NotImplemented
    for arg in args[1:]:
        if isinstance(arg, Tensor):
            if not _is_plain(arg) or arg.shape != first.shape or arg.dtype != first.dtype:
                return NotImplemented
        elif isinstance(arg, complex):
            return NotImplemented
    return _new(first.shape, first.dtype)


def _broadcast(func: Any, args: Any, kwargs: Any) -> Any:
    """Two tensors, one of which has the result's shape."""
    one, other = args[0], args[1]
    if len(args) > 2 or not isinstance(other, Tensor):
        return NotImplemented
    if other.dim() == 0 and _is_number(other) and _is_plain(one) and one.dim():
        return _new(one.shape, one.dtype)
    if one.dim() == 0 and _is_number(one) and _is_plain(other) and other.dim():
        return _new(other.shape, other.dtype)
    if not (_is_plain(one) and _is_plain(other)) or one.dtype != other.dtype or not one.dim() or not other.dim():
        return NotImplemented
    if one.shape == other.shape or _stretches_to(other, one):
        return _new(one.shape, one.dtype)
    return _new(other.shape, other.dtype) if _stretches_to(one, other) else NotImplemented


def _is_number(tensor: Tensor) -> bool:
    return not tensor.is_complex()


def _stretches_to(small: Tensor, large: Tensor) -> bool:
    missing = large.dim() - small.dim()
    return missing >= 0 and all(a in (1, b) for a, b in zip(small.shape, large.shape[missing:], strict=True))


def _reduced(func: Any, args: Any, kwargs: Any) -> Any:
    """`sum` and `mean` over named dimensions."""
    tensor, dims = args[0], args[1] if len(args) > 1 else None
    if not _is_plain(tensor) or not dims or set(kwargs) - {"dtype"}:
        return NotImplemented
    keep = bool(args[2]) if len(args) > 2 else False
    gone = {dim % tensor.dim() for dim in dims} if tensor.dim() else set()
    if not gone:
        return NotImplemented
    kept = [(1 if at in gone else size) for at, size in enumerate(tensor.shape) if keep or at not in gone]
    return _new(kept, kwargs.get("dtype") or tensor.dtype)


def _addmm(func: Any, args: Any, kwargs: Any) -> Any:
    bias, left, right = args[:3]
    if not (bias.is_meta and left.is_meta and right.is_meta) or left.dim() != 2 or right.dim() != 2:
        return NotImplemented
    size = (left.size(0), right.size(1))
    fits = left.size(1) == right.size(0) and left.dtype == right.dtype == bias.dtype
    if not fits or bias.dim() > 2 or not _stretches(bias.shape, size):
        return NotImplemented
    return _new(size, left.dtype)


def _stretches(small: Any, large: Any) -> bool:
    return all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))


def _layer_norm(func: Any, args: Any, kwargs: Any) -> Any:
    tensor, normalized = args[0], args[1]
    width = len(normalized)
    if not _is_plain(tensor) or list(tensor.shape[-width:]) != list(normalized):
        return NotImplemented
    rows = (*tensor.shape[:-width], *([1] * width))
    wide = torch.float32 if tensor.dtype in _HALVES else tensor.dtype
    return _new(tensor.shape, tensor.dtype), _new(rows, wide), _new(rows, wide)


def _layer_norm_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """Gradients of the input, the weight and the bias, as far as they are wanted."""
    gradient, tensor = args[0], args[1]
    weight, bias, wanted = args[5], args[6], args[7]
    if not (_is_plain(gradient) and _is_plain(tensor)):
        return NotImplemented
    return tuple(
        _new(like.shape, like.dtype) if want and like is not None else None
        for want, like in zip(wanted, (tensor, weight, bias), strict=True)
    )


def _grouped_product(func: Any, args: Any, kwargs: Any) -> Any:
    """Of matrices lying one after the other, a group each; rows of the result begin at multiples of 16 bytes.

    torch's own rule asks for bfloat16, which its kernels do not.
    """
    left, right = args[0], args[1]
    offsets = args[2] if len(args) > 2 else kwargs.get("offs")
    if left.dtype != right.dtype or left.dtype == torch.bfloat16 or not left.is_meta:
        return NotImplemented
    groups = [] if left.dim() + right.dim() == 5 else [offsets.size(0) if left.dim() == 2 else left.size(0)]
    rows, columns = left.size(-2), right.size(-1)
    wide = 16 // left.element_size()
    row = -(-columns // wide) * wide
    strides = [rows * row, row, 1][-len(groups) - 2 :]
    return torch.empty_strided([*groups, rows, columns], strides, dtype=left.dtype, device=_META)


def _sequences_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """Of the loss of sequences; torch has no rule for it."""
    like = args[1]
    return _new(like.shape, like.dtype) if like.is_meta else NotImplemented


def _one_beside_each(func: Any, args: Any, kwargs: Any) -> Any:
    """A new tensor beside each of a list."""
    if not all(map(_is_plain, args[0])):
        return NotImplemented
    return [_new(tensor.shape, tensor.dtype) for tensor in args[0]]


def _in_place(func: Any, args: Any, kwargs: Any) -> Any:
    """Lists of tensors that are changed where they are; shapes stay."""
    lists = [arg for arg in args if isinstance(arg, list)]
    if len({tuple(tensor.shape for tensor in tensors) for tensors in lists if _all_on_device(tensors)}) != 1:
        return NotImplemented
    return None if _all_on_device(args[0]) else NotImplemented


def _all_on_device(tensors: list[Any]) -> bool:
    return all(isinstance(tensor, Tensor) and tensor.is_meta for tensor in tensors)


def _written_by_fused(func: Any, args: Any, kwargs: Any) -> Any:
    """Optimizers in one kernel, of which torch has no rule: they write where weights and states are."""
    return None if _all_on_device(args[0]) else NotImplemented


def _filled(func: Any, args: Any, kwargs: Any) -> Any:
    """A card takes the number of a scalar tensor of the host; torch's rule for shapes wants it on the device."""
    value = args[2]
    if not args[0].is_meta or value.is_meta or value.dim():
        return NotImplemented
    return func(*args[:2], _new((), value.dtype))


_ONE_TO_ONE = (
    aten.gelu.default,
    aten.gelu_backward.default,
    aten.neg.default,
    aten.rsqrt.default,
    aten.sqrt.default,
    aten.exp.default,
    aten.tanh.default,
    aten.sigmoid.default,
    aten.sin.default,
    aten.cos.default,
    aten.relu.default,
    aten.pow.Tensor_Scalar,
    aten.mul.Scalar,
    aten.div.Scalar,
    aten.add.Scalar,
    aten.threshold_backward.default,
)
_FOREACH_IN_PLACE = (
    aten._foreach_add_.List,
    aten._foreach_add_.Scalar,
    aten._foreach_mul_.Scalar,
    aten._foreach_lerp_.Scalar,
    aten._foreach_addcmul_.Scalar,
    aten._foreach_addcdiv_.ScalarList,
    aten._foreach_div_.ScalarList,
)
_FUSED = [getattr(aten, name) for name in ("_fused_sgd_", "_fused_adagrad_") if hasattr(aten, name)]
SHAPES: dict[Any, Shape] = {
    **dict.fromkeys(_ONE_TO_ONE, _one_to_one),
    **{getattr(aten, name).Tensor: _broadcast for name in ("add", "sub", "mul", "div")},
    aten.sum.dim_IntList: _reduced,
    aten.mean.dim: _reduced,
    aten.addmm.default: _addmm,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten._foreach_sqrt.default: _one_beside_each,
    aten._ctc_loss_backward.default: _sequences_backward,
    aten._ctc_loss_backward.Tensor: _sequences_backward,
    **({aten._grouped_mm.default: _grouped_product} if hasattr(aten, "_grouped_mm") else {}),
    **dict.fromkeys(_FOREACH_IN_PLACE, _in_place),
    **{getattr(packet, overload): _written_by_fused for packet in _FUSED for overload in packet.overloads()},
    aten.convolution.default: laid_out,
    **dict.fromkeys((aten.masked_fill.Tensor, aten.masked_fill_.Tensor), _filled),
}
