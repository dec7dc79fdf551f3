"""Results that are as long as values say: how many differ, how large the largest is.

Nobody knows these where values are not computed, so a program is stopped there, unless it says itself how long the
result is at least, or its user does with --assume.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from memviz.errors import UsageError
from memviz.runner.predict.assumptions import NOT_STATED, Assumptions

aten = torch.ops.aten
BELOW = "values that are not computed are taken to be below minlength where they are counted"


def of_unknown_length(func: Any, args: Any, kwargs: Any, assumptions: Assumptions) -> Any:
    """Shapes of what the operator gives, as tensors without data; NotImplemented where nobody says how long."""
    make = _SHAPES.get(func)
    if make is None:
        return NotImplemented
    named = {**dict(zip((one.name for one in func._schema.arguments), args, strict=False)), **kwargs}
    given = assumptions.given()
    if given is NOT_STATED:
        least = named.get("minlength", 0)
        if not least:
            return NotImplemented
        assumptions.state(BELOW)
        given = least
    if type(given) is not int or given < 0:
        raise UsageError(f"--assume takes a whole number here, of what the result has; not {given!r}.")
    return make(given, **named)


def has_length(func: Any) -> bool:
    """Whether a stated length would make its result."""
    return func in _SHAPES


def _bins(count: int, self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    kind = torch.long if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return _empty(max(count, minlength), kind=kind)


def _different(
    count: int, self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if dim is None:
        found, whence = _empty(count, kind=self.dtype), self.shape
    else:
        shape = list(self.shape)
        shape[dim] = count
        found, whence = _empty(*shape, kind=self.dtype), torch.Size([self.size(dim)])
    return found, _empty(*whence if return_inverse else (0,)), _empty(count if return_counts else 0)


def _repeated(count: int, repeats: Tensor, output_size: int | None = None) -> Tensor:
    return _empty(count)


def _empty(*shape: int, kind: torch.dtype = torch.long) -> Tensor:
    return torch.empty(shape, dtype=kind, device="meta")


_SHAPES: dict[Any, Callable[..., Any]] = {
    aten.bincount.default: _bins,
    aten.repeat_interleave.Tensor: _repeated,
    **dict.fromkeys((aten._unique2.default, aten.unique_consecutive.default), _different),
    **dict.fromkeys((aten.unique_dim.default, aten.unique_dim_consecutive.default), _different),
}
