"""Gradients, parameter by parameter, and the losses of a few steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from memviz.errors import UsageError
from memviz.runner.output_check.difference import Difference, difference
from memviz.runner.output_check.layers import Rounding, in_float64

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class GradientDifference:
    name: str
    difference: Difference
    noise: float
    """Relative L2 between two runs of the reference."""
    rounding: Rounding


@dataclass(frozen=True)
class Gradients:
    parameters: tuple[GradientDifference, ...]
    """Of the names that both models have."""
    only_reference: tuple[str, ...]
    """Parameters that have a gradient in the reference only: none in the changed model, or under another name."""
    only_ours: tuple[str, ...]
    relative_l2: float
    """Of all gradients as one vector."""

    @property
    def size(self) -> float:
        """The norm of the reference's, as one vector."""
        return math.hypot(*(parameter.difference.reference_l2 for parameter in self.parameters))


def compare_gradients(
    reference: Named, ours: Named, again: Named, *, bounds: Rounding, exact: tuple[Named, Named] | None = None
) -> Gradients:
    """`ours` may come from anywhere, a flat buffer for instance, in any shape of as many elements.

    `bounds` is what rounding may do to the gradients of this model; `exact` both models' gradients in float64.
    """
    rows = tuple(
        _compared(name, (gradient, _shaped(name, ours[name], gradient), again[name]), bounds, exact)
        for name, gradient in reference.items()
        if name in ours
    )
    apart = math.sqrt(math.fsum(row.difference.l2**2 for row in rows))
    whole = math.sqrt(math.fsum(row.difference.reference_l2**2 for row in rows))
    return Gradients(
        parameters=rows,
        only_reference=tuple(name for name in reference if name not in ours),
        only_ours=tuple(name for name in ours if name not in reference),
        relative_l2=apart / whole if whole else math.inf if apart else 0.0,
    )


def _shaped(name: str, gradient: Tensor, like: Tensor) -> Tensor:
    if gradient.numel() != like.numel():
        raise UsageError(
            f"The gradient of {name} has {gradient.numel()} elements, the reference's {like.numel()}; "
            "only gradients of the same parameter can be compared."
        )
    return gradient.reshape(like.shape)


def _compared(
    name: str, pair: tuple[Tensor, Tensor, Tensor], bounds: Rounding, exact: tuple[Named, Named] | None
) -> GradientDifference:
    reference, ours, again = pair
    apart = difference(reference, ours)
    noise = 0.0 if torch.equal(reference, again) else difference(reference, again).relative_l2
    if exact is not None and name in exact[0] and name in exact[1]:
        bounds = in_float64(bounds, reference, exact[0][name], exact[1][name])
    return GradientDifference(name, apart, noise, bounds)


@dataclass(frozen=True)
class LossCurve:
    """The loss before each step, as float64 holds it."""

    reference: tuple[float, ...]
    again: tuple[float, ...]
    """The reference once more: the noise."""
    ours: tuple[float, ...]
    updates: float | None = None
    """Relative L2 between what both move the weights by in all steps; None where nothing moves."""
    trains: str = ""
    """Other weights than the model's own that both train, as in 'adapters'."""

    @property
    def bitwise(self) -> bool:
        """Every loss, and what the steps made of the weights."""
        same = all(_same(one, other) for one, other in zip(self.reference, self.ours, strict=True))
        return same and not self.updates

    @property
    def finite(self) -> bool:
        """Ours is finite wherever the reference is."""
        return all(math.isfinite(our) or not math.isfinite(one) for one, our in self._pairs(self.ours))

    @property
    def worst(self) -> float:
        """Largest relative difference."""
        return max(map(_apart, self.reference, self.ours), default=0.0)

    @property
    def noise(self) -> float:
        return max(map(_apart, self.reference, self.again), default=0.0)

    def _pairs(self, other: tuple[float, ...]) -> zip[tuple[float, float]]:
        return zip(self.reference, other, strict=True)


def update_difference(reference: Named, ours: Named) -> float | None:
    """Between weights' changes of the same names."""
    names = [name for name in reference if name in ours and ours[name].shape == reference[name].shape]
    apart = math.hypot(*(float((ours[name] - reference[name]).double().norm()) for name in names))
    whole = math.hypot(*(float(reference[name].double().norm()) for name in names))
    return apart / whole if whole else None


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _apart(one: float, other: float) -> float:
    if _same(one, other):
        return 0.0
    return abs(other - one) / abs(one) if one and math.isfinite(one) and math.isfinite(other) else math.inf
