"""Differences of tensors, layers, gradients and losses in every usual measure, and bounds of what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.output_check.model_runs import (
    cloned,
    fits_in_float64,
    flatten,
    forked,
    in_double,
    random_state,
    set_random_state,
)

MARGIN = 8.0

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
    pairs = [_TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in dtypes]
    return max(rtol for rtol, _ in pairs), max(atol for _, atol in pairs)


def unit_roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of storing one number that is not subnormal."""
    return float(torch.finfo(dtype).eps) / 2


def one_rounding(dtype: torch.dtype) -> float:
    """The root mean square of that error, at most."""
    return unit_roundoff(dtype) / math.sqrt(3)


def coarsest(dtypes: set[torch.dtype]) -> torch.dtype:
    """Return the floating point dtype that rounds most; float32 if there is none."""
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=unit_roundoff, default=torch.float32)


def coarser(dtype: torch.dtype, other: torch.dtype) -> bool:
    return not dtype.is_floating_point or unit_roundoff(dtype) > unit_roundoff(other)


def expected(dtype: torch.dtype, work: tuple[int, int], *, on_cuda: bool = False) -> float:
    """The formula above. `work` is (reductions, longest). On CUDA, float32 products may run as TF32."""
    reductions, longest = work
    accumulator = torch.float64 if dtype == torch.float64 else torch.float32
    accumulated = math.sqrt(longest) * one_rounding(accumulator)
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
    change, total = 0.0, 0.0
    for parameter in module.parameters():
        if parameter.is_floating_point():
            exact = parameter.detach().to(torch.float64)
            change += float((exact.to(dtype).to(torch.float64) - exact).square().sum())
            total += float(exact.square().sum())
    return math.sqrt(change / total) if total else 0.0


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


# Distance in units in the last place: how many numbers of the type are between two values.
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
    distance = (first - second).abs()
    # The distance of the largest float64 to its negative overflows an int64.
    across = (first < 0) != (second < 0)
    beyond = across & (first.abs() + second.abs() < 0)
    return torch.where(beyond, torch.iinfo(torch.int64).max, distance)


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


def difference(reference: Tensor, actual: Tensor) -> Difference:
    if reference.shape != actual.shape:
        raise UsageError(
            f"The reference has shape {tuple(reference.shape)}, the optimized model "
            f"{tuple(actual.shape)}; shapes must be equal."
        )
    if reference.is_meta or actual.is_meta:
        raise UsageError("A tensor on the meta device has no values to compare. Use a real device.")
    first, second = _real_parts(reference.detach()), _real_parts(actual.detach())
    sums = _DifferenceSums(scale=_scale(first, second), tolerance=tolerances(first.dtype, second.dtype))
    for one, other in _pieces(first, second):
        sums.add(one, other)
    return sums.result(first, second)


