"""What a program asks of a tensor that torch itself would answer for a tensor without data, and wrongly.

Where it lies, where its memory begins, and its values: those it can have printed, and a number that it takes from it
stands in for the real one; whatever else looks at values is refused here or, for operators, in the mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from memviz.runner.predict.caller import frames
from memviz.runner.predict.marked import Marked
from memviz.runner.predict.named_devices import SAID
from memviz.runner.predict.refusals import REMEDY, data_needed
from memviz.runner.predict.stand_in import UnknownNumber
from memviz.runner.predict.values import tensors_among

if TYPE_CHECKING:
    from memviz.runner.predict.device import PretendedDevice

Answer = Callable[[Any, Any], Any]
"""Arguments, keyword arguments -> the answer, or NotImplemented where torch's own is right."""
_ASKED_OF_VALUES = {
    Tensor.numpy: ".numpy()",
    Tensor.__array__: "numpy",
    Tensor.__dlpack__: "DLPack",
}
_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
_SIZED_BY_NUMBERS = (torch.arange, torch.range, torch.nn.functional.interpolate)
_KEEP_IT_THERE = "torch.stack keeps the numbers on the device."


_DECISIONS = {
    Tensor.__bool__: "bool(), as in a condition,",
    Tensor.__float__: "float()",
    Tensor.__int__: "int()",
    Tensor.__index__: "An index or a size",
    Tensor.__complex__: "complex()",
}
_COPY = copy.__file__


