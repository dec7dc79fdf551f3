"""Differences of two tensors in every usual measure, and bounds of what rounding alone explains.

Differences are computed in float64, piece by piece, so that tensors of any size need little memory. No bound is tuned
to a result: each follows from the unit roundoff of the types that a computation passes through.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from memviz.errors import UsageError

MARGIN = 8.0

_EXACT = (0.0, 0.0)
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
_TF32 = 2.0**-11
"""Ten bits are stored, as in float16."""


def tolerances(*dtypes: torch.dtype) -> tuple[float, float]:
    """rtol and atol of torch.testing.assert_close; of two types the larger, types it holds to equality have none."""
    known = [_TOLERANCES.get(dtype, _EXACT) for dtype in dtypes]
    return max(rtol for rtol, _ in known), max(atol for _, atol in known)


def unit_roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of storing one number that is not subnormal."""
    return float(torch.finfo(dtype).eps) / 2


def one_rounding(dtype: torch.dtype) -> float:
    """The root mean square of that error, at most."""
    return unit_roundoff(dtype) / math.sqrt(3)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def coarsest(dtypes: set[torch.dtype]) -> torch.dtype:
    """Return the floating point dtype that rounds most; float32 if there is none."""
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=unit_roundoff, default=torch.float32)


def coarser(dtype: torch.dtype, other: torch.dtype) -> bool:
    return not dtype.is_floating_point or unit_roundoff(dtype) > unit_roundoff(other)


def expected(dtype: torch.dtype, work: tuple[int, int], *, on_cuda: bool = False) -> float:
    """The formula above. `work` is (reductions, longest). On CUDA, float32 products may run as TF32."""
    reductions, longest = work
    accumulated = math.sqrt(longest) * one_rounding(accumulator(dtype))
    stored = _TF32 / math.sqrt(3) if on_cuda and dtype == torch.float32 else one_rounding(dtype)
    return math.sqrt(max(reductions, 1)) * (stored + accumulated)


def work_of(module: nn.Module, inputs: list[torch.Tensor]) -> tuple[int, int]:
    """(reductions, longest): how many weights of two or more dimensions, and the longest sum that can occur.

    A sum runs over a weight's inputs, or over a dimension of the module's inputs: attention sums over tokens.
    """
    weights = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    fan_in = [weight.numel() // max(weight.shape[0], 1) for weight in weights]
    sides = [side for tensor in inputs for side in tensor.shape]
    return max(len(weights), 1), max([1, *fan_in, *sides])


def loss_of_weights(module: nn.Module, dtype: torch.dtype) -> float:
    """Return the relative RMS change of this module's weights when they are stored as `dtype`.

    Taken from the reference's own weights: small ones are subnormal in float8 and lose more than `unit_roundoff`.
    """
    change, whole = 0.0, 0.0
    for parameter in module.parameters():
        if parameter.is_floating_point():
            exact = parameter.detach().to(torch.float64)
            change += float((exact.to(dtype).to(torch.float64) - exact).square().sum())
            whole += float(exact.square().sum())
    return math.sqrt(change / whole) if whole else 0.0


PIECE = 1 << 18
"""Elements at a time: a handful of float64 arrays of 2 MiB, which caches still hold."""
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.int8,
    torch.float8_e5m2: torch.int8,
}
EDGES = (0, 1, 2, 4, 8, 16, 64, 256, 1024)


# Distance in units in the last place: how many numbers of the type lie between two of them.
@dataclass(frozen=True)
class Ulps:
    max: int
    histogram: tuple[tuple[int | None, int], ...]
    """(at most so many, elements), each apart from the ones before; None: more. Empty bins are left out."""


def ulps_between(one: Tensor, other: Tensor) -> Tensor | None:
    """Per element, int64; None for a type that is not counted so. Both zeros are the same number; no NaN, please."""
    if one.dtype != other.dtype or one.dtype not in _BITS:
        return None
    first, second = _ordered(one), _ordered(other)
    apart = (first - second).abs()
    # The largest float64 and its negative lie further apart than an int64 counts.
    across = (first < 0) != (second < 0)
    beyond = across & (first.abs() + second.abs() < 0)
    return torch.where(beyond, torch.iinfo(torch.int64).max, apart)


def _ordered(values: Tensor) -> Tensor:
    """Bits of a floating point number are sign and magnitude; as one integer they have the numbers' order."""
    kind = _BITS[values.dtype]
    bits = values.contiguous().view(kind).to(torch.int64)
    return torch.where(bits < 0, -(bits - torch.iinfo(kind).min), bits)


