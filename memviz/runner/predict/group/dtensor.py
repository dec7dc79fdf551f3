"""DTensor: shapes that torch computes for itself take no memory, and lists of DTensors run shard by shard.

For lists, as optimizers have them, torch compares each tensor with the whole list, which takes seconds for a model
of hundreds of weights; running the same operator on the shards gives the same result.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import _lru_cache_wrapper, wraps
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from memviz.runner.predict.compat import Patches, without_functions, without_modes
from memviz.runner.predict.group.ranks import Layout
from memviz.runner.predict.named_devices import META

_META_METHOD = "_propagate_tensor_meta_non_cached"
"""torch finds them with tensors that pretend to be of the card."""
_DTENSOR = "torch.distributed.tensor"


def follow_dtensor(patches: Patches, layout: Layout) -> None:
    """Patch DTensor and FSDP2. They are imported only here, since programs without a process group do not need them."""
    if not hasattr(torch.distributed, "tensor"):
        importlib.import_module("torch.distributed.tensor")
    from torch.distributed.tensor import _sharding_prop as propagation
    from torch.distributed.tensor.placement_types import Shard

    kind: Any = propagation.ShardingPropagator
    run = vars(kind).get(_META_METHOD)
    if run is not None:
        patches.replace(kind, _META_METHOD, _apart(run, propagation))
    whole: Any = Shard.__dict__.get("local_shard_size_and_offset")
    if isinstance(whole, staticmethod):
        shard = whole.__func__

        @wraps(shard)
        def note_parts(length: Any, parts: int, *rest: Any, **named: Any) -> Any:
            if type(length) is int:
                layout.note_parts(length, parts)
            return shard(length, parts, *rest, **named)

        patches.replace(Shard, "local_shard_size_and_offset", staticmethod(note_parts))
    sharded = importlib.import_module("torch.distributed.fsdp")
    parameters: Any = sys.modules.get(f"{sharded.__name__}._fully_shard._fsdp_param")
    if parameters is not None and hasattr(parameters, "_chunk_with_empty"):
        chunk = parameters._chunk_with_empty

        @wraps(chunk)
        def note_chunks(tensor: torch.Tensor, num_chunks: int, dim: int) -> Any:
            layout.note_parts(tensor.size(dim), num_chunks)
            return chunk(tensor, num_chunks, dim)

        patches.replace(parameters, "_chunk_with_empty", note_chunks)


def forget_meshes() -> None:
    """Meshes of two ranks may be equal while their groups have other names, and DTensor keeps what it decided."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(_DTENSOR)]
    for value in [value for module in modules for value in vars(module).values()]:
        for kept in (value, *(vars(value).values() if isinstance(value, type) else ())):
            if isinstance(kept, _lru_cache_wrapper):
                kept.cache_clear()
    whole: Any = getattr(sys.modules.get(_DTENSOR), "DTensor", None)
    if whole is not None:
        whole._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    # Newer releases have one in C++ too.
    getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()


def _apart(run: Callable[..., Any], propagation: Any) -> Callable[..., Any]:
    @wraps(run)
    def reckoned(self: Any, schema: Any) -> Any:
        with without_functions(), without_modes():
            try:
                made = schema.op(*_without_data(schema.args_schema), **_without_data(schema.kwargs_schema))
            except (RuntimeError, NotImplementedError, TypeError):
                return run(self, schema)
            return _described(made, propagation.TensorMeta)

    return reckoned


def _without_data(arguments: Any) -> Any:
    """Replace specifications of DTensors by tensors of their whole shapes."""

    def made(value: Any) -> Any:
        if isinstance(value, torch.device):
            return META
        meta = getattr(value, "tensor_meta", None)
        if meta is None:
            return value
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device=META)

    return tree_map(made, arguments, is_leaf=lambda value: hasattr(value, "tensor_meta"))


def _described(made: Any, kind: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return kind(shape=made.shape, stride=made.stride(), dtype=made.dtype)
    if isinstance(made, tuple | list):
        return type(made)(_described(item, kind) for item in made)
    return None


aten = torch.ops.aten
_BY_ELEMENT = (
    *("add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "sqrt", "neg", "pow", "maximum", "minimum"),
    *("clamp_min", "clamp_max", "abs", "sign", "reciprocal", "copy", "zero"),
)


_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
_ELEMENTWISE_OPERATORS = frozenset(
    getattr(packet, overload)
    for name in (*(f"_foreach_{name}{end}" for name in _BY_ELEMENT for end in ("", "_")), *_FUSED)
    if (packet := getattr(aten, name, None)) is not None
    for overload in packet.overloads()
)


def run_on_shards(mode: TorchDispatchMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an elementwise operator on the shards of DTensors; NotImplemented lets torch run it."""
    if func not in _ELEMENTWISE_OPERATORS or _DTENSOR not in sys.modules:
        return NotImplemented
    from torch.distributed.tensor import DTensor

    first = args[0]
    if not all(isinstance(tensor, DTensor) for tensor in first):
        return NotImplemented
    lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
    if not all(map(_same_placements, [first] * len(lists), lists)):
        return NotImplemented
    with mode:
        args, kwargs = [_local(value) for value in args], {key: _local(value) for key, value in kwargs.items()}
        out = func(*args, **kwargs)
    if not isinstance(out, list | tuple):
        return out
    return [DTensor(shard, like._spec, requires_grad=False) for shard, like in zip(out, first, strict=True)]


def _same_placements(first: Any, others: Any) -> bool:
    """Return whether the DTensors of two lists are placed alike; numbers and host tensors do not count."""
    from torch.distributed.tensor import DTensor

    for one, other in zip(first, others, strict=False):
        if not isinstance(other, DTensor):
            if isinstance(other, torch.Tensor) and other.is_meta and other.dim():
                return False
            continue
        alike = other._spec.placements == one._spec.placements and other._spec.mesh is one._spec.mesh
        if (
            not alike
            or other.shape != one.shape
            or other.dtype != one.dtype
            or any(placement.is_partial() for placement in other._spec.placements)
        ):
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
