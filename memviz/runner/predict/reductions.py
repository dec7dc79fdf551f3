"""Buffers of reductions: a sum over many rows is split over the card, and its parts meet in memory.

The rules are those of ATen's `Reduce.cuh` (read, and equal to recordings wherever one has such a buffer): how an
iteration over the input is laid out, how threads are laid over it, and whether several blocks of threads share an
output. They do where there are too few outputs to keep the card busy; then each takes a place for its values, and
every row of blocks a counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    """Of a reduction: what it reads, as it lies."""

    shape: Sequence[int]
    strides: Sequence[int]
    """In elements."""
    offset: int
    """Of the first element, from the beginning of its memory."""
    element: int
    """Bytes."""


@dataclass(frozen=True)
class Values:
    """What a kernel keeps while it reduces, in bytes."""

    kept: int
    """Of one value between blocks of threads."""
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
        """Whether 32 bits reach every byte of it."""
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
    """As torch does it, which is not quite an order: dimensions that cannot be told apart are passed over."""
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
