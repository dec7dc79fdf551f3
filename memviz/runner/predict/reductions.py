"""Buffers of reductions: a sum over many rows is split over the card, and its parts meet in memory.

The rules are those of ATen's `Reduce.cuh` (read, and equal to recordings wherever one has such a buffer): how an
iteration over the input is laid out, how threads are laid over it, and whether several blocks of threads share an
output. They do where there are too few outputs to keep the card busy; then each takes space for its values, and
every row of blocks a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memviz.runner.predict.cards import KnownCard

_WARP = 32
_MOST_THREADS = 512
_FEWEST_VALUES, _MOST_VALUES = 16, 256
"""That a thread adds up."""
_VECTOR = 4
_COUNTER = 4
_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Input:
    """Input of a reduction, with its memory layout."""

    shape: Sequence[int]
    strides: Sequence[int]
    """In elements."""
    offset: int
    """Elements from the start of its memory to the first one."""
    element: int
    """Bytes."""


@dataclass(frozen=True)
class Values:
    """Values that a kernel keeps during a reduction, in bytes."""

    kept: int
    """Bytes of one value between blocks of threads."""
    output: int
    accumulates_in_output: bool = True
    at_once: int = 4
    """Elements that a thread reads at once along what is reduced."""


class _Dim(NamedTuple):
    size: int
    output: int
    input: int
    """Strides in bytes; an output stride of 0 means that the dimension is reduced."""

    @property
    def is_reduced(self) -> bool:
        return self.output == 0 and self.size > 1


@dataclass(frozen=True)
class _Iteration:
    dims: list[_Dim]
    offset: int

    @property
    def outputs(self) -> int:
        return _product(dim.size for dim in self.dims if not dim.is_reduced)

    @property
    def numel(self) -> int:
        return _product(dim.size for dim in self.dims)

    @property
    def reduced(self) -> int:
        return sum(dim.is_reduced for dim in self.dims)

    @property
    def is_small(self) -> bool:
        """True if 32-bit offsets reach every byte."""
        reach = max(
            1 + sum((dim.size - 1) * abs(dim.output) for dim in self.dims),
            1 + sum((dim.size - 1) * abs(dim.input) for dim in self.dims),
        )
        return self.numel <= _INT_MAX and reach <= _INT_MAX


def buffers(tensor: Input, dims: Sequence[int], values: Values, card: KnownCard) -> list[int | tuple[int, ...]]:
    """Bytes of what is alive together; what stands in a tuple is freed before the next is taken."""
    if not _product(tensor.shape):
        return []
    iteration = _iteration(tensor, dims, values.output)
    if iteration.is_small:
        return list(_of_launch(iteration, values, tensor.element, card))
    taken: list[int | tuple[int, ...]] = []
    if not values.accumulates_in_output and values.output < values.kept:
        reach = max((dim.size * dim.output for dim in iteration.dims), default=0)
        taken.append(max(reach, values.output) // values.output * values.kept)
    parts = (_of_launch(part, values, tensor.element, card) for part in _in_32_bits(iteration))
    return taken + [part for part in parts if part]


def _of_launch(iteration: _Iteration, values: Values, element: int, card: KnownCard) -> tuple[int, ...]:
    outputs = iteration.outputs
    inputs = iteration.numel // outputs
    first = iteration.dims[0].input if iteration.dims else element
    reduced = iteration.reduced
    along_input = reduced == len(iteration.dims) or first < iteration.dims[reduced].input
    width, height = (inputs, outputs) if along_input else (outputs, inputs)
    fastest = first if along_input else iteration.dims[reduced].input
    vector = 1
    if iteration.dims and fastest == element:
        if not along_input:
            vector = _output_vector(iteration, element)
            width //= vector
        elif width >= 128 and reduced == 1:
            width //= values.at_once
    block_width, block_height = _block(width, height, _MOST_THREADS // vector)
    input_step, output_step = (block_width, 1) if along_input else (1, block_width)
    if -(-inputs // input_step) < min(block_height * 16, _MOST_VALUES):
        return ()
    input_step *= block_height
    rows = -(-(outputs // vector) // output_step)
    blocks = card.multiprocessors * (card.threads_per_multiprocessor // (block_width * block_height))
    per_thread = -(-inputs // input_step)
    if per_thread < _MOST_VALUES or rows > blocks:
        return ()
    shares = max(min(-(-blocks // rows), -(-per_thread // _FEWEST_VALUES)), -(-per_thread // _MOST_VALUES))
    if shares == 1:
        return ()
    staged = values.kept * outputs * shares
    return (staged if along_input else staged * block_width * vector), _COUNTER * rows


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    """Powers of two, a warp wide where the height needs the rest."""
    wide, high = (min(1 << (max(size, 1).bit_length() - 1), threads) for size in (width, height))
    block_width = min(wide, _WARP)
    block_height = min(high, threads // block_width)
    return min(wide, threads // block_height), block_height


def _output_vector(iteration: _Iteration, element: int) -> int:
    """Outputs that a thread works on at once: as many as everything else is a multiple of."""
    at = iteration.reduced
    steps = [dim.input // element for place, dim in enumerate(iteration.dims) if place != at]
    vector = _VECTOR
    for count in (iteration.offset // element, iteration.dims[at].size, *steps):
        while count % vector:
            vector //= 2
    return vector


def _iteration(tensor: Input, dims: Sequence[int], output: int) -> _Iteration:
    """Dimensions of the input with what is reduced first, the fastest of each kind before others, and joined."""
    gone = {dim % max(len(tensor.shape), 1) for dim in dims} if dims else set(range(len(tensor.shape)))
    strides: list[int] = []
    step = output
    for at in reversed(range(len(tensor.shape))):
        strides.insert(0, 0 if at in gone else step)
        step *= 1 if at in gone else tensor.shape[at]
    steps = (stride * tensor.element for stride in tensor.strides)
    rows = [_Dim(*row) for row in zip(tensor.shape, strides, steps, strict=True)]
    return _Iteration(_joined(_sorted(rows[::-1])), tensor.offset * tensor.element)


def _sorted(dims: list[_Dim]) -> list[_Dim]:
    """Sort dimensions as torch does. The order is not total: dimensions that compare equal are skipped."""
    for start in range(1, len(dims)):
        at = start
        for other in reversed(range(start)):
            order = _order(dims[other], dims[at])
            if order > 0:
                dims[other], dims[at] = dims[at], dims[other]
                at = other
            elif order < 0:
                break
    return dims


def _order(one: _Dim, other: _Dim) -> int:
    if (one.output == 0) != (other.output == 0):
        return 1 if other.output == 0 else -1
    for a, b in ((one.output, other.output), (one.input, other.input)):
        if a and b and a != b:
            return -1 if a < b else 1
        if a and b and one.size > other.size:
            return 1
    return 0


def _joined(dims: list[_Dim]) -> list[_Dim]:
    joined: list[_Dim] = []
    for dim in dims:
        last = joined[-1] if joined else None
        if last is None:
            joined.append(dim)
        elif last.size == 1:
            joined[-1] = dim
        elif dim.size == 1:
            continue
        elif last.size * last.output == dim.output and last.size * last.input == dim.input:
            joined[-1] = last._replace(size=last.size * dim.size)
        else:
            joined.append(dim)
    return joined


def _in_32_bits(iteration: _Iteration) -> Iterator[_Iteration]:
    """Halves of halves, each cut where it reaches farthest."""
    if iteration.is_small:
        yield iteration
        return
    dims = iteration.dims
    reaches = [(dim.size - 1) * max(abs(dim.output), abs(dim.input)) for dim in dims]
    at = max(range(len(dims)), key=lambda place: (reaches[place], place))
    half = dims[at].size // 2
    for begin, size in ((0, half), (half, dims[at].size - half)):
        part = [*dims[:at], dims[at]._replace(size=size), *dims[at + 1 :]]
        yield from _in_32_bits(_Iteration(part, iteration.offset + begin * dims[at].input))


def _product(sizes: Iterator[int] | Sequence[int]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


aten = torch.ops.aten
Sizes = Iterable[int | tuple[int, ...]]
_HALVES = (torch.float16, torch.bfloat16)
_SINGLE, _PAIR, _INDEX = 4, 16, 8
_WIDE_HALVES_SINCE, _WIDE_SINGLES_SINCE = (2, 7), (2, 10)
"""Sums along memory read 8 elements at once; since when is estimated. It matters to rows of a few thousand."""
ValueRule = Callable[[Tensor, Tensor], Values]
"""Returns the values that a kernel keeps, for an input as the kernel reads it and the result."""


def temporaries_of(packet: Any, release: tuple[int, int]) -> Callable[[Any, Any, Any, KnownCard], Sizes] | None:
    if packet in (aten.sum, aten.nansum):
        return partial(_reduction_buffers, partial(_summed, release))
    if packet in _LOSSES:
        return partial(_loss, release)
    if packet in (aten.max, aten.min):
        return _extreme
    kept = _VALUE_RULES.get(packet)
    return None if kept is None else partial(_reduction_buffers, kept)


def _reduction_buffers(kept: ValueRule, args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """A copy in the result's type, if there is one, then what the kernel takes."""
    tensor = args[0]
    answer = out[0] if isinstance(out, tuple | list) else out
    given = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = _dims(given)
    if dims is None or not isinstance(tensor, Tensor) or not tensor.numel() or not answer.numel():
        return
    if kept not in _OWN_TYPES and _is_copied(tensor.dtype, answer.dtype):
        tensor = torch.empty_like(tensor, dtype=answer.dtype)
        yield tensor.numel() * tensor.element_size()
    yield from buffers(_input(tensor), dims, kept(tensor, answer), card)