class UlpCounts:
    """Ulps gathered over the pieces of a large tensor."""

    def __init__(self) -> None:
        self._max = 0
        self._counts = [0] * (len(EDGES) + 1)

    def add(self, distances: Tensor) -> None:
        if not distances.numel():
            return
        self._max = max(self._max, int(distances.max()))
        edges = torch.tensor(EDGES, device=distances.device)
        bins = torch.bucketize(distances.reshape(-1), edges)
        for index, count in enumerate(torch.bincount(bins, minlength=len(self._counts)).tolist()):
            self._counts[index] += count

    def result(self) -> Ulps:
        bounds: Iterable[int | None] = (*EDGES, None)
        return Ulps(self._max, tuple((edge, n) for edge, n in zip(bounds, self._counts, strict=True) if n))


@dataclass(frozen=True)
class Difference:
    """Elements that are not finite on either side count as `nonfinite` and are in no other figure."""

    elements: int
    dtypes: tuple[str, str]
    """The reference's and ours, as in 'bfloat16'."""
    bitwise: bool
    """The same type and the same bits everywhere."""
    unequal: int
    """Elements whose bits are not the same; where the types differ, whose values are not."""
    absmax: float
    absmean: float
    l2: float
    """Norm of the difference."""
    relative_l2: float
    """That over the reference's norm; infinite where only the reference is zero."""
    sqnr_db: float
    """20 log10 of its inverse; infinite for equal values."""
    cosine: float
    worst_relative: float
    """Largest |difference| / max(|reference|, atol), atol being that of torch.testing for the type."""
    ulps: Ulps | None
    """None where the types differ or are not floating point."""
    outside: float
    """Share of the elements that torch.testing.assert_close would reject at its defaults."""
    reference_nonfinite: int
    ours_nonfinite: int
    nonfinite_differ: int
    """Positions where one is finite and the other not, or where they are not the same infinity or both NaN."""
    reference_std: float
    reference_absmax: float
    reference_l2: float
    relative_absmax: float = field(init=False)
    """absmax over the reference's largest: the scale that a bare absmax lacks. Infinite where only that is zero."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "relative_absmax", _ratio(self.absmax, self.reference_absmax))


def difference(reference: Tensor, ours: Tensor) -> Difference:
    _check(reference, ours)
    first, second = _real(reference.detach()), _real(ours.detach())
    sums = _DifferenceSums(scale=_scale(first, second), tolerance=tolerances(first.dtype, second.dtype))
    for one, other in _pieces(first, second):
        sums.add(one, other)
    return sums.result(first, second)


def differences(reference: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> dict[str, Difference]:
    """Per name. Both sides must have the same names."""
    if reference.keys() != ours.keys():
        raise UsageError(
            f"The reference returns {_listed(reference)}, the changed model {_listed(ours)}; "
            "only outputs of the same name can be compared."
        )
    return {name: difference(tensor, ours[name]) for name, tensor in reference.items()}


def _listed(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(tensors) or "no tensor"


def _check(reference: Tensor, ours: Tensor) -> None:
    if reference.shape != ours.shape:
        raise UsageError(
            f"The reference has shape {tuple(reference.shape)}, ours {tuple(ours.shape)}; only tensors of one shape "
            "can be compared."
        )
    if reference.is_meta or ours.is_meta:
        raise UsageError("A tensor on the meta device has no values to compare; run on a real device.")


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _pieces(reference: Tensor, ours: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """On the reference's device, or on the CPU where that device has no float64."""
    place = torch.device("cpu") if reference.device.type == "mps" else reference.device
    first, second = reference.reshape(-1), ours.reshape(-1)
    for start in range(0, first.numel(), PIECE):
        yield first[start : start + PIECE].to(place), second[start : start + PIECE].to(place)


def _scale(reference: Tensor, ours: Tensor) -> float:
    """Return the divisor of float64 values before squaring; squares of narrower types fit without one."""
    if torch.float64 not in (reference.dtype, ours.dtype):
        return 1.0
    largest = 0.0
    for piece in _pieces(reference, ours):
        for values in piece:
            exact = values.to(torch.float64)
            largest = max(largest, float(torch.where(exact.isfinite(), exact.abs(), 0).max()))
    return 2.0 ** min(math.frexp(largest)[1], 1023) if largest else 1.0


def _bits(values: Tensor) -> Tensor:
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return values.contiguous().view(kind)


