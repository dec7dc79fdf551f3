"""DTensor: what torch only reckons with, to know shapes and placements, takes no memory and is no part of the run."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import _lru_cache_wrapper, wraps
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from memviz.runner.predict.group.layout import Layout
from memviz.runner.predict.named_devices import META
from memviz.runner.predict.torch_patches import Patches

_SHAPES = "_propagate_tensor_meta_non_cached"
"""torch finds them with tensors that pretend to be of the card."""
_DTENSOR = "torch.distributed.tensor"


def follow_sharded_tensors(patches: Patches, layout: Layout) -> None:
    """Where they are imported: before a group is made nobody needs them."""
    if not hasattr(torch.distributed, "tensor"):
        importlib.import_module("torch.distributed.tensor")
    from torch.distributed.tensor import _sharding_prop as propagation
    from torch.distributed.tensor.placement_types import Shard

    kind: Any = propagation.ShardingPropagator
    run = vars(kind).get(_SHAPES)
    if run is not None:
        patches.replace(kind, _SHAPES, _apart(run, propagation))
    whole: Any = Shard.__dict__.get("local_shard_size_and_offset")
    if isinstance(whole, staticmethod):
        patches.replace(Shard, "local_shard_size_and_offset", staticmethod(_noted(whole.__func__, layout)))
    sharded = importlib.import_module("torch.distributed.fsdp")
    parameters: Any = sys.modules.get(f"{sharded.__name__}._fully_shard._fsdp_param")
    if parameters is not None and hasattr(parameters, "_chunk_with_empty"):
        patches.replace(parameters, "_chunk_with_empty", _noted_chunks(parameters._chunk_with_empty, layout))


def forget_meshes() -> None:
    """Meshes of two ranks may be equal while their groups have other names, and DTensor keeps what it decided."""
    ours = [module for name, module in list(sys.modules.items()) if name.startswith(_DTENSOR)]
    for value in [value for module in ours for value in vars(module).values()]:
        for kept in (value, *(vars(value).values() if isinstance(value, type) else ())):
            if isinstance(kept, _lru_cache_wrapper):
                kept.cache_clear()
    whole: Any = getattr(sys.modules.get(_DTENSOR), "DTensor", None)
    if whole is not None:
        whole._op_dispatcher.sharding_propagator.propagate_op_sharding.cache_clear()
    # Newer releases have one in C++ too.
    getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()


def _noted(run: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    @wraps(run)
    def noted(length: Any, parts: int, *rest: Any, **named: Any) -> Any:
        if type(length) is int:
            layout.note_parts(length, parts)
        return run(length, parts, *rest, **named)

    return noted


def _noted_chunks(run: Callable[..., Any], layout: Layout) -> Callable[..., Any]:
    @wraps(run)
    def noted(tensor: torch.Tensor, num_chunks: int, dim: int) -> Any:
        layout.note_parts(tensor.size(dim), num_chunks)
        return run(tensor, num_chunks, dim)

    return noted


def _apart(run: Callable[..., Any], propagation: Any) -> Callable[..., Any]:
    @wraps(run)
    def reckoned(self: Any, schema: Any) -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            try:
                made = schema.op(*_without_data(schema.args_schema), **_without_data(schema.kwargs_schema))
            except (RuntimeError, NotImplementedError, TypeError):
                return run(self, schema)
            return _described(made, propagation.TensorMeta)

    return reckoned


def _without_data(arguments: Any) -> Any:
    """Specifications of DTensors as tensors of their whole shapes."""

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