def _dims(given: Any) -> Sequence[int] | None:
    """Empty for all; None where the second argument makes it no reduction."""
    if isinstance(given, Tensor):
        return None
    if given is None or isinstance(given, bool | float):
        return ()
    return (given,) if isinstance(given, int) else tuple(given)


def _is_copied(before: torch.dtype, after: torch.dtype) -> bool:
    """Only halves are widened within the kernel."""
    return before != after and not (before in _HALVES and after == torch.float32)


def _input(tensor: Tensor) -> Input:
    offset = int(tensor.storage_offset())
    return Input(tensor.shape, tensor.stride(), offset, tensor.element_size())


def _opmath(tensor: Tensor) -> int:
    return _SINGLE if tensor.dtype in _HALVES else tensor.element_size()


def _added(tensor: Tensor, answer: Tensor, at_once: int = 4) -> Values:
    both_half = tensor.dtype in _HALVES and tensor.dtype == answer.dtype
    return Values(_opmath(tensor), answer.element_size(), not both_half, at_once)


def _summed(release: tuple[int, int], tensor: Tensor, answer: Tensor) -> Values:
    wide = tensor.element_size() == 2 and release >= _WIDE_HALVES_SINCE
    if tensor.dtype == torch.float32 and release >= _WIDE_SINGLES_SINCE:
        wide = tensor.numel() // answer.numel() % 1024 == 0
    return _added(tensor, answer, 8 if wide else 4)