def differences(reference: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> dict[str, Difference]:
    """Per name. Both sides must have the same names."""
    if reference.keys() != actual.keys():
        theirs, ours = (", ".join(tensors) or "no tensor" for tensors in (reference, actual))
        raise UsageError(f"The reference returns {theirs}, the optimized model {ours}; outputs must have equal names.")
    return {name: difference(tensor, actual[name]) for name, tensor in reference.items()}


def _real_parts(values: Tensor) -> Tensor:
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values


def _pieces(reference: Tensor, actual: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """On the reference's device, or on the CPU where that device has no float64."""
    place = torch.device("cpu") if reference.device.type == "mps" else reference.device
    first, second = reference.reshape(-1), actual.reshape(-1)
    for start in range(0, first.numel(), PIECE):
        yield first[start : start + PIECE].to(place), second[start : start + PIECE].to(place)


def _scale(reference: Tensor, actual: Tensor) -> float:
    """Return the divisor of float64 values before squaring; squares of narrower types fit without one."""
    if torch.float64 not in (reference.dtype, actual.dtype):
        return 1.0
    largest = 0.0
    for piece in _pieces(reference, actual):
        for values in piece:
            exact = values.to(torch.float64)
            largest = max(largest, float(torch.where(exact.isfinite(), exact.abs(), 0).max()))
    return 2.0 ** min(math.frexp(largest)[1], 1023) if largest else 1.0


def _as_integers(values: Tensor) -> Tensor:
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

    def add(self, reference: Tensor, actual: Tensor) -> None:
        exact, changed = reference.to(torch.float64), actual.to(torch.float64)
        same_type = reference.dtype == actual.dtype
        unequal = (_as_integers(reference) != _as_integers(actual)) if same_type else exact != changed
        self.unequal += int(unequal.sum())
        finite = exact.isfinite() & changed.isfinite()
        same = (exact == changed) | (exact.isnan() & changed.isnan())
        nonfinite = (~exact.isfinite(), ~changed.isfinite(), ~finite & ~same)
        self.nonfinite = [count + int(flags.sum()) for count, flags in zip(self.nonfinite, nonfinite, strict=True)]
        self.outside += int(nonfinite[2].sum())
        if not bool(finite.all()):
            reference, actual, exact, changed = reference[finite], actual[finite], exact[finite], changed[finite]
            unequal = unequal[finite]
        if not exact.numel():
            return
        distance = (changed - exact).abs()
        if same_type and not reference.dtype.is_floating_point:
            # Whole numbers above 2**53 can differ and still be the same in float64.
            distance = torch.where(unequal, distance.clamp(min=1), distance)
        distances = ulps_between(reference, actual)
        if distances is not None:
            self.ulps.add(distances)

        rtol, atol = self.tolerance
        size = exact.abs()
        self.finite += exact.numel()
        self.outside += int((distance > atol + rtol * size).sum())
        self.absmax = max(self.absmax, float(distance.max()))
        self.abssum += float(distance.sum())
        # Integers have no tolerance: relative to zero, their absolute difference counts.
        self.worst = max(self.worst, float((distance / size.clamp(min=atol or 1.0)).max()))
        self.reference_absmax = max(self.reference_absmax, float(size.max()))

        if self.scale != 1:
            exact, changed, distance = exact / self.scale, changed / self.scale, distance / self.scale
        self.squares += float(distance @ distance)
        self.reference_squares += float(exact @ exact)
        self.ours_squares += float(changed @ changed)
        self.product += float(exact @ changed)
        self.spread.add(exact)

    def result(self, reference: Tensor, actual: Tensor) -> Difference:
        same_type = reference.dtype == actual.dtype
        relative = _ratio(math.sqrt(self.squares), math.sqrt(self.reference_squares))
        sizes = math.sqrt(self.reference_squares) * math.sqrt(self.ours_squares)
        equal = not self.squares and not self.absmax
        return Difference(
            elements=reference.numel(),
            dtypes=(_dtype_name(reference.dtype), _dtype_name(actual.dtype)),
            bitwise=same_type and not self.unequal,
            unequal=self.unequal,
            absmax=self.absmax,
            absmean=self.abssum / self.finite if self.finite else 0.0,
            l2=math.sqrt(self.squares) * self.scale,
            relative_l2=relative,
            sqnr_db=-20 * math.log10(relative) if 0 < relative < math.inf else math.inf if not relative else -math.inf,
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
        total = self._count + count
        self._squares += float((values - mean).square().sum()) + shift * shift * self._count * count / total
        self._mean += shift * count / total
        self._count = total

    @property
    def std(self) -> float:
        return math.sqrt(self._squares / self._count) if self._count else 0.0


def _ratio(part: float, total: float) -> float:
    return part / total if total else math.inf if part else 0.0


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Rounding:
    """Rounding error to expect at one place, relative to the norm of the result."""

    reductions: int
    """How many weights multiply in a row, at most."""
    expected: float
    """From the type, these reductions and their length."""
    fine: float
    """The same in float32: the remainder of code that always computes in float32."""
    floor: float | None
    """Measured difference between the reference and the reference in float64. None if not needed or not possible."""
    exact: float | None
    """Measured difference of both in float64, where rounding vanishes and a bug remains."""


@dataclass(frozen=True)
class Arithmetic:
    """Arithmetic of a change, which its rounding is judged by."""

    computes: frozenset[torch.dtype] = frozenset()
    """Types that it computes in on purpose, besides those of what it is given and gives."""
    in_float64: Callable[[nn.Module], AbstractContextManager[nn.Module]] | None = in_double
    """None where it cannot compute in float64."""


@dataclass(frozen=True)
class LayerDifference:
    path: str
    block: bool
    """A block of the model, or a part of one."""
    name: str
    """Which of the layer's outputs is the worst."""
    alone: Difference
    chained: Difference | None
    """None for parts of blocks."""
    rounding: Rounding
    stored_loss: float | None
    """For a lossy change, by how much storing this layer's weights changes them."""


def blocks_of(model: nn.Module) -> list[str]:
    """Paths of the outermost entries of module lists and sequences; without any, of the direct children."""
    listed = [path for path in _listed_blocks(model, "") if path]
    return listed or [name for name, child in model.named_children() if any(True for _ in child.parameters())]


def _listed_blocks(module: nn.Module, path: str) -> Iterator[str]:
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        entry = isinstance(module, (nn.ModuleList, nn.ModuleDict)) or (
            isinstance(module, nn.Sequential) and any(True for _ in child.children())
        )
        if entry:
            yield inner
        else:
            yield from _listed_blocks(child, inner)


def parts_of(model: nn.Module, block: str) -> list[str]:
    """The composed children of a block: its attention, its feed-forward, its modulation."""
    inside = model.get_submodule(block)
    if isinstance(inside, nn.ModuleList):
        return []
    return [
        f"{block}.{name}"
        for name, child in inside.named_children()
        if any(True for _ in child.children()) and not isinstance(child, nn.ModuleList)
    ]


@dataclass(frozen=True)
class LayerCall:
    """The first call of a layer, in host memory."""

    path: str
    block: bool
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    random: list[Tensor]
    outputs: dict[str, Tensor]


@contextmanager
def recorded_layers(model: nn.Module, device: torch.device) -> Iterator[dict[str, LayerCall]]:
    """Record the inputs and outputs of each layer of the reference, before anything is changed.

    A change may reach beyond its model, as a backend of attention does that is set for the whole process; so the
    changed layers are run later, from these records.
    """
    begun: dict[str, tuple[Any, list[Tensor]]] = {}
    calls: dict[str, LayerCall] = {}

    def before(path: str, _module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if path not in calls:
            begun[path] = (cloned((args, kwargs), device=torch.device("cpu")), random_state(device))

    def after(path: str, block: bool, _module: nn.Module, _args: Any, output: Any) -> None:
        if path in begun:
            outputs = {name: tensor.detach().cpu() for name, tensor in flatten(output).items()}
            calls[path] = LayerCall(path, block, *begun.pop(path), outputs)

    with ExitStack() as hooks:
        for block in blocks_of(model):
            for path in (block, *parts_of(model, block)):
                module = model.get_submodule(path)
                first = module.register_forward_pre_hook(partial(before, path), with_kwargs=True, prepend=True)
                hooks.callback(first.remove)
                hooks.callback(module.register_forward_hook(partial(after, path, path == block)).remove)
        yield calls


def in_order(calls: Mapping[str, LayerCall]) -> list[LayerCall]:
    """Blocks as they were called, each before its parts, which return before it does."""
    blocks = [call for call in calls.values() if call.block]
    parts = [call for call in calls.values() if not call.block]
    return [call for block in blocks for call in (block, *(p for p in parts if p.path.startswith(f"{block.path}.")))]


class LayerComparer:
    """Runs single layers: the changed model's while it is changed, and later the reference's in float64."""

    def __init__(self, device: torch.device, *, exactly: bool, arithmetic: Arithmetic) -> None:
        self._device, self._exactly, self._arithmetic = device, exactly, arithmetic
        self.notes: list[str] = []

    def compare(
        self, reference: nn.Module, changed: nn.Module, call: LayerCall
    ) -> tuple[LayerDifference, Tensor | None] | None:
        """The difference, and the worst output in float64 where more than float32 explains is to be explained.

        None, with a note, where the layer cannot be called by itself.
        """
        try:
            name, worst = worst_of(call.outputs, self._run(changed, call))
        except Exception as error:  # foreign layers may raise anything when called alone
            self.notes.append(f"{call.path} could not be compared alone: {type(error).__name__}: {error}")
            return None
        bounds = bounds_of(
            reference, list(flatten(call.arguments).values()), call.outputs, self._device, self._arithmetic
        )
        beyond = self._exactly and worst.relative_l2 > MARGIN * bounds.fine
        row = LayerDifference(call.path, call.block, name, worst, None, bounds, None)
        return row, self._in_float64(changed, call, name) if beyond else None

    def settled(
        self, reference: nn.Module, call: LayerCall, row: LayerDifference, ours: Tensor | None
    ) -> LayerDifference:
        """Add the float64 result of the reference; call after the changes are undone."""
        exact = None if ours is None else self._in_float64(reference, call, row.name)
        if exact is None:
            return row
        return replace(row, rounding=in_float64(row.rounding, call.outputs[row.name], exact, ours))

    def _in_float64(self, module: nn.Module, call: LayerCall, name: str) -> Tensor | None:
        if self._arithmetic.in_float64 is None or not fits_in_float64(module):
            return None
        try:
            with self._arithmetic.in_float64(module) as exact:
                return self._run(exact, call, torch.float64)[name]
        except Exception as error:  # not every module can compute in float64, and errors differ
            self.notes.append(f"{call.path} could not be run in float64: {type(error).__name__}: {error}")
            return None

    def _run(self, module: nn.Module, call: LayerCall, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
        args, kwargs = cloned(call.arguments, dtype, self._device)
        with forked(self._device), torch.no_grad():
            set_random_state(call.random, self._device)
            return {name: tensor.cpu() for name, tensor in flatten(module(*args, **kwargs)).items()}


def worst_of(reference: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> tuple[str, Difference]:
    """The output that differs most, of those that both have."""
    names = [name for name in reference if name in actual]
    if not names:
        raise UsageError("the layer returns no tensor of the same name")
    gaps = {name: difference(reference[name], actual[name]) for name in names}
    worst = max(names, key=lambda name: (gaps[name].nonfinite_differ, gaps[name].relative_l2, gaps[name].unequal))
    return worst, gaps[worst]


def bounds_of(
    module: nn.Module, inputs: list[Tensor], outputs: Mapping[str, Tensor], device: torch.device, arithmetic: Arithmetic
) -> Rounding:
    dtype = coarsest({*arithmetic.computes, *(tensor.dtype for tensor in (*inputs, *outputs.values()))})
    return expected_rounding(dtype, work_of(module, inputs), device)


def expected_rounding(dtype: torch.dtype, work: tuple[int, int], device: torch.device) -> Rounding:
    of_type = expected(dtype, work, on_cuda=device.type == "cuda")
    return Rounding(work[0], of_type, expected(torch.float32, work), None, None)


def in_float64(bounds: Rounding, reference: Tensor, exact: Tensor, actual: Tensor | None) -> Rounding:
    """With the distances measured: the reference from itself, and both from each other if `actual` is given.

    Relative to the reference as it is, too: a result that is zero but for rounding, like the gradient of a key's
    bias, would otherwise differ from itself by 100 %.
    """
    if coarser(exact.dtype, torch.float32):
        return bounds  # the code casts to a type of its own, so nothing was gained
    own = difference(exact, reference)
    size = max(own.reference_l2, float(reference.to(torch.float64).norm()))
    floor = own.l2 / size if size else 0.0
    if actual is None:
        return replace(bounds, floor=floor)
    return replace(bounds, floor=floor, exact=difference(exact, actual).l2 / size if size else 0.0)


def chained(changed: nn.Module, calls: Mapping[str, LayerCall], run: Callable[[], Any]) -> dict[str, Difference]:
    """The blocks' outputs while the changed model runs through, against the reference's."""
    gaps: dict[str, Difference] = {}

    def watch(call: LayerCall, _module: nn.Module, _args: Any, output: Any) -> None:
        actual = {name: tensor.detach().cpu() for name, tensor in flatten(output).items()}
        shapes = {name: tensor.shape for name, tensor in call.outputs.items()}
        same = {name: tensor for name, tensor in actual.items() if shapes.get(name) == tensor.shape}
        if call.path not in gaps and same:
            gaps[call.path] = worst_of(call.outputs, same)[1]

    modules = dict(changed.named_modules())
    with ExitStack() as hooks:
        for call in calls.values():
            if call.block and call.path in modules:
                hooks.callback(modules[call.path].register_forward_hook(partial(watch, call)).remove)
        run()
    return gaps


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
    """Gradients by names that both models have."""
    only_reference: tuple[str, ...]
    """Parameters that have a gradient in the reference only: none in the changed model, or under another name."""
    only_ours: tuple[str, ...]
    relative_l2: float
    """Relative L2 difference of all gradients as one vector."""

    @property
    def size(self) -> float:
        """The norm of the reference's, as one vector."""
        return math.hypot(*(parameter.difference.reference_l2 for parameter in self.parameters))


def compare_gradients(
    reference: Named, actual: Named, again: Named, *, bounds: Rounding, exact: tuple[Named, Named] | None = None
) -> Gradients:
    """`actual` may come from a flat buffer, for instance, in any shape of as many elements.

    `bounds` is what rounding may do to the gradients of this model; `exact` both models' gradients in float64.
    """
    rows = []
    for name, gradient in reference.items():
        if name not in actual:
            continue
        ours, rounding = actual[name], bounds
        if ours.numel() != gradient.numel():
            raise UsageError(
                f"The gradient of {name} has {ours.numel()} elements, the reference's {gradient.numel()}; "
                "their sizes must be equal."
            )
        gap = difference(gradient, ours.reshape(gradient.shape))
        noise = 0.0 if torch.equal(gradient, again[name]) else difference(gradient, again[name]).relative_l2
        if exact is not None and name in exact[0] and name in exact[1]:
            rounding = in_float64(bounds, gradient, exact[0][name], exact[1][name])
        rows.append(GradientDifference(name, gap, noise, rounding))
    gaps = math.sqrt(math.fsum(row.difference.l2**2 for row in rows))
    total = math.sqrt(math.fsum(row.difference.reference_l2**2 for row in rows))
    return Gradients(
        parameters=tuple(rows),
        only_reference=tuple(name for name in reference if name not in actual),
        only_ours=tuple(name for name in actual if name not in reference),
        relative_l2=_ratio(gaps, total),
    )


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
        same = all(_same_number(one, other) for one, other in zip(self.reference, self.ours, strict=True))
        return same and not self.updates

    @property
    def finite(self) -> bool:
        """Ours is finite wherever the reference is."""
        pairs = zip(self.reference, self.ours, strict=True)
        return all(math.isfinite(our) or not math.isfinite(one) for one, our in pairs)

    @property
    def worst(self) -> float:
        return max(map(_relative_difference, self.reference, self.ours), default=0.0)

    @property
    def noise(self) -> float:
        return max(map(_relative_difference, self.reference, self.again), default=0.0)


def update_difference(reference: Named, actual: Named) -> float | None:
    """Between weights' changes of the same names."""
    names = [name for name in reference if name in actual and actual[name].shape == reference[name].shape]
    distance = math.hypot(*(float((actual[name] - reference[name]).double().norm()) for name in names))
    total = math.hypot(*(float(reference[name].double().norm()) for name in names))
    return distance / total if total else None


def _same_number(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))


def _relative_difference(one: float, other: float) -> float:
    if _same_number(one, other):
        return 0.0
    return abs(other - one) / abs(one) if one and math.isfinite(one) and math.isfinite(other) else math.inf
