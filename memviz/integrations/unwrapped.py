"""What trainers wrap."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer


def optimizer_itself(optimizer: Any) -> Any:
    """Below the wrappers of accelerate and Lightning, which are not what takes the steps."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