def _compared(tensor: Tensor, answer: Tensor) -> Values:
    both_half = tensor.dtype in _HALVES and tensor.dtype == answer.dtype
    return Values(tensor.element_size(), answer.element_size(), not both_half)


def _with_place(tensor: Tensor, answer: Tensor) -> Values:
    """The value beside an index of 8 bytes, aligned."""
    return Values(_PAIR, answer.element_size(), accumulates_in_output=False)


def _spread(tensor: Tensor, answer: Tensor) -> Values:
    """Mean, sum of squares, and the count twice."""
    double = tensor.dtype == torch.float64
    return Values(32 if double else 16, answer.element_size(), accumulates_in_output=False, at_once=2)


def _extreme(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """Along a dimension places are kept too; over everything only the value."""
    return _reduction_buffers(_with_place if isinstance(out, tuple | list) else _compared, args, kwargs, out, card)


def _loss(release: tuple[int, int], args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """Losses that are one number: all of them are there for a moment before they are summed (read)."""
    one, other = args[0], args[1]
    if out.dim() or not isinstance(other, Tensor) or (one.dim() == 0 and other.dim() == 0):
        return
    losses = torch.empty(_together(one.shape, other.shape), dtype=out.dtype, device=one.device)
    yield losses.numel() * losses.element_size()
    yield from buffers(_input(losses), (), _summed(release, losses, out), card)


_together: Any = torch.broadcast_shapes
_LOSSES = {aten.mse_loss, aten.smooth_l1_loss, aten.huber_loss, aten.binary_cross_entropy}
_OWN_TYPES = (_compared, _with_place, _spread)
"""Rules of kernels whose result may differ in dtype from their input."""
_VALUE_RULES: dict[Any, ValueRule] = {
    aten.mean: _added,
    aten.prod: _added,
    aten.linalg_vector_norm: _added,
    **dict.fromkeys((aten.amax, aten.amin, aten.any, aten.all), _compared),
    **dict.fromkeys((aten.argmax, aten.argmin), _with_place),
    **dict.fromkeys((aten.var, aten.std, aten.var_mean, aten.std_mean), _spread),
}