@dataclass
class _DifferenceSums:
    """Sums over pieces of two tensors. Norms and products are kept in units of `scale`."""

    scale: float
    tolerance: tuple[float, float]
    unequal: int = 0
    finite: int = 0
    outside: int = 0
    absmax: float = 0.0
    abssum: float = 0.0
    worst: float = 0.0
    squares: float = 0.0
    reference_squares: float = 0.0
    ours_squares: float = 0.0
    product: float = 0.0
    reference_absmax: float = 0.0
    nonfinite: list[int] = field(default_factory=lambda: [0, 0, 0])
    spread: _Spread = field(default_factory=lambda: _Spread())
    ulps: UlpCounts = field(default_factory=UlpCounts)

    def add(self, reference: Tensor, ours: Tensor) -> None:
        exact, mine = reference.to(torch.float64), ours.to(torch.float64)
        same_type = reference.dtype == ours.dtype
        unequal = (_bits(reference) != _bits(ours)) if same_type else exact != mine
        self.unequal += int(unequal.sum())
        finite = self._count_nonfinite(exact, mine)
        if not bool(finite.all()):
            reference, ours, exact, mine = reference[finite], ours[finite], exact[finite], mine[finite]
            unequal = unequal[finite]
        if not exact.numel():
            return
        apart = (mine - exact).abs()
        if same_type and not reference.dtype.is_floating_point:
            # Whole numbers above 2**53 can differ and still be the same in float64.
            apart = torch.where(unequal, apart.clamp(min=1), apart)
        self._add_elements(exact, apart)
        self._add_norms(exact, mine, apart)
        distances = ulps_between(reference, ours)
        if distances is not None:
            self.ulps.add(distances)

    def _count_nonfinite(self, exact: Tensor, mine: Tensor) -> Tensor:
        one, other = exact.isfinite(), mine.isfinite()
        same = (exact == mine) | (exact.isnan() & mine.isnan())
        nonfinite = (~one, ~other, ~(one & other) & ~same)
        self.nonfinite = [count + int(flags.sum()) for count, flags in zip(self.nonfinite, nonfinite, strict=True)]
        self.outside += int(nonfinite[2].sum())
        return one & other

    def _add_elements(self, exact: Tensor, apart: Tensor) -> None:
        rtol, atol = self.tolerance
        size = exact.abs()
        self.finite += exact.numel()
        self.outside += int((apart > atol + rtol * size).sum())
        self.absmax = max(self.absmax, float(apart.max()))
        self.abssum += float(apart.sum())
        # Whole numbers have no tolerance; beside a zero, their difference counts as it is.
        self.worst = max(self.worst, float((apart / size.clamp(min=atol or 1.0)).max()))
        self.reference_absmax = max(self.reference_absmax, float(size.max()))

    def _add_norms(self, exact: Tensor, mine: Tensor, apart: Tensor) -> None:
        if self.scale != 1:
            exact, mine, apart = exact / self.scale, mine / self.scale, apart / self.scale
        self.squares += float(apart @ apart)
        self.reference_squares += float(exact @ exact)
        self.ours_squares += float(mine @ mine)
        self.product += float(exact @ mine)
        self.spread.add(exact)

    def result(self, reference: Tensor, ours: Tensor) -> Difference:
        same_type = reference.dtype == ours.dtype
        relative = _ratio(math.sqrt(self.squares), math.sqrt(self.reference_squares))
        sizes = math.sqrt(self.reference_squares) * math.sqrt(self.ours_squares)
        equal = not self.squares and not self.absmax
        return Difference(
            elements=reference.numel(),
            dtypes=(_name(reference.dtype), _name(ours.dtype)),
            bitwise=same_type and not self.unequal,
            unequal=self.unequal,
            absmax=self.absmax,
            absmean=self.abssum / self.finite if self.finite else 0.0,
            l2=math.sqrt(self.squares) * self.scale,
            relative_l2=relative,
            sqnr_db=_decibels(relative),
            cosine=1.0 if equal else max(-1.0, min(1.0, self.product / sizes)) if sizes else 0.0,
            worst_relative=self.worst,
            ulps=self.ulps.result() if same_type and reference.is_floating_point() else None,
            outside=self.outside / reference.numel() if reference.numel() else 0.0,
            reference_nonfinite=self.nonfinite[0],
            ours_nonfinite=self.nonfinite[1],
            nonfinite_differ=self.nonfinite[2],
            reference_std=self.spread.std * self.scale,
            reference_absmax=self.reference_absmax,
            reference_l2=math.sqrt(self.reference_squares) * self.scale,
        )


class _Spread:
    """Standard deviation over pieces, each about its own mean: no small difference of large sums."""

    def __init__(self) -> None:
        self._count, self._mean, self._squares = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        count, mean = values.numel(), float(values.mean())
        shift = mean - self._mean
        whole = self._count + count
        self._squares += float((values - mean).square().sum()) + shift * shift * self._count * count / whole
        self._mean += shift * count / whole
        self._count = whole

    @property
    def std(self) -> float:
        return math.sqrt(self._squares / self._count) if self._count else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.inf if part else 0.0


def _decibels(relative: float) -> float:
    if not relative:
        return math.inf
    return -math.inf if math.isinf(relative) else -20 * math.log10(relative)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
