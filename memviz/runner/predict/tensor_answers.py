"""Answers to queries on a tensor, where torch would answer wrongly for a tensor without data.

They cover its device, its address and its values. Values may be printed, and a number taken from the tensor gets a
stand-in; any other read of values is refused here or, for operators, in the dispatch mode.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.arguments import tensors_among
from memviz.runner.predict.assumptions import NOT_STATED, UnknownNumber
from memviz.runner.predict.default_values import FIRST_CHOSEN, FIRST_INDEX
from memviz.runner.predict.model_transfer import swap_data
from memviz.runner.predict.named_devices import META, NamedDevices
from memviz.runner.predict.prediction_errors import data_needed
from memviz.runner.predict.program_frames import frames

Answer = Callable[[Any, Any], Any]
"""Arguments, keyword arguments -> the answer, or NotImplemented where torch's own is right."""
_READ_VALUES: dict[Any, str] = {
    Tensor.numpy: ".numpy()",
    Tensor.__array__: "numpy",
}
_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
_SIZED_BY_NUMBERS = (torch.arange, torch.range, torch.nn.functional.interpolate)

_TRUTH = "bool(), as in a condition,"
_OF_A_FINITE_NUMBER = (_TRUTH, "float()")
_WHOLE = ("int()", "An index or a size")
_DECISIONS = {
    Tensor.__bool__: _TRUTH,
    Tensor.__float__: "float()",
    Tensor.__int__: "int()",
    Tensor.__index__: "An index or a size",
    Tensor.__complex__: "complex()",
}
_TAKEN_AS: dict[str, Callable[[Any], Any]] = {
    _TRUTH: bool,
    "float()": float,
    "int()": int,
    "An index or a size": operator.index,
    "complex()": complex,
}
_COPY = copy.__file__
_CUDA_IN_DLPACK = 2


