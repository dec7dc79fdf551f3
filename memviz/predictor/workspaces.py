"""Memory that operators take on CUDA besides their results: workspaces, copies, and tensors inside one kernel call.

Each rule returns the bytes that are live at once while the operator runs, besides its results. "Read" means read in
torch's source; "estimated" means that the sizes follow from how the kernel works and were not compared with a card.
`rules.py` lists the rule of each operator, and its evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import ceil, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memviz.allocator.blocks import round_up
from memviz.predictor.cards import KnownCard
from memviz.predictor.compat import LT_MAY_BE_SHARED_SINCE, LT_SHARED_SINCE, WIDE_HALVES_SINCE, WIDE_SINGLES_SINCE
from memviz.predictor.shapes import HALVES, MASKS, convolution_layout, image_layout

_broadcast_shapes: Any = torch.broadcast_shapes
_SINGLE, _INDEX, _VALUE_AND_INDEX = 4, 8, 16
"""Bytes of a float, of an index, and of a value with its index, aligned."""


class OperatorCall(NamedTuple):
    args: Any
    kwargs: Any
    out: Any
    card: KnownCard
    release: tuple[int, int]
    """torch's."""

    def argument(self, at: int, name: str, default: Any = None) -> Any:
        return self.args[at] if len(self.args) > at else self.kwargs.get(name, default)


Sizes = Iterable[int | tuple[int, ...]]
"""Bytes of buffers in the order of their allocation, freed when the operator ends. The buffers of a tuple are freed
before the next one; FREE_LAST_BUT_ONE frees the one before the last."""
FREE_LAST_BUT_ONE = -2
Temporaries = Callable[[OperatorCall], Sizes]


# Attention.


def flash_forward(call: OperatorCall) -> Sizes:
    """Split the keys where there are too few rows for the card: a partial result for each split (read)."""
    query, key = call.args[:2]
    batch, heads, rows, width = query.shape
    blocks = batch * heads * ceil(rows / 64)
    splits = 1 if call.argument(3, "dropout_p", 0.0) else _splits(blocks, key.size(2), width, call.card)
    if splits == 1:
        return ()
    partial_sums = splits * batch * heads * rows * _SINGLE
    return partial_sums, partial_sums * _flash_width(width)


def _splits(blocks: int, keys: int, width: int, card: KnownCard) -> int:
    """Return the least number of splits that keeps the card nearly as busy as any number would."""
    units = 2 * card.multiprocessors
    if blocks >= 0.8 * units:
        return 1
    key_blocks = ceil(keys / (256 if width <= 64 else 128 if width <= 128 else 64))
    parts = range(1, min(128, units, key_blocks) + 1)
    worth = [n for n in parts if n == 1 or ceil(key_blocks / n) != ceil(key_blocks / (n - 1))]
    busy = {n: (blocks * n / units) / ceil(blocks * n / units) for n in worth}
    return next(n for n in worth if busy[n] >= 0.85 * max(busy.values()))


def _flash_width(width: int) -> int:
    return round_up(width, 32 if width <= 128 else 64)


def flash_backward(call: OperatorCall) -> Sizes:
    """Row sums, the queries' gradient in fp32, and for grouped heads those of keys and values unsummed (measured).

    The output and its gradient are copied unless their memory has rows before heads.
    """
    query, key = call.args[1:3]
    yield from (each.nbytes for each in (call.args[0], call.args[4]) if not each.transpose(1, 2).is_contiguous())
    batch, heads, rows, width = query.shape
    sums = batch * heads * round_up(rows, 128) * _SINGLE
    yield from (sums, sums * _flash_width(width))
    if key.size(1) != heads:
        expanded = batch * heads * key.size(2) * width * query.element_size()
        yield from (expanded, expanded)


def varlen_flash_backward(call: OperatorCall) -> Sizes:
    """Variable-length flash attention backward, with spare rows between sequences (estimated)."""
    rows, heads, width = call.args[1].shape
    sums = heads * (rows + 128 * (call.args[6].numel() - 1)) * _SINGLE
    return sums, sums * _flash_width(width)


_WIDTH_IN_REGISTERS, _TILE_HEADER, _CUDNN_HEADER = 128, 16, 256


def efficient_forward(call: OperatorCall) -> Sizes:
    """Wide values of halves are summed in memory, in fp32 (read)."""
    query, value = call.args[0], call.args[2]
    batch, heads, rows, _ = query.shape
    if query.dtype in HALVES and value.size(-1) > _WIDTH_IN_REGISTERS:
        yield batch * heads * rows * value.size(-1) * _SINGLE


