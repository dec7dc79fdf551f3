"""Whatever a model returns, as tensors by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

ALONE = "output"
"""What a single tensor without a name is called."""


def flatten(output: Any) -> dict[str, Tensor]:
    """{'sample': ...}, {'0': ..., 'hidden_states.3': ...}; numbers, None and objects such as caches are left out."""
    return {name or ALONE: tensor for name, tensor in _walk(output, "")}


def _walk(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    for key, inner in _parts(value):
        yield from _walk(inner, f"{name}.{key}" if name else str(key))


def _parts(value: Any) -> list[tuple[Any, Any]]:
    # The outputs of transformers and diffusers are mappings and dataclasses at once; as mappings they leave out None.
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return list(zip(value._fields, value, strict=True))
    if isinstance(value, (tuple, list)):
        return list(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return [(each.name, getattr(value, each.name)) for each in fields(value)]
    return []


def cloned(value: Any, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Any:
    """The same arguments once more, with tensors of their own; floating point ones as `dtype` if it is given.

    Objects are copied too: a cache that a layer appends to must not be appended to twice.
    """
    if isinstance(value, Tensor):
        wanted = dtype if value.is_floating_point() else None
        return value.detach().to(device=device, dtype=wanted, copy=True)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(cloned(each, dtype, device) for each in value))
    if isinstance(value, (tuple, list)):
        return type(value)(cloned(each, dtype, device) for each in value)
    if type(value) is dict:
        return {key: cloned(each, dtype, device) for key, each in value.items()}
    return _copied(value)


def _copied(value: Any) -> Any:
    try:
        return deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError):
        return value
