"""Host memory: real CPU tensors, whose values may be unknown because they came from the device.

What the program computes on the host itself is computed for real. A copy from the device, and a large
floating-point tensor such as a weight, has no values: its memory takes address space only, and the host computes
with it by shapes alone. Small tensors of the device bring along values that are known (`known_values`). Pinned
memory follows torch's `CachingHostAllocator.h`: blocks of the next power of two, kept until the program ends.
`HostMemory` counts the bytes of all of them, as a program with a card would have them.
"""

from __future__ import annotations

import mmap
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from memviz.memory import own_memory
from memviz.predictor.assumptions import NotPredicted, data_needed, name_for_users, not_predicted
from memviz.predictor.compat import Patches, without_functions, without_modes
from memviz.predictor.known_values import (
    CHOSEN_EVENLY,
    INTEGER_ARITHMETIC,
    ROUTED_OPERATORS,
    ByStorage,
    DefaultValues,
    KnownValues,
    MarkedStorages,
    UniformRouting,
    has_default,
    may_be_known_from_unknown,
)
from memviz.predictor.ledger import Ledger
from memviz.predictor.shapes import (
    SPARSE,
    any_on_device,
    fills_its_storage,
    is_dense,
    is_on_device,
    lies_on_device,
    map_tensors,
    parts_of,
    tensors_of,
    written_arguments,
)
from memviz.predictor.workspaces import OperatorCall, Sizes
from memviz.trace.memviz_labels import ChildMemory
from memviz.trace.model import HostBytes, Ints8


class PinnedHost(MarkedStorages):
    """Blocks of torch's pinned allocator; `settings` are the allocator's that concern them, as texts."""

    def __init__(self, settings: Mapping[str, str], ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger
        self._changes: list[tuple[int, int]] | None = None
        limits = ("pinned_max_round_threshold_mb", "pinned_max_cached_size_mb")
        self._most_rounded, self._most_kept = (int(settings.get(name, _NO_LIMIT)) << 20 for name in limits)
        self._used: Counter[int] = Counter()
        """Blocks of each size, now."""
        self._made: Counter[int] = Counter()
        self.retained_bytes = 0
        """Pinned bytes that are allocated and stay allocated."""

    @property
    def used(self) -> dict[int, int]:
        return {size: count for size, count in self._used.items() if count}

    def _block_size(self, size: int) -> int:
        return 1 << (size - 1).bit_length() if 0 < size <= min(self._most_rounded, self._most_kept) else size

    @property
    def changes(self) -> list[tuple[int, int]]:
        """Time and bytes of each tensor that was pinned, or freed (below 0), since this was first read."""
        if self._changes is None:
            self._changes = []
        return self._changes

    def add(self, tensor: Tensor) -> None:
        super().add(tensor)
        self._take(tensor.untyped_storage().nbytes())

    def repeat(self, change: int) -> None:
        """Count bytes that a repeated layer would pin, or free (below 0)."""
        self.bytes += change
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        if change > 0:
            self._take(change)
        else:
            self._give_back(-change)

    def _take(self, size: int) -> None:
        block = self._block_size(size)
        self._used[block] += 1
        if block > self._most_kept or self._used[block] > self._made[block]:
            self._made[block] += 1
            self.retained_bytes += block
        self._note_change(size)

    def _give_back(self, size: int) -> None:
        block = self._block_size(size)
        self._used[block] -= 1
        self.retained_bytes -= block * (block > self._most_kept)
        self._note_change(-size)

    def _note_change(self, change: int) -> None:
        if self._changes is not None:
            self._changes.append((self._ledger.now, change))

    def _drop(self, key: int) -> int | None:
        size = super()._drop(key)
        if size is not None:
            self._give_back(size)
        return size


_NO_LIMIT = 1 << 40
"""MiB"""


def _different_devices(func: Any, first: str, second: str) -> RuntimeError:
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}! "
        f"(in {name_for_users(func)})"
    )


@dataclass(frozen=True)
class HostPeak:
    """Memory of the CPU tensors that a process makes, when it is highest, and of its data loader workers."""

    pageable_bytes: int = 0
    pinned_bytes: int = 0
    """Blocks of torch's pinned allocator, those that wait for reuse included."""
    workers: ChildMemory = ChildMemory()

    @property
    def bytes(self) -> int:
        return self.pageable_bytes + self.pinned_bytes

    @property
    def total_bytes(self) -> int:
        """Bytes of the tensors and, as far as they are known, of the workers."""
        return self.bytes + (self.workers.bytes or 0)

    def fits(self, memory_bytes: int | None, processes: int) -> bool | None:
        """Return whether equal processes fit one machine, each at its highest; None without a size."""
        return None if memory_bytes is None else processes * self.total_bytes <= memory_bytes


