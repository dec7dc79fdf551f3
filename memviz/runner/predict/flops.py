"""Floating-point operations and bytes moved, counted operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

Formula = Callable[..., int]


def formula_of(operator: torch._ops.OpOverload) -> Formula | None:
    """torch's own formula for the operator: matrix products, convolutions and attention have one."""
    from torch.utils.flop_counter import flop_registry

    found: Formula | None = flop_registry.get(operator.overloadpacket)
    return found


@dataclass
class Work:
    flops: int = 0
    """Of matrix products, convolutions and attention, a multiply and an add each; all others are not counted."""
    bytes_moved: int = 0
    """Read and written by operators, each as if it met its tensors in main memory; views move nothing."""

    def add(self, formula: Formula | None, args: Any, kwargs: Any, tensors: Iterable[torch.Tensor], out: Any) -> None:
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=out))
        for each in tensors:
            self.bytes_moved += each.numel() * each.element_size()
