"""How much memory is likely, and how much is the most, of what operators take that no rule predicts.

Both are estimates from shapes, said beside a prediction and never part of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from memviz.runner.predict.evidence import CONVOLUTIONS, SORTS

_INDEX = 8


def likely_and_most(rule: str, args: Any, out: Any) -> tuple[int | None, int | None]:
    """Bytes of one call of what is not predicted, beside its results: a likely figure, and an upper one."""
    if rule == CONVOLUTIONS:
        return _convolution(args, out)
    if rule == SORTS and isinstance(args[0], Tensor):
        copies = args[0].numel() * (args[0].element_size() + _INDEX)
        return copies, 2 * copies
    return None, None


def _convolution(args: Any, out: Any) -> tuple[int, int]:
    """Tensor cores read channels last: what lies otherwise is copied. At most an image is unfolded besides.

    Unfolded, an image has a window of its channels for each place of the other. With a stride that is the coarser
    one; where its gradient is not asked for, or no place is in two windows, the finer one alone has windows.
    """
    tensors = [tensor for tensor in args[:3] if isinstance(tensor, Tensor) and tensor.dim() > 2]
    large = [tensor for tensor in (*tensors, *_tensors(out)) if tensor.dim() > 2]
    if len(tensors) < 2:
        return 0, 0
    backward = len(tensors) == 3
    weight = tensors[-1]
    likely = 0 if _lies_channels_last(tensors[0]) else sum(map(_bytes, large))
    images = tensors[:2] if backward else [tensors[0], *_tensors(out)]
    if len(images) < 2:
        return likely, likely
    fine, coarse = sorted(images, key=_places, reverse=True)[:2]
    both = _places(fine) == _places(coarse) or (backward and _wants_gradient_of_input(args) and _overlap(args, weight))
    places = _places(coarse)
    channels = max(fine.size(1), coarse.size(1)) if both else fine.size(1)
    window = weight[0, 0].numel()
    unfolded = places * channels * window * weight.element_size() if window > 1 else 0
    return likely, likely + unfolded


def _places(image: Tensor) -> int:
    return image.numel() // max(image.size(1), 1)


def _wants_gradient_of_input(args: Any) -> bool:
    """By the last argument of a backward, a mask; unknown is yes."""
    mask = args[-1]
    return not isinstance(mask, list | tuple) or not mask or bool(mask[0])


def _overlap(args: Any, weight: Tensor) -> bool:
    """Of a backward: patches of a picture that lie side by side are one product, whichever way it is asked."""
    strides, dilations = args[4], args[6]
    reach = [(size - 1) * dilation for size, dilation in zip(weight.shape[2:], _each(dilations, weight), strict=True)]
    return any(far >= stride for far, stride in zip(reach, _each(strides, weight), strict=True))


def _each(given: Any, weight: Tensor) -> list[int]:
    """One number may stand for all dimensions."""
    return list(given) * (weight.dim() - 2) if len(given) == 1 else list(given)


def _lies_channels_last(tensor: Tensor) -> bool:
    return tensor.stride(1) == 1 and not tensor.is_contiguous()


def _tensors(out: Any) -> list[Tensor]:
    items: Iterable[Any] = out if isinstance(out, tuple | list) else (out,)
    return [item for item in items if isinstance(item, Tensor)]


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