class LoaderWorkers:
    """Memory of the worker processes of `DataLoader(num_workers=N)`.

    They run in a prediction as well, so what each has for itself (Python objects of a data set that a fork copies by
    counting references to them, or a whole interpreter that was spawned) is read from the system. Batches in transit
    are in shared memory: `prefetch_factor` for each worker.
    """

    def __init__(self) -> None:
        self.peak = ChildMemory()
        self._now: WeakKeyDictionary[Any, ChildMemory] = WeakKeyDictionary()

    def follow(self, patches: Patches) -> None:
        iterator: Any = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        process, shut_down = iterator._process_data, iterator._shutdown_workers

        def processed(loader: Any, *args: Any) -> Any:
            batch = process(loader, *args)
            # Seldom, since it takes longer than some loaders need for a batch.
            if loader._rcvd_idx & (loader._rcvd_idx - 1) == 0:
                self._see(loader, sum(map(_bytes, tensors_of(batch))))
            return batch

        def shut(loader: Any) -> None:
            if loader in self._now and not loader._shutdown:
                self._see(loader, 0)
            self._now.pop(loader, None)
            shut_down(loader)

        patches.replace(iterator, "_process_data", processed)
        patches.replace(iterator, "_shutdown_workers", shut)

    def _see(self, loader: Any, batch_bytes: int) -> None:
        before = self._now.get(loader, ChildMemory())
        own_bytes = _sum_if_known([own_memory(worker.pid) for worker in loader._workers])
        if own_bytes is not None and before.own_bytes is not None:
            own_bytes = max(own_bytes, before.own_bytes)
        on_the_way = loader._prefetch_factor * loader._num_workers * batch_bytes
        count = len(loader._workers)
        self._now[loader] = ChildMemory(count, own_bytes, max(on_the_way, before.batch_bytes))
        now = list(self._now.values())
        own_bytes = _sum_if_known([one.own_bytes for one in now])
        together = ChildMemory(sum(one.count for one in now), own_bytes, sum(one.batch_bytes for one in now))
        self.peak = max(self.peak, together, key=lambda one: (one.bytes or 0, one.count))


def _sum_if_known(sizes: Sequence[int | None]) -> int | None:
    return None if None in sizes else sum(size or 0 for size in sizes)


class _Pageable(MarkedStorages):
    def __init__(self, before_drop: Callable[[], None], after_drop: Callable[[], None]) -> None:
        super().__init__()
        self._before_drop, self._after_drop = before_drop, after_drop

    def _drop(self, key: int) -> int | None:
        if key not in self._facts:
            return None
        self._before_drop()
        size = super()._drop(key)
        self._after_drop()
        return size


