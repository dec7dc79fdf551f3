"""Temporary memory of operators with indices: copies of indices, and scratch for sorting them.

Read in torch's source (`Indexing.cu`, `Embedding.cu`, `EmbeddingBackwardKernel.cu`, `Pow.cpp`) and in CUB's
`dispatch_radix_sort.cuh`, whose sizes recordings of an RTX 40 card prove.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from memviz.runner.predict.cards import KnownCard

_ALIGNED = 256
_DIGITS = 256
_BITS = 8
_WIDE, _NARROW = 8, 4
"""Bytes of a key, a value or a place of 64 bits, and of a counter."""
_ONE_BLOCK = 256 * 9
_TILES = ((90, 384 * 12), (80, 384 * 10), (0, 256 * 11))
"""Threads of a block times keys a thread, from which architecture on."""


def sort_scratch_bytes(count: int, highest: int, card: KnownCard) -> int:
    """Scratch bytes of CUB's radix sort for `count` keys with values of 8 bytes, of which none is above `highest`.

    One block of threads sorts a few without any. More are sorted in passes of 8 bits: each pass has counters, each tile
    of the keys has its own, and keys and values have a copy each where there are several passes.
    """
    if count <= _ONE_BLOCK:
        return 1
    passes = -(-max(highest.bit_length(), 1) // _BITS)
    tile = next(size for architecture, size in _TILES if card.architecture >= architecture)
    copies = _WIDE * count if passes > 1 else 0
    parts = (
        passes * _DIGITS * _WIDE,
        -(-count // tile) * _DIGITS * _NARROW,
        copies,
        copies,
        passes * _NARROW,
    )
    return sum(-(-part // _ALIGNED) * _ALIGNED for part in parts) + _ALIGNED - 1


aten = torch.ops.aten
Sizes = Iterable[int | tuple[int, ...]]
_SINGLE, _INDEX = 4, 8
_MASKS = (torch.bool, torch.uint8)
_HALVES = (torch.float16, torch.bfloat16)
_UNSORTED_INDICES = 3072
_ROWS_A_THREAD = 10


def copied_indices(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """Indices that lie on the host are copied to the card for as long as the kernel runs."""
    return [_bytes(index) for index in args[1] if index is not None and not index.is_meta]


def index_put_buffers(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """Adding at indices sorts them, with what is added lying end to end."""
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    tensor, indices, added = args[0], args[1], args[2]
    if not (accumulate or torch.are_deterministic_algorithms_enabled()):
        return copied_indices(args, kwargs, out, card)
    given = [index for index in indices if index is not None]
    if not given or not tensor.dim() or any(index.dtype in _MASKS for index in given):
        # How many places a mask shows is in its values.
        return ()
    return _sorted_and_added(tensor, indices, added, card)


def _sorted_and_added(tensor: Tensor, indices: Any, added: Tensor, card: KnownCard) -> Iterator[int | tuple[int, ...]]:
    given = [index for index in indices if index is not None]
    shape: Any = _together(*(index.shape for index in given))
    count = shape.numel()
    if not tensor.is_contiguous():
        yield _bytes(tensor)
    for number, index in enumerate(given):
        # Within bounds, then times its step, then to the others.
        if number == 0:
            if index.is_meta:
                yield (count * _INDEX,)
            yield count * _INDEX
        else:
            yield (count * _INDEX, count * _INDEX) if index.is_meta else (count * _INDEX,)
    if added.numel() and not _expanded(added, tensor, indices, shape).is_contiguous():
        yield _expanded(added, tensor, indices, shape).numel() * added.element_size()
    # Their order, sorted and as it was, and the numbers that are sorted along.
    yield from (count * _INDEX,) * 3
    if count:
        yield sort_scratch_bytes(count, _highest_row(tensor, indices), card)


def _expanded(added: Tensor, tensor: Tensor, indices: Any, shape: Any) -> Tensor:
    places = [at for at, index in enumerate(indices) if index is not None]
    rest = list(tensor.shape)
    beside_each_other = places == list(range(places[0], places[0] + len(places)))
    kept = [size for at, size in enumerate(rest) if at not in places]
    first = places[0] if beside_each_other else 0
    return added.expand(*kept[:first], *shape, *kept[first:])


def _highest_row(tensor: Tensor, indices: Any) -> int:
    """Return the highest index of a row, which spans the dimensions after the last index."""
    last = max(at for at, index in enumerate(indices) if index is not None)
    row = 1
    for size in tensor.shape[last + 1 :]:
        row *= size
    return (tensor.numel() - 1) // row if row and tensor.numel() else 0


def embedding_copies(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """Indices in more than one dimension are laid end to end, in a copy where they do not lie so."""
    indices = args[1]
    if indices.dim() != 1 and not indices.is_contiguous():
        yield indices.numel() * indices.element_size()


def embedding_backward_buffers(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """Many indices are sorted, and rows of one index summed in parts in fp32."""
    gradient, indices, weights = args[0], args[1], args[2]
    for tensor in (gradient, indices):
        if not tensor.is_contiguous():
            yield tensor.numel() * tensor.element_size()
    count = indices.numel()
    if count <= _UNSORTED_INDICES:
        return
    segments = min(count, weights)
    parts = count // _ROWS_A_THREAD + segments
    wide = _SINGLE if gradient.dtype in _HALVES else gradient.element_size()
    yield from (count * _INDEX, count * _INDEX)
    yield (count * _INDEX, sort_scratch_bytes(count, weights, card))
    yield from (count * _INDEX, _INDEX, segments * _INDEX, segments * _INDEX, _INDEX, parts * _INDEX)
    yield parts * gradient.size(-1) * wide


def scalar_power(args: Any, kwargs: Any, out: Any, card: KnownCard) -> Sizes:
    """A number to the power of a tensor is a tensor of one number for a moment, which 1 need not be."""
    base = args[0]
    if isinstance(base, Tensor) or base == 1:
        return ()
    return (2 * _INDEX if isinstance(base, complex) else _INDEX,)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


_together: Any = torch.broadcast_shapes
TEMPORARIES = {
    aten.index: copied_indices,
    aten.index_put: index_put_buffers,
    aten.index_put_: index_put_buffers,
    aten._index_put_impl_: index_put_buffers,
    aten.embedding: embedding_copies,
    aten.embedding_dense_backward: embedding_backward_buffers,
    aten.pow: scalar_power,
}
