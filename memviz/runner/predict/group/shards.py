"""Lists of DTensors, as optimizers have them: what works element by element works shard by shard.

torch finds that out for each tensor of a list by looking through the whole list, which takes seconds where a model
has hundreds of weights. What comes of it is the same operator on the shards, so that is what runs here.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
_BY_ELEMENT = (
    *("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "sqrt", "neg", "pow", "maximum", "minimum"),
    *("clamp_min", "clamp_max", "abs", "sign", "reciprocal", "copy", "zero"),
)
_MODULE = "torch.distributed.tensor"


def _operators() -> frozenset[Any]:
    names = [f"_foreach_{name}{end}" for name in _BY_ELEMENT for end in ("", "_")]
    names += ["_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_"]
    packets = [getattr(aten, name) for name in names if hasattr(aten, name)]
    return frozenset(getattr(packet, overload) for packet in packets for overload in packet.overloads())


_OPERATORS = _operators()


def on_shards(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    """The result, or NotImplemented where torch's own way is the right one."""
    if func not in _OPERATORS or _MODULE not in sys.modules:
        return NotImplemented
    from torch.distributed.tensor import DTensor

    first = args[0]
    if not all(isinstance(tensor, DTensor) for tensor in first):
        return NotImplemented
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
    if not all(map(_lie_alike, [first] * len(lists), lists)):
        return NotImplemented
    with mode:
        args, kwargs = [_local(value) for value in args], {key: _local(value) for key, value in kwargs.items()}
        out = func(*args, **kwargs)
    if not isinstance(out, list | tuple):
        return out
    return [DTensor(shard, like._spec, requires_grad=False) for shard, like in zip(out, first, strict=True)]


def _is_partial(tensor: Any) -> bool:
    return any(placement.is_partial() for placement in tensor._spec.placements)


def _lie_alike(first: Any, others: Any) -> bool:
    """Numbers and tensors of the host may stand in a list of their own."""
    from torch.distributed.tensor import DTensor

    for one, other in zip(first, others, strict=False):
        if not isinstance(other, DTensor):
            if isinstance(other, torch.Tensor) and other.is_meta and other.dim():
                return False
            continue
        alike = other._spec.placements == one._spec.placements and other._spec.mesh is one._spec.mesh
        if not alike or other.shape != one.shape or other.dtype != one.dtype or _is_partial(other):
            return False
    return True


def _local(value: Any) -> Any:
    from torch.distributed.tensor import DTensor, Replicate

    if isinstance(value, list | tuple):
        return [_local(item) if not isinstance(item, DTensor) else item._local_tensor for item in value]
    if isinstance(value, DTensor):
        everywhere = value.redistribute(placements=[Replicate()] * value.device_mesh.ndim)
        return everywhere.to_local()
    return value
