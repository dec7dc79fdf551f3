"""How much an output can show at all.

With PyTorch's default initialization a stack of plain layers shrinks its input until its output is almost only the
last bias. Two such outputs agree to four digits whatever happened before, and their small difference proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from memviz.runner.output_check.difference_words import scientific, share_text

HIDDEN_DIGIT = 0.1
"""Below this share an error in what varies shows ten times smaller in the whole: a decimal digit is hidden."""


@dataclass(frozen=True)
class Signal:
    input_std: float | None
    """Of the largest floating point input; None if there is none."""
    output_std: float
    varying: float
    """Norm of what differs between the rows of the output, over its whole norm; 1 where there is one row."""

    @property
    def weak(self) -> bool:
        return self.varying < HIDDEN_DIGIT or self.shrunk

    @property
    def shrunk(self) -> bool:
        return self.input_std is not None and self.output_std < HIDDEN_DIGIT**2 * self.input_std

    @property
    def words(self) -> str:
        """Why equal outputs prove little; nothing where they do."""
        if self.varying < HIDDEN_DIGIT:
            return (
                f"Only {share_text(self.varying)} of the output varies from row to row, the rest is the same in all "
                f"of them, as a bias is; equal outputs prove little."
            )
        if self.shrunk:
            return (
                f"The output's standard deviation is {scientific(self.output_std)}, its input's "
                f"{scientific(self.input_std)}; what gets so small proves little."
            )
        return ""


def signal_of(inputs: Iterable[Tensor], outputs: Iterable[Tensor]) -> Signal | None:
    """Of the largest output. None where it is not floating point."""
    output = _largest(outputs)
    if output is None:
        return None
    given = _largest(inputs)
    rows = output.to(torch.float64).reshape(-1, output.shape[-1] if output.dim() else 1)
    whole, apart = float(rows.norm()), float((rows - rows.mean(dim=0)).norm())
    share = apart / whole if len(rows) > 1 and whole else 1.0
    return Signal(_std(given) if given is not None else None, _std(output), share)


def _largest(tensors: Iterable[Tensor]) -> Tensor | None:
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    return max(floating, key=Tensor.numel, default=None)


def _std(values: Tensor) -> float:
    deviation = float(values.to(torch.float64).std(correction=0))
    return deviation if math.isfinite(deviation) else 0.0