def efficient_backward(call: OperatorCall) -> Sizes:
    """Row sums, and gradients in fp32 by tiles, as the kernel divides them that fits the card (read, some recorded)."""
    gradient, query, key, value = call.args[:4]
    batch, heads, rows, width = query.shape
    half = query.dtype in HALVES
    sums = batch * heads * rows * _SINGLE
    yield from (sums,) if half else (gradient.nbytes, sums)
    if not half:
        # The sums of a product, which are copied unless there is one row or one head.
        yield from (sums, FREE_LAST_BUT_ONE) if rows > 1 and heads > 1 else ()
        yield FREE_LAST_BUT_ONE
    drops = any(isinstance(arg, float) and arg for arg in call.args)
    high, wide, in_registers = _tile_of(call.card, max(width, value.size(-1)), half, drops)
    size = ceil(rows / high) * ceil(width / wide) * (high * wide * _SINGLE + _TILE_HEADER)
    if half and not in_registers:
        # Keys' and values' gradients, for each part of the keys.
        splits = max(1, min(ceil(key.size(2) / wide), 200 // (batch * heads)))
        size += splits * wide * (round_up(width, high) + round_up(value.size(-1), high)) * _SINGLE
    yield from (batch * heads * size, FREE_LAST_BUT_ONE)


def _tile_of(card: KnownCard, width: int, half: bool, drops: bool) -> tuple[int, int, bool]:
    """Return rows and columns of a tile, and True if keys' and values' gradients stay in registers."""
    if half and 64 < width <= 96 and not drops and card.capability in ((8, 6), (8, 9)):
        return 128, 64, True
    # Shared memory of 163 KiB and more; the others have at most 99.
    is_roomy = card.capability in ((8, 0), (8, 7)) or card.capability[0] in (9, 10)
    if width <= 64 or not (is_roomy or half and (width > 128 or card.capability < (8, 0))):
        return 64, 64, half and width <= 64
    return 128, 128 if half and width <= 128 and is_roomy else 64, half and width <= 128


def cudnn_forward(call: OperatorCall) -> Sizes:
    """A header (measured)."""
    return (_CUDNN_HEADER,)


def cudnn_backward(call: OperatorCall) -> Sizes:
    """In one buffer what flash attention takes, but with no spare rows, and a header (measured)."""
    query, key, value = call.args[1:4]
    batch, heads, rows, width = query.shape
    size = batch * heads * rows * (1 + width) * _SINGLE + _CUDNN_HEADER
    if key.size(1) != heads:
        size += batch * heads * key.size(2) * (width + value.size(-1)) * query.element_size()
    return (size,)


def softmax_backward(call: OperatorCall) -> Sizes:
    """The product of gradient and result."""
    return (call.args[0].nbytes, *contiguous_copies(call))


def heads_first(rule: Temporaries, first: int) -> Temporaries:
    """Adapt a rule to a kernel that takes rows before heads; its queries, keys and values begin at `first`."""

    def with_heads_first(call: OperatorCall) -> Sizes:
        tensors = [tensor.transpose(1, 2) for tensor in call.args[first : first + 3]]
        return rule(call._replace(args=(*call.args[:first], *tensors)))

    return with_heads_first


# cuBLAS and cublasLt.

_LT_WORKSPACE = 1 << 20
_CONFIG = re.compile(r":([0-9]+):([0-9]+)")
_WHOLE = re.compile(r"\s*\+?([0-9]+)")


@dataclass(frozen=True)
class WorkspaceSizes:
    cublas: int
    """Workspace of each cuBLAS handle."""
    is_shared: bool
    """True if cublasLt uses cuBLAS's workspace too."""
    lt_told: int | None = None

    @property
    def lt(self) -> int:
        """Workspace of cublasLt, 0 if it shares cuBLAS's."""
        return 0 if self.is_shared else self.reported_lt

    @property
    def reported_lt(self) -> int:
        if self.is_shared:
            return self.cublas if self.lt_told is None else min(self.lt_told, self.cublas)
        return _LT_WORKSPACE if self.lt_told is None else self.lt_told


def workspace_sizes(card: KnownCard, release: tuple[int, int], environment: Mapping[str, str]) -> WorkspaceSizes:
    """Return the workspace sizes that the environment sets, cublasLt's in KiB (read)."""
    # Pairs of `:KiB:count`, which deterministic programs have to set.
    pairs = [] if card.is_amd else _CONFIG.findall(environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    set_size = sum(int(size) * 1024 * int(count) for size, count in pairs)
    # torch ignores values other than 0 and 1.
    unified = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE") if release >= LT_MAY_BE_SHARED_SINCE else None
    is_shared = unified == "1" or unified != "0" and release >= LT_SHARED_SINCE
    lt_told = _WHOLE.match(environment.get("CUBLASLT_WORKSPACE_SIZE", ""))
    lt_size = None if lt_told is None else int(lt_told[1]) * 1024
    return WorkspaceSizes(set_size if pairs else card.cublas_workspace_in(release), is_shared, lt_size)


def uses_lt(args: Any, kwargs: Any) -> bool:
    """Return whether cublasLt adds the bias within the product (read, recorded)."""
    bias, left, right = args[:3]
    in_one = bias.dim() == 1 and bias.is_contiguous() and bias.size(0) == right.size(1) and min(right.shape) > 1
    return bool(in_one and kwargs.get("beta", 1) == 1 and left.numel() > 0 and bias.is_floating_point())


def product_copies(call: OperatorCall) -> Sizes:
    """Matrices with neither contiguous rows nor contiguous columns are copied first (read)."""
    matrices = (arg for arg in call.args if isinstance(arg, Tensor) and arg.dim() >= 2)
    for matrix in matrices:
        rows, columns = matrix.shape[-2:]
        down, across = matrix.stride()[-2:]
        if not (across == 1 and down >= max(1, columns) or down == 1 and across >= max(1, rows)):
            yield matrix.nbytes


# Kernels that walk memory from end to end, or channel by channel.


def fourier_buffers(call: OperatorCall) -> Sizes:
    """Copies for cuFFT, results in between (read), and its workspace.

    Two or three dimensions are transformed at once, with a workspace of the complex data's size: arrayfire's issue
    1443 and CUDA.jl's 894 print it. A workspace for one dimension is not counted.
    """
    tensor, dims = call.args[:2]
    data = (call.out if call.out.is_complex() else tensor).nbytes
    turns_real, starts_real = not call.out.is_complex(), not tensor.is_complex()
    if turns_real or not _is_one_batch(tensor, dims):
        yield tensor.nbytes
    # The last dimension alone, then the others.
    staged = (turns_real or starts_real) and (len(dims) > _MOST_DIMS_AT_ONCE or list(dims[:2]) == [0, 1])
    if staged and starts_real:
        yield data
    if len(dims) - staged > 1:
        yield data


_MOST_DIMS_AT_ONCE = 3


def _is_one_batch(tensor: Tensor, dims: Sequence[int]) -> bool:
    """Tell whether the dimensions that are not transformed can be seen as one."""
    others = sorted((dim for dim in range(tensor.dim()) if dim not in dims and tensor.size(dim) > 1), key=tensor.stride)
    return all(tensor.stride(b) == tensor.stride(a) * tensor.size(a) for a, b in pairwise(others))


def convolution_buffers(call: OperatorCall) -> Sizes:
    """Copies to the layout of the convolution (read), then each kernel's workspace (measured on an H100)."""
    tensors = images_and_weight(call)
    layout = convolution_layout(*tensors[-2:])
    yield from (tensor.nbytes for tensor in tensors if not tensor.is_contiguous(memory_format=layout))
    if convolves_on_tensor_cores(call):
        yield from ((size,) for size in _convolution_workspaces(call) if size)


def images_and_weight(call: OperatorCall) -> list[Tensor]:
    """Input and weight of a convolution; before them, in a backward, the gradient of the result."""
    return [arg for arg in call.args[:3] if isinstance(arg, Tensor) and arg.dim() > 2]


_CONVOLUTIONS_MEASURED_SINCE = (8, 0)
_CHANNELS_AT_ONCE = {torch.float32: 4, torch.float16: 8, torch.bfloat16: 8}
"""Channels are padded to a multiple of this where cuDNN copies a tensor for tensor cores."""


def convolves_on_tensor_cores(call: OperatorCall) -> bool:
    """True where cuDNN copies contiguous tensors to channels last, as tensor cores want them."""
    tensors = images_and_weight(call)
    if len(tensors) < 2 or call.card.is_amd or call.card.capability < _CONVOLUTIONS_MEASURED_SINCE:
        return False
    dtype, is_backward = tensors[-1].dtype, len(tensors) == 3
    groups = call.args[9 if is_backward else 8]
    takes = dtype in HALVES or dtype == torch.float32 and torch.backends.cudnn.allow_tf32
    return takes and groups == 1 and convolution_layout(*tensors[-2:]) is torch.contiguous_format


def _convolution_workspaces(call: OperatorCall) -> Iterator[int]:
    """Yield the bytes of each kernel: a forward has one, a backward one for each gradient.

    They hold both images and the weight. With windows of one pixel, a convolution without stride takes nothing, and
    one with stride the images alone.
    """
    *_, image, weight = tensors = images_and_weight(call)
    is_backward = len(tensors) == 3
    strides, other = call.args[4 if is_backward else 3], tensors[0] if is_backward else call.out
    copied = [image, other]
    if weight[0, 0].numel() > 1:
        copied.append(weight)
    elif max(strides) == 1:
        return
    size = 0
    for tensor in copied:
        first, channels = tensor.shape[:2]
        padded = round_up(channels, _CHANNELS_AT_ONCE[tensor.dtype])
        size += first * padded * tensor[0, 0].numel() * tensor.element_size()
    yield from (size for wanted in (call.args[10][:2] if is_backward else [True]) if wanted)


def enlarging_copies(call: OperatorCall) -> Sizes:
    """Images whose pixels are repeated are copied in one piece, unless they count as channels last (read)."""
    image = call.args[0]
    if image_layout(image) is torch.contiguous_format:
        yield from (each.nbytes for each in (image, call.out) if not each.is_contiguous())


def contiguous_copies(call: OperatorCall) -> Sizes:
    """Non-contiguous tensors among the first two arguments are copied (read)."""
    return [arg.nbytes for arg in call.args[:2] if isinstance(arg, Tensor) and not arg.is_contiguous()]


def padding_copies(call: OperatorCall) -> Sizes:
    """Padding with its own values, or its gradient, copies a non-contiguous input (read)."""
    return contiguous_copies(call._replace(args=call.args[:1]))


_CHUNK = 65536


def foreach_norm(call: OperatorCall) -> Sizes:
    """A number for each piece of each tensor (read)."""
    tensors = call.args[0]
    pieces = max((ceil(tensor.numel() / _CHUNK) for tensor in tensors), default=0)
    return (len(tensors) * pieces * _SINGLE,)


def ctc_forward(call: OperatorCall) -> Sizes:
    """Both lengths and where targets begin are copied to the card (read)."""
    return (call.args[0].size(1) * _INDEX,) * 3


def ctc_backward(call: OperatorCall) -> Sizes:
    """The lengths and starts again, and a second table (read)."""
    return *((call.args[1].size(1) * _INDEX,) * 3), call.args[6].nbytes


def scalar_power(call: OperatorCall) -> Sizes:
    """A number to the power of a tensor becomes a tensor of one number, unless it is 1 (read in `Pow.cpp`)."""
    base = call.args[0]
    if isinstance(base, Tensor) or base == 1:
        return ()
    return (2 * _INDEX if isinstance(base, complex) else _INDEX,)


# Indices: read in `Indexing.cu`, `Embedding.cu` and `EmbeddingBackwardKernel.cu`, and in CUB's
# `dispatch_radix_sort.cuh`, whose sizes recordings of an RTX 40 card prove.

_SCRATCH_ALIGNMENT = 256
_DIGITS, _BITS = 256, 8
_ONE_BLOCK = 256 * 9
_TILES = ((90, 384 * 12), (80, 384 * 10), (0, 256 * 11))
"""Threads of a block times keys a thread, from which architecture on."""
_UNSORTED_INDICES = 3072
_ROWS_A_THREAD = 10


def sort_scratch_bytes(count: int, highest: int, card: KnownCard) -> int:
    """Scratch bytes of CUB's radix sort for `count` keys with values of 8 bytes, of which none is above `highest`.

    One block of threads sorts a few without any. More are sorted in passes of 8 bits: each pass has counters, each tile
    of the keys has its own, and keys and values have a copy each where there are several passes.
    """
    return _radix_scratch_bytes(count, max(highest.bit_length(), 1), card, (_INDEX, _INDEX))


def _radix_scratch_bytes(count: int, bits: int, card: KnownCard, sizes: Sequence[int]) -> int:
    """Scratch bytes by the bits of the keys that are sorted by; `sizes` are bytes of a key, and of its value if any."""
    if count <= _ONE_BLOCK:
        return 1
    passes = ceil(bits / _BITS)
    tile = next(size for architecture, size in _TILES if card.architecture >= architecture)
    copies = [size * count if passes > 1 else 0 for size in sizes]
    parts = (passes * _DIGITS * _INDEX, ceil(count / tile) * _DIGITS * _COUNTER, *copies, passes * _COUNTER)
    return sum(round_up(part, _SCRATCH_ALIGNMENT) for part in parts) + _SCRATCH_ALIGNMENT - 1


_SMALL_SORT = 4096
"""Elements of a row that one block of threads sorts in place."""
_ROWS_AT_ONCE, _LONG_ROW = 128, 1_000_000
"""Fewer rows are sorted in one pass over all elements, and longer rows one by one."""


def sort_buffers(call: OperatorCall) -> Sizes:
    """Numbers that are sorted along, and the scratch of CUB's sorts (`Sort.cpp`, `SortStable.cu`)."""
    tensor = call.args[0]
    return _sort_buffers(tensor, call.argument(1, "dim", -1), call.card) if tensor.dim() else ()


def _sort_buffers(tensor: Tensor, dim: int, card: KnownCard) -> Sizes:
    count, length, element = tensor.numel(), tensor.shape[dim], tensor.element_size()
    if not count:
        return
    if length <= _SMALL_SORT:
        # Sorted in place, with one row of indices that is expanded to all rows.
        yield (length * _INDEX,)
        return
    dense = torch.empty_like(tensor, device="meta")
    if dense.stride() != tensor.stride() or tensor.stride(dim) != 1:
        # A copy of the input with contiguous rows.
        yield tensor.nbytes
        if dense.stride(dim) != 1:
            # The results have the input's layout, so the sort writes to contiguous values and indices first.
            yield tensor.nbytes
            yield count * _INDEX
    # Elements of one call: torch counts them with 32 bits.
    count = min(count, _INT_MAX // length * length)
    rows, values, indices = count // length, count * element, count * _INDEX
    if rows == 1 or length >= _LONG_ROW:
        # Row by row, with indices for one row.
        yield length * _INDEX
        yield (_radix_scratch_bytes(length, 8 * element, card, (element, _INDEX)),)
    elif rows < _ROWS_AT_ONCE:
        # All elements by value, then all by row: indices before and after the first sort.
        yield indices
        yield indices
        yield values, _radix_scratch_bytes(count, 8 * element, card, (element, _INDEX))
        yield (_radix_scratch_bytes(count, (rows - 1).bit_length(), card, (_INDEX,)),)
    else:
        # CUB's segmented sort: a second buffer for values and for indices.
        yield indices
        second_buffers = round_up(values, _SCRATCH_ALIGNMENT) + round_up(indices, _SCRATCH_ALIGNMENT)
        yield (second_buffers + _SCRATCH_ALIGNMENT - 1,)


_BLOCK, _BLOCKS_OF_A_MULTIPROCESSOR = 256, 6
_MOST_OF_A_THREAD, _LEAST_OF_A_THREAD = 64, 4
_SEVERAL_BLOCKS = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))
"""Up to so many rows, several blocks of threads search one of so many elements; of more rows, one of 400."""


def topk_buffers(call: OperatorCall) -> Sizes:
    """Counters where several blocks of threads search a row, and a sort of more than 4,096 found (`TensorTopK.cu`)."""
    tensor, k, dim = call.args[0], call.args[1], call.argument(2, "dim", -1)
    yield from _topk_buffers(tensor, k, dim, call.card)
    if call.argument(4, "sorted", True):
        yield from _order_buffers(tensor, k, dim, call.card)


def _topk_buffers(tensor: Tensor, k: int, dim: int, card: KnownCard) -> Sizes:
    count, size = tensor.numel(), tensor.element_size()
    if not count or not k:
        return
    length = tensor.shape[dim] if tensor.dim() else 1
    rows = count // length
    buffers = [] if tensor.is_contiguous() else [tensor.nbytes]
    if length >= next((least for most, least in _SEVERAL_BLOCKS if rows <= most), 400):
        threads = card.multiprocessors * _BLOCKS_OF_A_MULTIPROCESSOR * _BLOCK
        items = max(_LEAST_OF_A_THREAD, min(ceil(count / threads), _MOST_OF_A_THREAD))
        blocks = rows * ceil(length / (items * _BLOCK))
        # Found values, semaphores, ranks, digits that are decided (of 4 or 8 bytes), and counters of each block.
        buffers += [rows * size, rows * 4, 2 * rows * 4, 2 * rows * max(size, 4), blocks * _DIGITS * 2]
        buffers += [blocks * 4, blocks * 4, 1]
    yield tuple(buffers)


def _order_buffers(tensor: Tensor, k: int, dim: int, card: KnownCard) -> Sizes:
    """Buffers of a sort of the elements that were found, which come in the order of the row."""
    if not tensor.numel() or k <= _SMALL_SORT:
        return
    shape = list(tensor.shape)
    shape[dim] = k
    found = torch.empty(shape, dtype=tensor.dtype, device="meta")
    yield from (found.numel() * _INDEX, found.nbytes)
    yield from _sort_buffers(found, dim, card)
    yield (found.numel() * _INDEX,)


def distinct_buffers(call: OperatorCall) -> Sizes:
    """Sorted values, with their places where inverse indices are returned, and CUB's scratch (`UniqueCub.cu`)."""
    tensor = call.args[0]
    count, element = tensor.numel(), tensor.element_size()
    if not tensor.is_contiguous():
        yield tensor.nbytes
    if not count or tensor.dtype == torch.bool:
        # True and False are counted, not sorted.
        return
    sorted_values, indices, scratch_of_runs = tensor.nbytes, count * _INDEX, _run_scratch_bytes(count)
    yield sorted_values
    if call.argument(2, "return_inverse", False):
        # Indices before and after the sort; those before are freed with it.
        yield indices
        yield indices
        yield (_radix_scratch_bytes(count, 8 * element, call.card, (element, _INDEX)),)
        yield FREE_LAST_BUT_ONE
        # The number of the distinct value at each place is a running sum of the places where a new value begins.
        yield indices, scratch_of_runs
    else:
        yield (_radix_scratch_bytes(count, 8 * element, call.card, (element,)),)
    number_of_values = _INDEX
    yield number_of_values
    yield (scratch_of_runs,)


def scan_buffers(call: OperatorCall) -> Sizes:
    """A copy in the type of the result, and counters of a scan of one row (`ScanUtils.cuh`)."""
    tensor, dim = call.args[:2]
    if tensor.dtype != call.out.dtype or not tensor.is_contiguous():
        yield call.out.nbytes
    if tensor.dim() and tensor.numel() == tensor.shape[dim]:
        yield (_run_scratch_bytes(tensor.numel()),)


def _run_scratch_bytes(count: int) -> int:
    """Scratch bytes of CUB's scan of a row: the state of each tile of 1,920."""
    return ceil(count / (128 * 15)) * 2 * _INDEX + _SCRATCH_ALIGNMENT


def multinomial_buffers(call: OperatorCall) -> Sizes:
    """Random numbers to divide by, of which the largest are drawn; or weights, normalized and added up."""
    tensor, count = call.args[:2]
    if call.argument(2, "replacement", False) and count > 1:
        yield from (tensor.nbytes,) * 3
        return
    yield tensor.nbytes
    if count > 1:
        yield tensor.numel() // tensor.shape[-1] * count * tensor.element_size()
        yield from _topk_buffers(tensor, count, -1, call.card)
        yield from _order_buffers(tensor, count, -1, call.card)


def index_copies(call: OperatorCall) -> Sizes:
    """Indices in host memory are copied to the card while the kernel runs."""
    return [index.nbytes for index in call.args[1] if index is not None and not index.is_meta]


def index_put_buffers(call: OperatorCall) -> Sizes:
    """Adding at indices sorts them; without adding, only indices of the host are copied."""
    tensor, indices, added = call.args[:3]
    if not (call.argument(3, "accumulate") or torch.are_deterministic_algorithms_enabled()):
        return index_copies(call)
    places = [at for at, index in enumerate(indices) if index is not None]
    if not places or not tensor.dim() or any(indices[at].dtype in MASKS for at in places):
        # How many places a mask shows is in its values.
        return ()
    return _sorted_and_added(tensor, places, [indices[at] for at in places], added, call.card)


def _sorted_and_added(
    tensor: Tensor, places: Sequence[int], present: Sequence[Tensor], added: Tensor, card: KnownCard
) -> Sizes:
    """`present` index the dimensions `places`."""
    shape: Any = _broadcast_shapes(*(index.shape for index in present))
    count = shape.numel()
    if not tensor.is_contiguous():
        yield tensor.nbytes
    for number, index in enumerate(present):
        # Wrapped to bounds, then times its stride, then added to the others.
        sizes = (count * _INDEX, count * _INDEX) if index.is_meta else (count * _INDEX,)
        if number > 0:
            yield sizes
        else:
            yield from sizes
            if index.is_meta:
                yield FREE_LAST_BUT_ONE
    adjacent = places == list(range(places[0], places[0] + len(places)))
    rest = [size for at, size in enumerate(tensor.shape) if at not in places]
    first = places[0] if adjacent else 0
    if added.numel() and not (expanded := added.expand(*rest[:first], *shape, *rest[first:])).is_contiguous():
        yield expanded.nbytes
    # Their order, sorted and as it was, and the numbers that are sorted along.
    yield from (count * _INDEX,) * 3
    if count:
        # A row spans the dimensions after the last index.
        row = prod(tensor.shape[places[-1] + 1 :])
        highest = (tensor.numel() - 1) // row if row and tensor.numel() else 0
        yield sort_scratch_bytes(count, highest, card)


def embedding_copies(call: OperatorCall) -> Sizes:
    """Non-contiguous indices in more than one dimension are copied."""
    indices = call.args[1]
    if indices.dim() != 1 and not indices.is_contiguous():
        yield indices.nbytes


def embedding_backward_buffers(call: OperatorCall) -> Sizes:
    """Many indices are sorted, and rows of one index summed in parts in fp32."""
    gradient, indices, weights = call.args[:3]
    yield from contiguous_copies(call)
    count = indices.numel()
    if count <= _UNSORTED_INDICES:
        return
    segments = min(count, weights)
    parts = count // _ROWS_A_THREAD + segments
    yield from (count * _INDEX, count * _INDEX)
    yield (count * _INDEX, sort_scratch_bytes(count, weights, call.card))
    yield from (count * _INDEX, _INDEX, segments * _INDEX, segments * _INDEX, _INDEX, parts * _INDEX)
    yield parts * gradient.size(-1) * _bytes_while_summed(gradient)


# Reductions: a sum over many rows is split over the card, and its parts meet in memory. The rules are those of ATen's
# `Reduce.cuh` (read, and equal to recordings wherever one has such a buffer): how an iteration over the input is laid
# out, how threads are laid over it, and whether several blocks of threads share an output. They do where there are too
# few outputs to keep the card busy; then each takes space for its values, and every row of blocks a counter.

_WARP = 32
_MOST_THREADS = 512
_FEWEST_VALUES, _MOST_VALUES = 16, 256
"""Values that a thread adds up."""
_VECTOR = 4
_COUNTER = 4
_INT_MAX = 2**31 - 1


@dataclass(frozen=True)
class Accumulator:
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
        return prod(dim.size for dim in self.dims if not dim.is_reduced)

    @property
    def numel(self) -> int:
        return prod(dim.size for dim in self.dims)

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


def reduction_buffers(
    tensor: Tensor, dims: Sequence[int], values: Accumulator, card: KnownCard
) -> list[int | tuple[int, ...]]:
    """Return the buffers of a reduction over `dims`; over everything if there are none."""
    if not tensor.numel():
        return []
    element = tensor.element_size()
    iteration = _iteration_over(tensor, dims, values.output)
    if iteration.is_small:
        return list(_launch_buffers(iteration, values, element, card))
    buffers: list[int | tuple[int, ...]] = []
    if not values.accumulates_in_output and values.output < values.kept:
        reach = max((dim.size * dim.output for dim in iteration.dims), default=0)
        buffers.append(max(reach, values.output) // values.output * values.kept)
    parts = (_launch_buffers(part, values, element, card) for part in _in_32_bits(iteration))
    return buffers + [part for part in parts if part]


def _launch_buffers(iteration: _Iteration, values: Accumulator, element: int, card: KnownCard) -> tuple[int, ...]:
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
    block_width, block_height = _block_shape(width, height, _MOST_THREADS // vector)
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


def _block_shape(width: int, height: int, threads: int) -> tuple[int, int]:
    """Powers of two, a warp wide where the height needs the rest."""
    wide, high = (min(1 << (max(size, 1).bit_length() - 1), threads) for size in (width, height))
    block_width = min(wide, _WARP)
    block_height = min(high, threads // block_width)
    return min(wide, threads // block_height), block_height


def _output_vector(iteration: _Iteration, element: int) -> int:
    """Return how many outputs a thread works on at once: as many as everything else is a multiple of."""
    at = iteration.reduced
    steps = [dim.input // element for place, dim in enumerate(iteration.dims) if place != at]
    vector = _VECTOR
    for count in (iteration.offset // element, iteration.dims[at].size, *steps):
        while count % vector:
            vector //= 2
    return vector


def _iteration_over(tensor: Tensor, dims: Sequence[int], output: int) -> _Iteration:
    """Lay out the input's dimensions with reduced ones first, the fastest of each kind before others, and joined."""
    element, shape = tensor.element_size(), tensor.shape
    gone = {dim % max(len(shape), 1) for dim in dims} if dims else set(range(len(shape)))
    rows: list[_Dim] = []
    step = output
    for at in reversed(range(len(shape))):
        rows.append(_Dim(shape[at], 0 if at in gone else step, tensor.stride(at) * element))
        step *= 1 if at in gone else shape[at]
    return _Iteration(_join_dims(_sort_dims(rows)), int(tensor.storage_offset()) * element)


def _sort_dims(dims: list[_Dim]) -> list[_Dim]:
    """Sort dimensions as torch does. The order is not total: dimensions that compare equal are skipped."""
    for start in range(1, len(dims)):
        at = start
        for other in reversed(range(start)):
            order = _compare_dims(dims[other], dims[at])
            if order > 0:
                dims[other], dims[at] = dims[at], dims[other]
                at = other
            elif order < 0:
                break
    return dims


def _compare_dims(one: _Dim, other: _Dim) -> int:
    if (one.output == 0) != (other.output == 0):
        return 1 if other.output == 0 else -1
    for a, b in ((one.output, other.output), (one.input, other.input)):
        if a and b and a != b:
            return -1 if a < b else 1
        if a and b and one.size > other.size:
            return 1
    return 0


def _join_dims(dims: list[_Dim]) -> list[_Dim]:
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
    """Halve an iteration where it reaches farthest, until 32-bit offsets reach every part."""
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


_AccumulatorRule = Callable[[Tensor, Tensor, tuple[int, int]], Accumulator]
"""From an input as the kernel reads it, the result, and torch's release."""


def _reduction(rule: _AccumulatorRule, call: OperatorCall, *, widens: bool = True) -> Sizes:
    """A copy in the result's dtype if the kernel `widens` its input, then the buffers of the kernel."""
    tensor = call.args[0]
    answer = call.out[0] if isinstance(call.out, tuple | list) else call.out
    dims = _reduced_dims(call.argument(1, "dim"))
    if dims is None or not isinstance(tensor, Tensor) or not tensor.numel() or not answer.numel():
        return
    if widens and tensor.dtype != answer.dtype and not (tensor.dtype in HALVES and answer.dtype == torch.float32):
        # Only halves are widened within the kernel.
        tensor = torch.empty_like(tensor, dtype=answer.dtype)
        yield tensor.nbytes
    yield from reduction_buffers(tensor, dims, rule(tensor, answer, call.release), call.card)


def _reduced_dims(dim: Any) -> Sequence[int] | None:
    """Return the dimensions, empty for all; None if the second argument makes it no reduction."""
    if isinstance(dim, Tensor):
        return None
    if dim is None or isinstance(dim, bool | float):
        return ()
    return (dim,) if isinstance(dim, int) else tuple(dim)


def _bytes_while_summed(tensor: Tensor) -> int:
    return _SINGLE if tensor.dtype in HALVES else tensor.element_size()


def _accumulate_sum(tensor: Tensor, answer: Tensor, release: tuple[int, int], *, at_once: int = 4) -> Accumulator:
    both_half = tensor.dtype in HALVES and tensor.dtype == answer.dtype
    return Accumulator(_bytes_while_summed(tensor), answer.element_size(), not both_half, at_once)


def _accumulate_wide_sum(tensor: Tensor, answer: Tensor, release: tuple[int, int]) -> Accumulator:
    wide = tensor.element_size() == 2 and release >= WIDE_HALVES_SINCE
    if tensor.dtype == torch.float32 and release >= WIDE_SINGLES_SINCE:
        wide = tensor.numel() // answer.numel() % 1024 == 0
    return _accumulate_sum(tensor, answer, release, at_once=8 if wide else 4)


def _accumulate_extreme(tensor: Tensor, answer: Tensor, release: tuple[int, int]) -> Accumulator:
    both_half = tensor.dtype in HALVES and tensor.dtype == answer.dtype
    return Accumulator(tensor.element_size(), answer.element_size(), not both_half)


def _accumulate_with_index(tensor: Tensor, answer: Tensor, release: tuple[int, int]) -> Accumulator:
    return Accumulator(_VALUE_AND_INDEX, answer.element_size(), accumulates_in_output=False)


def _accumulate_moments(tensor: Tensor, answer: Tensor, release: tuple[int, int]) -> Accumulator:
    """Mean, sum of squares, and the count twice."""
    size = 32 if tensor.dtype == torch.float64 else 16
    return Accumulator(size, answer.element_size(), accumulates_in_output=False, at_once=2)


sum_buffers: Temporaries = partial(_reduction, _accumulate_wide_sum)
mean_buffers: Temporaries = partial(_reduction, _accumulate_sum)
extreme_buffers: Temporaries = partial(_reduction, _accumulate_extreme, widens=False)
argmax_buffers: Temporaries = partial(_reduction, _accumulate_with_index, widens=False)
variance_buffers: Temporaries = partial(_reduction, _accumulate_moments, widens=False)


def max_buffers(call: OperatorCall) -> Sizes:
    """Along a dimension indices are kept too; over everything only the value."""
    return (argmax_buffers if isinstance(call.out, tuple | list) else extreme_buffers)(call)


def loss_buffers(call: OperatorCall, *, sums_result: bool = False) -> Sizes:
    """Buffers of a loss reduced to one number: the losses, or their sum if the result itself held the losses (read)."""
    one, other = call.args[:2]
    if call.out.dim() or not isinstance(other, Tensor) or (one.dim() == 0 and other.dim() == 0):
        return
    losses = torch.empty(_broadcast_shapes(one.shape, other.shape), dtype=call.out.dtype, device=one.device)
    yield call.out.element_size() if sums_result else losses.nbytes
    yield from reduction_buffers(losses, (), _accumulate_wide_sum(losses, call.out, call.release), call.card)
