"""The host beside the device: real CPU tensors, which may hold what came from the device and so is not known.

What the program makes on the host itself, a counter or a schedule, is computed there for real. A copy of what lies on
the device has no values: it is memory of zeros that nobody may read, and that takes address space only. The host
computes with it as the device does, by shapes alone, and what comes of it is unknown too.

A place to come for small tensors that keep their values on the way to the device and back is `to_host`: it would
return the values where `Unknown` knew them. Whatever writes to a tensor then has to pass here first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memviz.runner.predict.marked import Marked
from memviz.runner.predict.refusals import data_needed
from memviz.runner.predict.words import word_for

aten = torch.ops.aten
_SMALL = 1 << 20
"""Bytes: so much is filled with zeros at once; more comes from the system as zeros when it is first touched."""
_FILLERS = {
    *(aten.zero_.default, aten.fill_.Scalar, aten.fill_.Tensor, aten.copy_.default),
    *(aten.normal_.default, aten.uniform_.default, aten.random_.default, aten.exponential_.default),
}
"""They write every element, and look at none."""
_PACK = aten._pack_padded_sequence.default
_FROM_ONE_NUMBER = {aten.fill_.Tensor, aten.index_put_.default, aten.masked_fill_.Tensor}
"""Their number may lie on the device, though the rest lies on the host."""
_WHOLE = (torch.long, torch.int)


class Host:
    """`unknown` is what holds no values."""

    def __init__(self) -> None:
        self.unknown = Marked()

    def is_unknown(self, value: Any) -> bool:
        """Whether this is a tensor whose values nobody knows, wherever it lies."""
        return isinstance(value, Tensor) and (value.is_meta or value in self.unknown)

    def instead(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator that meets the host's unknown, or NotImplemented where torch itself is right."""
        moved = MOVES.get(func)
        if moved is not None:
            out = moved(self, func, args, kwargs)
            if out is not NotImplemented:
                return out
        if not len(self.unknown) or not any(each in self.unknown for each in _tensors((args, kwargs))):
            return NotImplemented
        return self._with_unknown(func, args, kwargs)

    def meets_device(self, func: Any, args: Any) -> Any:
        """An operator of a host's tensor with the device's: as on a card it is an error, but for a single number."""
        tensors = list(_tensors(args))
        first = tensors[0] if tensors else None
        if first is None or first.is_meta:
            return NotImplemented
        if func in _FROM_ONE_NUMBER and all(each.dim() == 0 for each in tensors if each.is_meta):
            self._lose(first)
            return first
        if first.dim() == 0 and not func._schema.is_mutable:
            return NotImplemented
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, cpu and cuda:0! "
            f"(in {word_for(func)})"
        )

    def _with_unknown(self, func: Any, args: Any, kwargs: Any) -> Any:
        if any(each.is_meta for each in _tensors((args, kwargs))):
            self._refuse_to_read(func, args)
            return NotImplemented
        if _is_view(func) or _goes_to_device(kwargs) or _only_its_shape_counts(func, args):
            return NotImplemented
        if func in _FILLERS and not any(each in self.unknown for each in _tensors((args[1:], kwargs))):
            if _fills_its_storage(args[0]):
                self.unknown.remove(args[0])
            return NotImplemented
        self._refuse_to_read(func, args)
        return self._by_shapes(func, args, kwargs)

    def _refuse_to_read(self, func: Any, args: Any) -> None:
        """Whole numbers may be unknown where they only say which elements, not how many."""
        if func is aten.index.Tensor:
            reads = any(each in self.unknown and each.dtype not in _WHOLE for each in args[1])
        elif func is _PACK:
            reads = args[1] in self.unknown
        else:
            reads = _is_sized_by_values(func) and any(each in self.unknown for each in _tensors(args))
        if reads:
            raise data_needed(word_for(func))

    def _by_shapes(self, func: Any, args: Any, kwargs: Any) -> Any:
        twins: dict[int, Tensor] = {}
        originals: dict[int, Tensor] = {}

        def shape_of(value: Tensor) -> Tensor:
            twin = twins.get(id(value))
            if twin is None:
                twin = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
                twins[id(value)], originals[id(twin)] = twin, value
            return twin

        named = {key: "meta" if key == "device" else each for key, each in kwargs.items() if key != "pin_memory"}
        out = func(*_mapped(shape_of, args), **_mapped(shape_of, named))
        for each in _written_by(func, args, kwargs):
            if each.shape != twins[id(each)].shape:
                each.resize_(twins[id(each)].shape)
            self.unknown.add(each)
        return _mapped(lambda each: originals[id(each)] if id(each) in originals else self.blank_like(each), out)

    def blank_like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """On the host, without values, and lying as `torch.empty_like` would lay it."""
        dtype = tensor.dtype if dtype is None else dtype
        strides = torch.empty_like(tensor, device="meta").stride()
        blank = torch.empty(0, dtype=dtype)
        shape = torch.empty_strided(tensor.shape, strides, dtype=dtype, device="meta")
        storage = _zeros(shape.untyped_storage().nbytes())
        blank.set_(storage, 0, tensor.shape, strides)
        self.unknown.add(blank)
        return blank

    def to_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`tensor.to("cpu")`."""
        device = kwargs.get("device")
        if device is None or device.type != "cpu" or not is_on_device(args[0]):
            return NotImplemented
        return self.blank_like(args[0], kwargs.get("dtype"))

    def into_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`host_tensor.copy_(device_tensor)`."""
        if is_on_device(args[0]) or not is_on_device(args[1]):
            return NotImplemented
        self._lose(args[0])
        return args[0]

    def all_into_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`torch._foreach_copy_(host_tensors, device_tensors)`."""
        if not args[0] or is_on_device(args[0][0]) or not is_on_device(args[1][0]):
            return NotImplemented
        for each in args[0]:
            self._lose(each)
        return None

    def _lose(self, tensor: Tensor) -> None:
        if tensor.untyped_storage().nbytes() <= _SMALL:
            tensor.zero_()
        self.unknown.add(tensor)


def is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _zeros(count: int) -> torch.UntypedStorage:
    if count > _SMALL:
        return torch.from_numpy(np.zeros(count, dtype=np.uint8)).untyped_storage()
    return torch.zeros(count, dtype=torch.uint8).untyped_storage()


def _written_by(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    for at, each in enumerate(func._schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            yield from _tensors(kwargs[each.name] if each.name in kwargs else args[at] if at < len(args) else ())


def _only_its_shape_counts(func: Any, args: Any) -> bool:
    """`zeros_like(unknown)` is known; and a change of shape in place leaves the memory what it was."""
    name: str = func.overloadpacket.__name__
    if torch.Tag.inplace_view in func.tags:
        return True
    return name.startswith("new_") or name.endswith("_like") and args[0].untyped_storage().nbytes() <= _SMALL


def _is_sized_by_values(func: Any) -> bool:
    return bool(torch.Tag.dynamic_output_shape in func.tags)


def _goes_to_device(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def _is_view(func: Any) -> bool:
    aliases = [each.alias_info for each in func._schema.returns]
    return bool(aliases) and all(each is not None and not each.is_write for each in aliases)


def _fills_its_storage(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(tuple(value.values()))


def _mapped(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        return type(value)([_mapped(change, each) for each in value])
    if isinstance(value, dict):
        return {key: _mapped(change, each) for key, each in value.items()}
    return value


MOVES: dict[Any, Callable[[Host, Any, Any, Any], Any]] = {
    aten._to_copy.default: Host.to_host,
    aten.copy_.default: Host.into_host,
    aten._foreach_copy_.default: Host.all_into_host,
}
