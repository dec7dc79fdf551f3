"""Everything that was found out about one change, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from memviz.runner.output_check.difference import Difference
from memviz.runner.output_check.gradients import Gradients, LossCurve
from memviz.runner.output_check.layers import LayerDifference, Rounding
from memviz.runner.output_check.plain import from_plain, to_plain
from memviz.runner.output_check.signal import Signal
from memviz.runner.output_check.verdict import Verdict, judge

Claim = Literal["bitwise", "rounding", "lossy"]


@dataclass(frozen=True)
class OutputDifference:
    name: str
    difference: Difference
    noise: Difference
    """The same run twice: below this nothing can be told apart."""
    rounding: Rounding


@dataclass(frozen=True)
class LaterGap:
    """Between both models once more, after the same weights have moved in both."""

    kind: Literal["output", "gradient"]
    name: str
    gap: float
    """Relative L2; of a gradient, relative to all of them as one vector."""


@dataclass(frozen=True)
class Numerics:
    claim: Claim
    outputs: tuple[OutputDifference, ...]
    layers: tuple[LayerDifference, ...]
    """Each block, then its parts, in the model's order. Empty where bitwise equal outputs left nothing to find."""
    gradients: Gradients | None
    losses: LossCurve | None
    signal: Signal | None
    stored: str | None
    """For a lossy change, the type that weights are stored in, as in 'float8_e4m3fn'."""
    stored_loss: float | None
    """By how much, relative, that changes the weights of the whole model."""
    notes: tuple[str, ...]
    beside_stored: Numerics | None = None
    """For a lossy change, the same against the reference with its weights rounded as they are stored: what storing
    explains is taken off there, and what is left must be rounding. None where no type of storage was found."""
    later: tuple[LaterGap, ...] = ()
    """Empty where the changed model has not the same weights, by name and type."""

    @cached_property
    def verdict(self) -> Verdict:
        return judge(self)

    @property
    def worst(self) -> OutputDifference | None:
        """The output that differs most: the one row where there is room for one."""
        return max(self.outputs, key=lambda each: each.difference.relative_l2, default=None)

    def as_json(self) -> dict[str, Any]:
        """Plain values with every digit; infinite floats as the text 'inf'."""
        return {"verdict": to_plain(self.verdict), **to_plain(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Numerics:
        """What `as_json` wrote. The verdict is drawn again from the figures."""
        return from_plain(cls, value)