class TensorWords:
    def __init__(self, device: PretendedDevice) -> None:
        self._recorder = device.recorder
        self._host = device.recorder.host
        self._stated = device.recorder.stated
        self._pinned = Marked()
        self.answers: dict[Any, Answer] = {
            torch.device: _device_itself,
            **{_getter(name): answer for name, answer in _ATTRIBUTES.items()},
            Tensor.get_device: _if_ours(lambda tensor: 0),
            Tensor.type: self._type,
            Tensor.data_ptr: self._address,
            Tensor.pin_memory: self._pin,
            Tensor.is_pinned: self._is_pinned,
            Tensor.item: self._item,
            Tensor.tolist: self._listed,
            Tensor.__repr__: self._shown,
            Tensor.__format__: self._shown,
            Tensor.__deepcopy__: self._deep_copy,
            torch.tensor_split: self._split,
            **{each: self._refusal(word) for each, word in _ASKED_OF_VALUES.items()},
            **{each: self._decision(word) for each, word in _DECISIONS.items()},
            **dict.fromkeys(_MADE_OF_NUMBERS, self._made_of_numbers),
            **dict.fromkeys(_SIZED_BY_NUMBERS, _sized_by_numbers),
        }

    def _refusal(self, word: str) -> Answer:
        def refuse(args: Any, kwargs: Any) -> Any:
            if self._host.is_unknown(args[0]):
                raise data_needed(word)
            return NotImplemented

        return refuse

    def _decision(self, word: str) -> Answer:
        def decide(args: Any, kwargs: Any) -> Any:
            if not self._host.is_unknown(args[0]) or args[0].numel() != 1:
                return NotImplemented
            stated = self._stated.for_torch()
            if stated is None:
                raise data_needed(word)
            return stated

        return decide

    def write_out(self, whole: Any) -> Any:
        """What takes the place of `Tensor.__reduce_ex__`, by which torch.save and others write a tensor."""

        def reduced(tensor: Tensor, protocol: Any) -> Any:
            if self._host.is_unknown(tensor) and not _is_copying():
                raise data_needed("torch.save, pickling or sending to another process")
            return whole(tensor, protocol)

        return reduced

    def _item(self, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not self._host.is_unknown(tensor) or tensor.numel() != 1:
            return NotImplemented
        return self._number(tensor, ".item()")

    def _number(self, tensor: Tensor, word: str) -> Any:
        stated = self._stated.for_torch()
        if stated is not None:
            return stated
        if not tensor.is_floating_point():
            raise data_needed(f"{word} of {str(tensor.dtype).removeprefix('torch.')}", REMEDY)
        return self._stated.number()

    def _listed(self, args: Any, kwargs: Any) -> Any:
        if not self._host.is_unknown(args[0]):
            return NotImplemented
        number = self._number(args[0], ".tolist()") if args[0].numel() else None
        return _nested(args[0].shape, number)

    def _shown(self, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if not self._host.is_unknown(tensor) or tensor.numel() == 0:
            return NotImplemented
        if len(args) > 1 and args[1] and tensor.dim() == 0:
            return format(UnknownNumber(), args[1])
        place = f"device='{SAID}', " if tensor.is_meta else ""
        return f"tensor(values unknown, {place}size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    def _address(self, args: Any, kwargs: Any) -> Any:
        """Two tensors have one address if they share memory, and programs ask that."""
        tensor = args[0]
        if not tensor.is_meta:
            return NotImplemented
        allocation = self._recorder.ledger.knows(tensor.untyped_storage())
        if allocation is None:
            return 0
        return allocation.block.address + tensor.storage_offset() * tensor.element_size()

    def _type(self, args: Any, kwargs: Any) -> Any:
        if not args[0].is_meta or len(args) > 1 or kwargs:
            return NotImplemented
        return args[0].type().replace("torch.meta.", "torch.cuda.")

    def _pin(self, args: Any, kwargs: Any) -> Any:
        """Memory of the host either way; on a card it would be a copy, in pages that stay."""
        tensor = args[0]
        if tensor.is_meta:
            raise RuntimeError("cannot pin 'torch.cuda' tensors: only dense CPU tensors can be pinned")
        if tensor in self._pinned:
            return tensor
        pinned = tensor.clone()
        self._pinned.add(pinned)
        return pinned

    def _is_pinned(self, args: Any, kwargs: Any) -> bool:
        return args[0] in self._pinned

    def lose(self, value: Any) -> None:
        """Tensors of the host that a function wrote an unknown number to, or made with one."""
        for each in tensors_among(value):
            if not each.is_meta:
                self._host.unknown.add(each)

    def pinned(self, made: Any) -> Any:
        """By a function of torch that was told to."""
        if isinstance(made, Tensor) and not made.is_meta:
            self._pinned.add(made)
        return made

    def _deep_copy(self, args: Any, kwargs: Any) -> Any:
        """torch would copy the storage behind our back."""
        tensor, memo = args[0], args[1]
        if tensor not in self._host.unknown or not tensor.is_leaf or type(tensor) is not Tensor:
            return NotImplemented
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    def _split(self, args: Any, kwargs: Any) -> Any:
        if any(self._host.is_unknown(each) for each in args[1:]):
            raise data_needed("tensor_split")
        return NotImplemented

    def _made_of_numbers(self, args: Any, kwargs: Any) -> Any:
        """torch takes them out of the tensors by itself."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, list | tuple) and any(map(self._host.is_unknown, _leaves(value))):
                raise data_needed("A tensor made of numbers that lie in tensors", _KEEP_IT_THERE)
        return NotImplemented


def _is_copying() -> bool:
    """`copy.copy` asks the same, and keeps the memory."""
    frame = next(frames(), None)
    return frame is not None and frame.f_code.co_filename == _COPY


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


def _if_ours(answer: Callable[[Tensor], Any]) -> Answer:
    return lambda args, kwargs: answer(args[0]) if args[0].is_meta else NotImplemented


_ATTRIBUTES: dict[str, Answer] = {
    "device": _if_ours(lambda tensor: SAID),
    "is_cuda": lambda args, kwargs: args[0].is_meta,
}


def _device_itself(args: Any, kwargs: Any) -> Any:
    """`torch.device(0)` is a card, though torch finds none; any other is what it says."""
    first = args[0] if args else kwargs.get("device")
    return torch.device("cuda", first) if type(first) is int else torch.device(*args, **kwargs)


def _sized_by_numbers(args: Any, kwargs: Any) -> Any:
    for each in _leaves((*args, *kwargs.values())):
        if type(each) is UnknownNumber:
            int(each)
    return NotImplemented


def has_unknown_numbers(args: Any, kwargs: Any) -> bool:
    for each in (*args, *kwargs.values()) if kwargs else args:
        if type(each) is UnknownNumber or type(each) is list and any(type(one) is UnknownNumber for one in each):
            return True
    return False


def _nested(shape: Any, number: Any) -> Any:
    """As `.tolist()` nests."""
    if not shape:
        return number
    return [_nested(shape[1:], number) for _ in range(shape[0])]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _leaves(each)
    else:
        yield value
