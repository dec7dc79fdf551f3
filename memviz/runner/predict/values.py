"""Tensors in whatever a model takes or gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch


def tensors_among(value: Any, depth: int = 6) -> Iterator[torch.Tensor]:
    """In containers and dataclasses, to a depth that no model's output exceeds."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_among(each, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for each in value:
            yield from tensors_among(each, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for each_field in fields(value):
            yield from tensors_among(getattr(value, each_field.name, None), depth - 1)