class HostMemory:
    """Bytes of CPU tensors: pageable ones as long as they live, pinned ones in blocks that torch keeps."""

    def __init__(self, pinned: PinnedHost, ledger: Ledger) -> None:
        self._pageable = _Pageable(self._settle, self._note)
        self._pinned = pinned
        self._ledger = ledger
        self._pending: int | None = None
        """When a tensor was made that may yet turn out to be pinned."""
        self._peak = HostPeak()
        self.workers = LoaderWorkers()
        self.loaded = MarkedStorages()
        self._rows: list[tuple[int, ...]] = []
        """Time, bytes of all tensors, of pinned blocks, of the tensors in these, and of loaded ones."""
        self._grain = 1

    @property
    def peak(self) -> HostPeak:
        self._settle()
        return replace(self._peak, workers=self.workers.peak)

    def see(self, out: Any) -> None:
        """Count the storages of an operator's results that are new, or that it resized."""
        for tensor in tensors_of(out):
            if tensor.is_meta or tensor.layout is not torch.strided or tensor in self._pinned:
                continue
            try:
                size = tensor.untyped_storage().nbytes()
            except (NotImplementedError, RuntimeError):
                # A subclass of torch's own without a storage.
                continue
            if size and self._pageable.of(tensor) != size:
                self._settle()
                self._pageable.add(tensor)
                self._pending = self._ledger.now

    def pin(self, tensor: Tensor) -> None:
        """Count a tensor as pinned, which was seen as pageable when it was made."""
        self._pending = None
        self._pageable.remove(tensor)
        self._pinned.add(tensor)
        self._note()

    def repeat_pinned(self, change: int) -> None:
        """Count bytes that a repeated layer would pin, or free (below 0)."""
        self._pinned.repeat(change)
        if change > 0:
            self._note()

    def forget(self, tensor: Tensor) -> None:
        """Count a tensor no longer, though it is kept."""
        self._pageable.remove(tensor)

    def note_loaded(self, tensor: Tensor) -> None:
        """Note that a tensor was read from a file of weights."""
        if not tensor.is_meta and tensor not in self.loaded:
            self._settle()
            self.loaded.add(tensor)
            self._note()

    def _settle(self) -> None:
        if self._pending is not None:
            self._note(self._pending)
            self._pending = None

    def _note(self, now: int | None = None) -> None:
        pageable, pinned = self._pageable.bytes, self._pinned.retained_bytes
        row = (self._ledger.now if now is None else now, pageable + pinned, pinned, self._pinned.bytes)
        self._add((*row, self.loaded.bytes))
        if len(self._rows) > _MOST_ROWS:
            rows, self._rows = self._rows, []
            self._grain *= 2
            for earlier in rows:
                self._add(earlier)
        # The last of equal peaks, which has more pinned bytes.
        if pageable + pinned >= self._peak.bytes:
            self._peak = HostPeak(pageable, pinned)

    def _add(self, row: tuple[int, ...]) -> None:
        """Keep the highest and the last row of each stretch of time."""
        rows, stretch = self._rows, row[0] // self._grain
        if len(rows) > 1 and rows[-2][0] // self._grain == stretch:
            if rows[-1][1] >= rows[-2][1]:
                rows[-2] = rows[-1]
            rows.pop()
        rows.append(row)

    def columns(self, times: Ints8) -> HostBytes | None:
        self._settle()
        if not self._rows:
            return None
        time, *sizes = np.array(self._rows, dtype=np.int64).T
        order = np.argsort(time, kind="stable")
        event = np.searchsorted(np.maximum.accumulate(times), time[order], side="right")
        return HostBytes.typed(event, *(size[order] for size in sizes))


_MOST_ROWS = 1 << 16


aten = torch.ops.aten
ON_ONE_DEVICE = {
    *(aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.mv, aten.addmv, aten.convolution, aten.native_layer_norm),
    *(aten.gather, aten.scatter, aten.scatter_add, aten.index_select, aten.take, aten.bucketize, aten.searchsorted),
    *(aten.embedding, aten._embedding_bag, aten._embedding_bag_forward_only, aten._cdist_forward, aten.isin),
    *(aten._scaled_dot_product_flash_attention, aten._scaled_dot_product_efficient_attention),
    *(aten._scaled_dot_product_cudnn_attention,),
}
"""Operators of the card whose rules for shapes take a tensor of the host too."""
_SMALL = 1 << 20
"""Bytes up to which a tensor has values."""
_FILLED = 1 << 16
"""Bytes that are filled with zeros at once; larger memory comes from the system as zeros when first touched."""
_FILLERS = {
    *(aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.copy_.default),
    *(aten.normal_.default, aten.uniform_.default, aten.random_.default, aten.exponential_.default),
}
"""Operators that write every element and read none."""
_FROM_ONE_NUMBER = {aten.fill_.Tensor, aten.index_put_.default, aten.masked_fill_.Tensor}
"""Operators on the host that may read one number from the device."""