class TensorAnswers:
    def __init__(self, recorder: AllocationRecorder, named: NamedDevices) -> None:
        self._recorder = recorder
        self._ledger = recorder.ledger
        self._host = recorder.host
        self._assumptions = recorder.assumptions
        self._pinned = recorder.pinned
        self._named = named
        self.answers: dict[Any, Answer] = {
            torch.device: _device_itself,
            _getter("device"): self._if_there(lambda tensor: named.own),
            _getter("is_cuda"): self._if_there(lambda tensor: True),
            _getter("is_meta"): self._if_there(lambda tensor: False),
            Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
            Tensor.get_device: self._if_there(lambda tensor: named.own.index),
            Tensor.type: self._type,
            Tensor.data_ptr: self._address,
            Tensor.pin_memory: self._pin,
            Tensor.is_pinned: self._is_pinned,
            Tensor.is_shared: self._if_there(lambda tensor: True),
            Tensor.share_memory_: self._if_there(lambda tensor: tensor),
            Tensor.item: self._item,
            Tensor.tolist: self._listed,
            Tensor.__repr__: self._shown,
            Tensor.__format__: self._shown,
            Tensor.__deepcopy__: self._deep_copy,
            torch.tensor_split: self._split,
            **{function: self._of_numpy(name) for function, name in _READ_VALUES.items()},
            Tensor.__dlpack__: self._no_dlpack,
            Tensor.__dlpack_device__: self._if_there(lambda tensor: (_CUDA_IN_DLPACK, named.own.index)),
            **{function: self._decision(name) for function, name in _DECISIONS.items()},
            **{function: self._made_of_numbers(function) for function in _MADE_OF_NUMBERS},
            **dict.fromkeys(_SIZED_BY_NUMBERS, _sized_by_numbers),
        }

    def _if_there(self, answer: Callable[[Tensor], Any]) -> Answer:
        nowhere = self._host.on_meta

        def answered(args: Any, kwargs: Any) -> Any:
            tensor = args[0]
            return answer(tensor) if tensor.is_meta and tensor not in nowhere else NotImplemented

        return answered

    def _of_numpy(self, word: str) -> Answer:
        def given(args: Any, kwargs: Any) -> Any:
            tensor = args[0]
            if tensor.is_meta:
                raise TypeError(
                    f"can't convert {self._named.own} device type tensor to numpy. "
                    "Use Tensor.cpu() to copy the tensor to host memory first."
                )
            if self._host.is_unknown(tensor):
                self._assumptions.state(
                    f"{word} of values that are not computed gives what stands in for them, mostly zeros"
                )
                self._fill_with_what_stands(tensor)
            return NotImplemented

        return given

    def _fill_with_what_stands(self, tensor: Tensor) -> None:
        """Write the stand-in to the tensor's memory, where numpy reads it."""
        stands = self._host.stands_for(tensor)
        if stands is not None:
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                tensor.detach().fill_(stands)

    def _no_dlpack(self, args: Any, kwargs: Any) -> Any:
        if args[0].is_meta or self._host.is_unknown(args[0]):
            raise data_needed("DLPack", takes_value=False)
        return NotImplemented

    def _decision(self, word: str) -> Answer:
        def decide(args: Any, kwargs: Any) -> Any:
            tensor = args[0]
            shares = self._host.even_shares(tensor) if tensor.numel() == 1 else None
            if shares is not None:
                share = self._shares(shares)[0]
                return bool(share) if word == _TRUTH else _TAKEN_AS[word](share)
            if not self._host.is_unknown(tensor) or tensor.numel() != 1:
                return NotImplemented
            stands = self._host.stands_for(tensor)
            assumed = self._assumptions.for_library(bool if word == _TRUTH else int, stands)
            if assumed is not None:
                return assumed
            given = self._assumptions.given()
            if given is not NOT_STATED:
                return bool(given) if word == _TRUTH else given
            if tensor in self._recorder.choices and word in _WHOLE:
                return self._first()
            if self._host.stand_ins.is_drawn(tensor):
                raise data_needed(word)
            if word == _TRUTH and tensor.dtype == torch.bool:
                return self._assumptions.truth(stands)
            if tensor.is_floating_point() and word in _OF_A_FINITE_NUMBER or stands is not None:
                return _TAKEN_AS[word](self._assumptions.number(whole=stands is not None, stands=stands))
            raise data_needed(word)

        return decide

    def write_out(self, whole: Any) -> Any:
        """Return a replacement for `Tensor.__reduce_ex__`, by which torch.save and others write a tensor."""

        def reduced(tensor: Tensor, protocol: Any) -> Any:
            with torch._C.DisableTorchFunction():
                is_unknown = self._host.is_unknown(tensor)
            if is_unknown and not _is_copying():
                raise data_needed("torch.save, pickling or sending to another process", takes_value=False)
            return whole(tensor, protocol)

        return reduced

    def _item(self, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if tensor.numel() != 1:
            return NotImplemented
        shares = self._host.even_shares(tensor)
        if shares is not None:
            return self._shares(shares)[0]
        return self._number(tensor) if self._host.is_unknown(tensor) else NotImplemented

    def _shares(self, shares: Tensor) -> list[Any]:
        """They decide as such, and print as unknown."""
        whole = not shares.is_floating_point()
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            numbers = list(map(float, shares.flatten().tolist()))
        stands = (int(number) if number.is_integer() else None for number in numbers)
        return [self._assumptions.number(whole=whole, stands=number) for number in stands]

    def _number(self, tensor: Tensor) -> Any:
        drawn = self._host.stand_ins.is_drawn(tensor)
        stands = None if drawn else self._host.stands_for(tensor)
        assumed = self._assumptions.for_library(bool if tensor.dtype == torch.bool else int, stands)
        if assumed is not None:
            return assumed
        if tensor.dtype == torch.bool:
            return self._assumptions.truth(stands)
        if drawn and not tensor.is_floating_point():
            given = self._assumptions.given()
            if given is NOT_STATED:
                raise data_needed(".item() or .tolist() of whole numbers that are drawn at random")
            return given
        if tensor in self._recorder.choices:
            return self._first()
        return self._assumptions.number(whole=not tensor.is_floating_point(), stands=stands, drawn=drawn)

    def _first(self) -> int:
        given = self._assumptions.given()
        if given is not NOT_STATED:
            return int(given)
        self._assumptions.state_a_decision(FIRST_CHOSEN)
        return FIRST_INDEX

    def _listed(self, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        shares = self._host.even_shares(tensor)
        if shares is not None:
            return _nested(tensor.shape, iter(self._shares(shares)))
        if not self._host.is_unknown(tensor):
            return NotImplemented
        if self._assumptions.states_several:
            return _nested(tensor.shape, (self._number(tensor) for _ in range(tensor.numel())))
        return _nested(tensor.shape, repeat(self._number(tensor) if tensor.numel() else None))

    def _shown(self, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        assumed = self._host.even_shares(tensor) is not None
        values = self._host.known.of(tensor) if tensor.is_meta and not assumed else None
        if values is not None and len(args) == 1:
            return f"{repr(values)[:-1]}, device='{self._named.own}')"
        if values is not None and tensor.dim() == 0:
            return format(values.item(), args[1])
        if not (assumed or self._host.is_unknown(tensor)) or tensor.numel() == 0:
            return NotImplemented
        if len(args) > 1 and args[1] and tensor.dim() == 0:
            return format(UnknownNumber(), args[1])
        if tensor in self._host.on_meta:
            return NotImplemented
        place = f"device='{self._named.own}', " if tensor.is_meta else ""
        return f"tensor(values unknown, {place}size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    def _address(self, args: Any, kwargs: Any) -> Any:
        """Two tensors have one address if they share memory, and programs ask that."""
        tensor = args[0]
        if not tensor.is_meta:
            return NotImplemented
        allocation = self._ledger.allocation_of(tensor.untyped_storage())
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

    def made_nowhere(self, func: Any, args: Any, kwargs: Any) -> Any:
        """On `meta`, by a program that says so."""
        self._recorder.making_nowhere = True
        try:
            if func is Tensor.to and args[0].is_meta and args[0] not in self._host.on_meta:
                like = args[0]
                dtype = kwargs.get("dtype", next((arg for arg in args if isinstance(arg, torch.dtype)), like.dtype))
                return torch.empty_strided(like.shape, like.stride(), dtype=dtype, device=META)
            return func(*args, **kwargs)
        finally:
            self._recorder.making_nowhere = False

    def lose(self, value: Any) -> None:
        """Tensors of the host that a function wrote an unknown number to, or made with one."""
        for tensor in tensors_among(value):
            if tensor.is_meta:
                self._host.known.forget(tensor)
            else:
                self._host.unknown.add(tensor)

    def pinned(self, made: Any) -> Any:
        """Mark the result of a torch function as pinned, if it is on the host."""
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
        if any(map(self._host.is_unknown, args[1:])):
            raise data_needed("tensor_split", takes_value=False)
        return NotImplemented

    def _made_of_numbers(self, func: Any) -> Answer:
        """torch takes them out of the program's lists by itself, and for the device it would leave them there."""

        def made(args: Any, kwargs: Any) -> Any:
            lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
            if any(self._host.is_unknown(leaf) or _is_on_device(leaf) for leaf in _leaves(lists)):
                lost: list[Any] = []
                args = tuple(self._stand_in(arg, lost) if isinstance(arg, list | tuple) else arg for arg in args)
                if "data" in kwargs:
                    kwargs = {**kwargs, "data": self._stand_in(kwargs["data"], lost)}
                out = made(args, kwargs)
                out = func(*args, **kwargs) if out is NotImplemented else out
                if lost:
                    self.lose(out)
                return out
            on_device = self._named.is_own(kwargs.get("device"), numbers=True)
            if kwargs.get("device") is None:
                on_device = func is Tensor.new_tensor and args[0].is_meta
            data = kwargs["data"] if "data" in kwargs else args[-1] if args else None
            if not on_device or isinstance(data, Tensor):
                return NotImplemented
            return self._moved_there(func, args, kwargs)

        return made

    def _stand_in(self, value: Any, lost: list[Any]) -> Any:
        """A list with tensors of the host for all others, of their types; those without an answer go into `lost`."""
        if isinstance(value, list | tuple):
            return [self._stand_in(item, lost) for item in value]
        if not self._host.is_unknown(value):
            return self._host.known.of(value) if _is_on_device(value) else value
        given = self._assumptions.given()
        if given is NOT_STATED:
            lost.append(value)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return torch.full(value.shape, 1 if given is NOT_STATED else given, dtype=value.dtype)

    def _moved_there(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        if func is Tensor.new_tensor:
            kwargs = {"dtype": args[0].dtype, **kwargs}
            func, args = torch.tensor, args[1:]
        asks_gradient = kwargs.get("requires_grad", False)
        given = {key: value for key, value in kwargs.items() if key not in ("requires_grad", "pin_memory")}
        there: Tensor = func(*args, **{**given, "device": "cpu"}).to(META)
        if has_unknown_numbers(args, kwargs):
            self._host.known.forget(there)
        return there.requires_grad_() if asks_gradient else there


def _is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_meta


def _is_copying() -> bool:
    """`copy.copy` asks the same, and keeps the memory."""
    frame = next(frames(), None)
    return frame is not None and frame.f_code.co_filename == _COPY


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


def _set_data(args: Any, kwargs: Any) -> Any:
    """`param.data = ...` from one side to the other, as modules and offloading do."""
    tensor, data = args
    if tensor.is_meta == data.is_meta:
        return NotImplemented
    swap_data(tensor, data)
    return None


def _device_itself(args: Any, kwargs: Any) -> Any:
    """`torch.device(0)` is a card, though torch finds none; any other is what it says."""
    first = args[0] if args else kwargs.get("device")
    return torch.device("cuda", first) if type(first) is int else torch.device(*args, **kwargs)


def _sized_by_numbers(args: Any, kwargs: Any) -> Any:
    stop_at_unknown_numbers(args, kwargs)
    return NotImplemented


def has_unknown_numbers(args: Any, kwargs: Any) -> bool:
    for arg in (*args, *kwargs.values()) if kwargs else args:
        if type(arg) is UnknownNumber or type(arg) is list and any(type(item) is UnknownNumber for item in arg):
            return True
    return False


def stop_at_unknown_numbers(args: Any, kwargs: Any) -> None:
    for leaf in _leaves((*args, *kwargs.values())):
        if type(leaf) is UnknownNumber:
            int(leaf)


def _nested(shape: Any, numbers: Iterator[Any]) -> Any:
    """Nest numbers as `.tolist()` does."""
    if not shape:
        return next(numbers)
    return [_nested(shape[1:], numbers) for _ in range(shape[0])]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
