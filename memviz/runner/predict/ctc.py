"""The loss of connectionist temporal classification: its table is as wide as the longest target.

torch takes lengths out of their tensors to say how large it is; here they are taken before it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.cards import KnownCard
from memviz.runner.predict.prediction_errors import data_needed

aten = torch.ops.aten
_INDEX = 8
_LONGEST = "lengths that are not computed are taken to be the greatest"
Values = Callable[[Tensor], Tensor | None]


def ctc_loss(run: Any, values: Values, assumptions: Assumptions) -> Callable[[Any, Any], Any]:
    """What answers a function of this name; `values` gives those of a tensor, or None where nobody computes them."""

    def lengths(of: Any, greatest: int) -> Any:
        if not isinstance(of, Tensor):
            return of
        known = values(of)
        if known is not None:
            return known.tolist()
        if greatest < 0:
            raise data_needed("ctc_loss")
        assumptions.state(_LONGEST)
        return [greatest] * of.numel()

    def answer(args: Any, kwargs: Any) -> Any:
        log_probs, targets, of_input, of_target = args[:4]
        if not any(isinstance(of, Tensor) for of in (of_input, of_target)) or not log_probs.is_meta:
            return NotImplemented
        widest = targets.size(1) if targets.dim() > 1 else -1
        whole = (lengths(of_input, log_probs.size(0)), lengths(of_target, widest))
        return run(log_probs, targets, *whole, *args[4:], **kwargs)

    return answer


def shape(func: Any, args: Any, kwargs: Any) -> tuple[Tensor, Tensor]:
    """The losses, and the table that backward needs."""
    log_probs, of_target = args[0], args[3]
    rows, batch = log_probs.shape[:2]
    losses = torch.empty(batch, dtype=log_probs.dtype, device="meta")
    return losses, losses.new_empty(batch, rows, 2 * max(of_target, default=0) + 1)


def shape_of_gradient(func: Any, args: Any, kwargs: Any) -> Tensor:
    return torch.empty(args[1].shape, dtype=args[1].dtype, device="meta")


def lengths_there(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Lengths and offsets are copied to the card (read)."""
    return (args[0].size(1) * _INDEX,) * 3


def backward(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Iterable[int]:
    """Those, and a second table (read)."""
    table = args[6]
    yield from lengths_there(args[1:], kwargs, out, card)
    yield table.numel() * table.element_size()