class Host:
    """`unknown` are host tensors without values, `known` the values of device tensors."""

    def __init__(self) -> None:
        self.unknown = MarkedStorages()
        self.on_meta = MarkedStorages()
        """Tensors that the program itself put on the `meta` device; they take no memory anywhere."""
        self.known = KnownValues(self.unknown.__contains__)
        self.stand_ins = DefaultValues(self.values)
        self.shares = UniformRouting(self.values)
        self._even: ByStorage[bool] = ByStorage()
        """Tensors with unknown values here, whose memory holds uniform shares."""
        self.arrived_bytes = 0
        """Copied here from the device."""
        self.to_file: Callable[[Tensor], Tensor] | None = None
        """While torch.save writes a file: what it writes in the place of a tensor."""

    def values(self, tensor: Tensor) -> Tensor | None:
        """Return the values of a tensor of the host or the device, if known."""
        if tensor.is_meta:
            return self.known.of(tensor)
        return None if tensor in self.unknown else tensor

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any, *, writes: bool, may_say: bool = True) -> None:
        """Update known values after an operator of the device; `may_say` is the answer of `may_say_of_unknown`."""
        if may_say and func in INTEGER_ARITHMETIC:
            # Nothing times a whole number is nothing, and counts are added up; of others nothing follows.
            may_say = not out.is_floating_point()
        if not may_say and args and is_on_device(args[0]) and args[0] not in self.known:
            # The usual case: unknown values become others.
            if writes:
                self.known.forget_written(func, args, kwargs)
            return
        assumed = self.shares.follow(func, args, out) if func in ROUTED_OPERATORS else None
        self.stand_ins.follow(func, args, out)
        self.known.follow(func, args, kwargs, out, writes=writes)
        if assumed is not None:
            self._assume(out, assumed)

    def _assume(self, out: Tensor, values: Tensor) -> None:
        """Store assumed counts as the values of a result that is not computed."""
        if not fills_its_storage(out) or not self.is_unknown(out):
            return
        if out.is_meta:
            self.known.put(out, values, CHOSEN_EVENLY)
        else:
            out.copy_(values)
            self._even.put(out, True)

    def counted(self, func: Any, args: Any, out: Any) -> None:
        """Update assumed values after an operator whose result has an assumed length."""
        self.stand_ins.follow(func, args, out)
        if func in ROUTED_OPERATORS and (assumed := self.shares.follow(func, args, out)) is not None:
            self._assume(out, assumed)

    def even_shares(self, tensor: Tensor) -> Tensor | None:
        if tensor.is_meta:
            return self.known.of(tensor) if self.known.reason(tensor) == CHOSEN_EVENLY else None
        return tensor if tensor in self._even and tensor in self.unknown else None

    def default_of(self, tensor: Tensor) -> int | None:
        """Return the default answer of a single unknown number or condition, if there is any."""
        share = self.shares.places_in(tensor) if tensor.dtype is torch.bool and tensor.numel() == 1 else None
        return self.stand_ins.of(tensor) if share is None else share

    def is_unknown(self, value: Any) -> bool:
        """Return whether this is a tensor with unknown values, on the host or the device."""
        return isinstance(value, Tensor) and not self.known.is_known(value)

    def override(self, func: Any, args: Any, kwargs: Any, *, moves: bool = True) -> Any:
        """Return the result of an operator on host tensors without values, or NotImplemented to let torch run it.

        `moves` is False if the operator is none of `MOVES`.
        """
        if not moves and not len(self.unknown) and args and is_on_device(args[0]):
            # The usual case: an operator on device tensors.
            return NotImplemented
        moved = MOVES.get(func) if moves else None
        if moved is not None:
            out = moved(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if len(self.unknown) and any(tensor in self.unknown for tensor in tensors_of((args, kwargs))):
            return self._with_unknown(func, args, kwargs)
        return self._without_large_values(func, args, kwargs)

    def _without_large_values(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Skip values of large tensors: nothing reads them, and large weights would take minutes and host memory."""
        target = args[0] if args and _is_mutable(func) else None
        if isinstance(target, Tensor):
            if not target.is_meta and _is_large(target) and not any(t.is_meta for t in tensors_of((args, kwargs))):
                return self._by_shapes(func, args, kwargs)
            return NotImplemented
        if func in _LARGE_FROM_NOTHING:
            return NotImplemented if _goes_to_device(kwargs) else self._make_large(func, args, kwargs)
        is_large = False
        for tensor in tensors_of((args, kwargs)):
            # Most meet the device's own, and lists of them are long. Sizes of sparse tensors depend on values.
            if tensor.is_meta or tensor.layout is not torch.strided:
                return NotImplemented
            is_large = is_large or _is_large(tensor)
        if not is_large or _goes_to_device(kwargs) or any(one.alias_info is not None for one in func._schema.returns):
            return NotImplemented
        # Large results of large known tensors, such as those of a file, have no values either; where values decide how
        # large they are, torch computes them.
        try:
            out = self._by_shapes(func, args, kwargs)
        except NotPredicted:
            return NotImplemented
        results = list(tensors_of(out))
        return out if results and all(map(_is_large, results)) else NotImplemented

    def _make_large(self, func: Any, args: Any, kwargs: Any) -> Any:
        if args and isinstance(args[0], Tensor) and args[0].is_meta:
            return NotImplemented
        shape_kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "pin_memory", "generator")}
        like = func.overloadpacket.__name__.endswith("_like") or func.overloadpacket.__name__.startswith("new_")
        shape_args = (torch.empty_like(args[0], device="meta"), *args[1:]) if like else args
        shape = func.overloadpacket(*shape_args, **shape_kwargs, device="meta")
        if not _is_large(shape):
            return NotImplemented
        blank = self.blank_like(shape)
        if "zeros" in func.overloadpacket.__name__:
            # Its memory is zeros until something is written to it.
            self.unknown.remove(blank)
        return blank

    def mixed_devices(self, func: Any, args: Any, card: int) -> Any:
        """Handle tensors of two devices: as on a card that is an error, unless one is a single number."""
        tensors = list(tensors_of(args))
        first = tensors[0] if tensors else None
        if (
            first is None
            or first.is_meta
            and (
                func.overloadpacket not in ON_ONE_DEVICE
                or all(tensor.is_meta or not tensor.dim() for tensor in tensors)
            )
        ):
            return NotImplemented
        if first.is_meta:
            raise _different_devices(func, f"cuda:{card}", "cpu")
        if func in _FROM_ONE_NUMBER and all(tensor.dim() == 0 for tensor in tensors if tensor.is_meta):
            self._lose(first)
            return first
        if first.dim() == 0 and not _is_mutable(func):
            return NotImplemented
        raise _different_devices(func, "cpu", f"cuda:{card}")

    def _with_unknown(self, func: Any, args: Any, kwargs: Any) -> Any:
        if any_on_device((args, kwargs)):
            self._refuse_to_read(func, args)
            return NotImplemented
        if _is_view(func) or _goes_to_device(kwargs) or _only_its_shape_counts(func, args):
            return NotImplemented
        if func in _FILLERS and not any(tensor in self.unknown for tensor in tensors_of((args[1:], kwargs))):
            if _is_large(args[0]):
                return self._by_shapes(func, args, kwargs)
            if fills_its_storage(args[0]):
                self.unknown.remove(args[0])
            return NotImplemented
        if func is aten.copy_.default and args[0].shape == args[1].shape and fills_its_storage(args[0]):
            # The usual case, in which torch's rule would say that the shape stays.
            self.unknown.add(args[0])
            self.stand_ins.follow(func, args, args[0])
            return args[0]
        if any(tensor.layout in SPARSE for tensor in tensors_of((args, kwargs))):
            # Where its elements are is known, and decides sizes.
            out = func(*args, **kwargs)
            for tensor in filter(torch.is_floating_point, tensors_of(out)):
                self.unknown.add(parts_of(tensor)[-1] if tensor.layout in SPARSE else tensor)
            return out
        self._refuse_to_read(func, args)
        return self._by_shapes(func, args, kwargs)

    def _refuse_to_read(self, func: Any, args: Any) -> None:
        """Stop the program if unknown values decide the size of the result; unknown indices do not."""
        if func is aten.index.Tensor:
            whole = (torch.long, torch.int)
            reads = any(index in self.unknown and index.dtype not in whole for index in args[1])
        elif func is aten._pack_padded_sequence.default:
            reads = args[1] in self.unknown
        else:
            reads = torch.Tag.dynamic_output_shape in func.tags and any(
                tensor in self.unknown for tensor in tensors_of(args)
            )
        if reads:
            raise data_needed(name_for_users(func))

    def _by_shapes(self, func: Any, args: Any, kwargs: Any) -> Any:
        if any(tensor.is_quantized for tensor in tensors_of((args, kwargs))):
            return self._run_on_zeros(func, args, kwargs)
        if func is aten.clone.default:
            # The usual case, as of weights that are pinned.
            copied = self.blank_like(args[0], **kwargs)
            self.stand_ins.follow(func, args, copied)
            return copied
        twins: dict[int, Tensor] = {}
        originals: dict[int, Tensor] = {}

        def shape_of(value: Tensor) -> Tensor:
            twin = twins.get(id(value))
            if twin is None:
                twin = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                twins[id(value)], originals[id(twin)] = twin, value
            return twin

        shape_kwargs = {key: value for key, value in kwargs.items() if key not in ("pin_memory", "generator")}
        if "device" in shape_kwargs:
            shape_kwargs["device"] = "meta"
        try:
            out = func(*map_tensors(shape_of, args), **map_tensors(shape_of, shape_kwargs))
        except NotImplementedError as error:
            is_unknown = any(tensor in self.unknown for tensor in tensors_of((args, kwargs)))
            if is_unknown and torch.Tag.dynamic_output_shape not in func.tags:
                # torch knows its shapes only by running it.
                return self._run_on_zeros(func, args, kwargs)
            why = "the size of its result depends on the values of a large tensor, which are not computed"
            raise not_predicted(name_for_users(func), why) from error
        if any(result.is_quantized for result in tensors_of(out)):
            return self._run_on_zeros(func, args, kwargs)
        for written in written_arguments(func, args, kwargs):
            if written.shape != twins[id(written)].shape:
                written.resize_(twins[id(written)].shape)
            self.unknown.add(written)
        results = map_tensors(lambda twin: originals[id(twin)] if id(twin) in originals else self.blank_like(twin), out)
        self.stand_ins.follow(func, args, results)
        return results

    def _run_on_zeros(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on the zeros that stand in for values."""
        out = func(*args, **kwargs)
        for result in tensors_of(out):
            self.unknown.add(result)
        return out

    def blank_like(self, tensor: Tensor, **changes: Any) -> Tensor:
        """Return a host tensor without values, with the layout of `torch.empty_like`."""
        dtype = changes.get("dtype") or tensor.dtype
        strides = _strides_like(tuple(tensor.shape), tensor.stride(), changes.get("memory_format"))
        blank = torch.empty(0, dtype=dtype, device="cpu")
        shape = torch.empty_strided(tensor.shape, strides, dtype=dtype, device="meta")
        storage = _zero_storage(shape.untyped_storage().nbytes())
        blank.set_(storage, 0, tensor.shape, strides)
        self.unknown.add(blank)
        return blank

    def to_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`tensor.to("cpu")`."""
        device = kwargs.get("device")
        if device is None or device.type != "cpu" or not lies_on_device(args[0]):
            return NotImplemented
        self.arrived_bytes += _bytes(args[0])
        changes = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        values = self.known.of(args[0])
        if values is not None and not _is_large(values):
            if self.even_shares(args[0]) is not None:
                self._assume(blank := self.blank_like(args[0], **changes), values)
                return blank
            return func(values, **changes)
        blank = self.blank_like(args[0], **changes)
        self.stand_ins.copy(args[0], blank)
        return blank

    def into_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`host_tensor.copy_(device_tensor)`."""
        if lies_on_device(args[0]) or not lies_on_device(args[1]):
            return NotImplemented
        self.arrived_bytes += _bytes(args[1])
        values = self.known.of(args[1])
        if values is None or _is_large(args[0]):
            self._lose(args[0])
        elif args[0] not in self.unknown or fills_its_storage(args[0]):
            self.unknown.remove(args[0])
            args[0].copy_(values)
        return args[0]

    def all_into_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`torch._foreach_copy_(host_tensors, device_tensors)`."""
        if not args[0] or lies_on_device(args[0][0]) or not lies_on_device(args[1][0]):
            return NotImplemented
        self.arrived_bytes += sum(map(_bytes, args[1]))
        for tensor in args[0]:
            self._lose(tensor)
        return None

    def forget_values(self, tensor: Tensor) -> None:
        """Note that the values of a tensor of the host or the device are not known any more."""
        if tensor.is_meta:
            self.known.forget(tensor)
        else:
            self.unknown.add(tensor)

    def _lose(self, tensor: Tensor) -> None:
        if tensor.untyped_storage().nbytes() <= _SMALL:
            tensor.zero_()
        self.unknown.add(tensor)


_LARGE_FROM_NOTHING = {
    *(aten.randn.default, aten.randn.generator, aten.rand.default, aten.rand.generator, aten.ones.default),
    *(aten.zeros.default, aten.full.default, aten.normal.float_float, aten.linspace.default),
    *(aten.randn_like.default, aten.rand_like.default, aten.ones_like.default, aten.zeros_like.default),
    *(aten.full_like.default, aten.new_zeros.default, aten.new_ones.default, aten.new_full.default),
}


def may_say_of_unknown(func: Any) -> bool:
    """Return whether a result may have known values where the arguments have none."""
    return may_be_known_from_unknown(func) or has_default(func) or func in ROUTED_OPERATORS


@lru_cache(maxsize=4096)
def _strides_like(shape: tuple[int, ...], strides: tuple[int, ...], layout: torch.memory_format | None) -> Any:
    """Return the strides of `torch.empty_like`, cached because torch's rule for them is slow Python."""
    with without_functions(), without_modes():
        return torch.empty_like(torch.empty_strided(shape, strides, device="meta"), memory_format=layout).stride()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _is_large(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and _bytes(tensor) > _SMALL


def _zero_storage(count: int) -> torch.UntypedStorage:
    if count <= _FILLED:
        return torch.zeros(count, dtype=torch.uint8, device="cpu").untyped_storage()
    if sys.platform == "win32":
        return torch.from_numpy(np.zeros(count, dtype=np.uint8)).untyped_storage()
    # Not from the C library: where its heap has a hole of that size, it fills the hole with zeros, gigabytes of them.
    # No swap space is reserved for memory that is never written.
    unreserved = getattr(mmap, "MAP_NORESERVE", 0)
    mapped = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | unreserved)
    return torch.from_numpy(np.frombuffer(mapped, dtype=np.uint8)).untyped_storage()


def _only_its_shape_counts(func: Any, args: Any) -> bool:
    """`zeros_like(unknown)` is known; and a change of shape in place leaves the memory what it was."""
    name: str = func.overloadpacket.__name__
    is_small_like = name.endswith("_like") and args[0].untyped_storage().nbytes() <= _SMALL
    return torch.Tag.inplace_view in func.tags or name.startswith("new_") or is_small_like


def _goes_to_device(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


# Cached, since torch makes a schema anew at each access.


@cache
def _is_mutable(func: Any) -> bool:
    return bool(func._schema.is_mutable)


@cache
def _is_view(func: Any) -> bool:
    aliases = [returned.alias_info for returned in func._schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


MOVES: dict[Any, Callable[[Host, Any, Any, Any], Any]] = {
    aten._to_copy.default: Host.to_host,
    aten.copy_.default: Host.into_host,
    aten._foreach_copy_.default: Host.all_into_host,
}


# Copies between host and card need a contiguous buffer where the two sides differ in layout or type
# (`copy_kernel_cuda`).


def copy_to_new(call: OperatorCall) -> Sizes:
    """`tensor.to(device)`."""
    return _staged_copy(call.out, call.args[0], waits=not call.kwargs.get("non_blocking"))


def copy_to_existing(call: OperatorCall) -> Sizes:
    """`tensor.copy_(other)`; a number is part of the kernel's arguments."""
    if not isinstance(call.args[1], Tensor):
        return ()
    return _staged_copy(*call.args[:2], waits=not call.argument(2, "non_blocking"))


def copy_lists(call: OperatorCall) -> Iterator[tuple[int, ...]]:
    """`torch._foreach_copy_` copies one tensor after the other."""
    for to, source in zip(*call.args[:2], strict=True):
        yield tuple(_staged_copy(to, source, waits=not call.argument(2, "non_blocking")))


def _staged_copy(to: Tensor, source: Tensor, *, waits: bool) -> Iterator[int]:
    if to.is_meta == source.is_meta or not to.numel() or _copies_directly(to, source):
        return
    changes_on_card = not waits and to.dtype != source.dtype
    if to.is_meta:
        # What changes on the card is staged in the host's dtype.
        if changes_on_card:
            yield to.numel() * source.element_size()
        elif not to.is_contiguous():
            yield to.nbytes
        return
    if changes_on_card:
        source = torch.empty_like(source, dtype=to.dtype, device="meta")
        yield source.nbytes
    if source.shape != to.shape or not source.is_contiguous():
        yield to.numel() * source.element_size()


def _copies_directly(to: Tensor, source: Tensor) -> bool:
    if to.dtype != source.dtype:
        return False
    if to.numel() == 1:
        return True
    # Strides of dimensions of one element do not matter.
    steps, source_steps = (
        [step for step, size in zip(one.stride(), one.shape, strict=True) if size > 1] for one in (to, source)
    )
    return to.shape == source.shape and steps == source_steps and is_dense(to)
