"""Tensors in the arguments and results of operators: in lists, tuples and dicts, however nested."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

PLAIN_TENSORS = (Tensor, torch.nn.Parameter)
"""Tensor types that are no custom subclass."""


def tensors_of(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, dict):
        yield from tensors_of(tuple(value.values()))


def leaves_of(value: Any) -> Iterator[Any]:
    """Yield the values in lists and tuples, however nested."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from leaves_of(item)
    else:
        yield value


def with_each(change: Callable[[Tensor], Any], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([with_each(change, item) for item in value])
    if isinstance(value, dict):
        return {key: with_each(change, item) for key, item in value.items()}
    return value


def written_by(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the arguments that an operator writes to."""
    for at, name in _written_arguments(func):
        yield from tensors_of(kwargs[name] if name in kwargs else args[at] if at < len(args) else ())


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return places and names, cached because torch makes its schema anew at each access."""
    arguments = enumerate(func._schema.arguments)
    return tuple((at, one.name) for at, one in arguments if one.alias_info is not None and one.alias_info.is_write)


def fills_its_storage(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def is_on_device(value: Any) -> bool:
    """Return whether an argument is a plain tensor on the device."""
    return type(value) in PLAIN_TENSORS and value.is_meta


@cache
def draws(func: Any) -> bool:
    """Return whether an operator draws at random, cached because torch searches its tags each time."""
    return torch.Tag.nondeterministic_seeded in func.tags


def tensors_among(value: Any, depth: int = 6) -> Iterator[Tensor]:
    """Yield the tensors in containers and dataclasses, to a depth that no model's output exceeds."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_among(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for item in value:
            yield from tensors_among(item, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for attribute in fields(value):
            yield from tensors_among(getattr(value, attribute.name, None), depth - 1)
