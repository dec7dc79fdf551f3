"""Answers to reads of values that are not computed, and to queries that torch would answer wrongly without data.

Queries cover a tensor's device, its address and its values. Operators that read values are a number from a tensor, the
indices where a mask is true, and results of unknown length. Known values give the card's own answer. Otherwise the
answer is what the user stated for the line with --assume, or a default value, which is noted; without either the
program stops there.
"""

from __future__ import annotations

import builtins
import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._library import fake_impl
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from memviz.predictor.assumptions import (
    NOT_STATED,
    Assumptions,
    UnknownInteger,
    UnknownNumber,
    UnknownValue,
    data_needed,
    is_index_in,
    is_printed_by,
    name_for_users,
    remedy_for,
)
from memviz.predictor.compat import Patches, without_functions, without_modes
from memviz.predictor.cuda.machine import META, NamedDevices, cast_to_type
from memviz.predictor.known_values import CHOSEN_EVENLY, FIRST_CHOSEN
from memviz.predictor.position import frames
from memviz.predictor.questions import CONDITION, NUMBER, WHOLE_NUMBER, count_question, mask_question
from memviz.predictor.recorder import AllocationRecorder, swap_data
from memviz.predictor.rules import Treatment
from memviz.predictor.saved_files import NOT_WRITTEN
from memviz.predictor.shapes import (
    MASKS,
    any_on_device,
    leaves_of,
    lies_on_device,
    map_tensors,
    tensors_among,
    tensors_of,
)

aten = torch.ops.aten
Answer = Callable[[Any, Any], Any]
"""Arguments, keyword arguments -> the answer, or NotImplemented where torch's own is right."""
NumberType = Callable[[Any], Any] | None
"""Conversion by the program; None for `.item()`, whose number may print as unknown."""
_ITEM = ".item() or .tolist()"
_CONVERSIONS: dict[Any, tuple[NumberType, str]] = {
    Tensor.item: (None, _ITEM),
    Tensor.__bool__: (bool, "bool(), as in a condition,"),
    Tensor.__float__: (float, "float()"),
    Tensor.__int__: (int, "int()"),
    Tensor.__index__: (operator.index, "An index or a size"),
    Tensor.__complex__: (complex, "complex()"),
}
_MADE_OF_NUMBERS = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)
_SIZED_BY_NUMBERS = (torch.arange, torch.range, torch.nn.functional.interpolate)
_CUDA_IN_DLPACK = 2


def number_for(recorder: AllocationRecorder, tensor: Tensor, as_type: NumberType, name: str) -> Any:
    """Return a number for one element of a tensor that is not computed, or raise DataNeeded for `name`.

    In this order: the answer that a library always gets, the user's, the first of several, and a default value.
    """
    assumptions, host = recorder.assumptions, recorder.host
    default = host.default_of(tensor)
    is_condition = as_type is bool or as_type is None and tensor.dtype is torch.bool
    answer = assumptions.for_library(bool if is_condition else int, default)
    if answer is not None:
        return answer
    is_whole = not tensor.is_floating_point()
    stated = assumptions.stated_answer(CONDITION if is_condition else WHOLE_NUMBER if is_whole else NUMBER)
    if stated is not NOT_STATED:
        return bool(stated) if is_condition else stated if is_whole or as_type is not None else float(stated)
    if tensor in recorder.choices and not is_condition:
        assumptions.state_a_decision(FIRST_CHOSEN)
        assumptions.took(0)
        return 0 if as_type is None else as_type(0)
    # Of a mask that is not computed all elements count, so that their number is not 0.
    is_count = is_whole and tensor.dtype is not torch.bool and default is None
    if is_condition and (tensor.dtype is torch.bool or is_count):
        answer = assumptions.leads_on(next(frames(), None), is_count or bool(default))
        assumptions.state_a_decision(f"a condition that is not computed is assumed to be {answer}")
        return assumptions.took(answer)
    if default is None and is_whole and as_type in (int, operator.index):
        caller = next(frames(), None)
        if caller is not None and is_index_in(caller, of_tensor=as_type is int):
            return assumptions.took(assumptions.first_of_list())
        if caller is not None and is_printed_by(caller):
            return assumptions.took(int(float(assumptions.number(is_whole=True, default=None))))
    is_length = is_whole and as_type is not float
    if as_type is not None and default is None and (is_length or as_type in (operator.index, complex)):
        raise data_needed(name, asked=assumptions.questions.last)
    number = assumptions.number(is_whole=is_whole, default=default)
    return number if as_type is None else as_type(number)


class TensorAnswers:
    def __init__(self, recorder: AllocationRecorder, devices: NamedDevices) -> None:
        self._recorder = recorder
        self._ledger = recorder.ledger
        self._host = recorder.host
        self._assumptions = recorder.assumptions
        self._pinned = recorder.pinned
        self._named = devices
        own, is_unknown = devices.own, recorder.host.is_unknown
        device_of: Callable[[Tensor], torch.device] = self.device_of if devices.several else lambda tensor: own
        self.answers: dict[Any, Answer] = {
            torch.device: _device_itself,
            _getter("device"): self._on_device_alone(device_of),
            _getter("is_cuda"): self._on_device_alone(lambda tensor: True),
            _getter("is_meta"): self._on_device_alone(lambda tensor: False),
            Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
            Tensor.get_device: self._on_device_alone(lambda tensor: device_of(tensor).index),
            Tensor.type: self._type,
            Tensor.data_ptr: self._address,
            Tensor.pin_memory: self._pin_memory,
            Tensor.is_pinned: lambda args, kwargs: args[0] in self._pinned,
            Tensor.is_shared: self._on_device_alone(lambda tensor: True),
            Tensor.share_memory_: self._on_device_alone(lambda tensor: tensor),
            Tensor.tolist: self._to_list,
            Tensor.__repr__: self._repr,
            Tensor.__format__: self._repr,
            Tensor.__deepcopy__: self._deep_copy,
            torch.tensor_split: self._refusing("tensor_split", lambda args: any(map(is_unknown, args[1:]))),
            Tensor.numpy: self._to_numpy(".numpy()"),
            Tensor.__array__: self._to_numpy("numpy"),
            Tensor.__dlpack__: self._refusing("DLPack", lambda args: args[0].is_meta or is_unknown(args[0])),
            _getter("__cuda_array_interface__"): self._refusing(
                "__cuda_array_interface__ (CuPy, Numba, RAPIDS)", lambda args: args[0].is_meta
            ),
            Tensor.__dlpack_device__: self._on_device_alone(lambda tensor: (_CUDA_IN_DLPACK, device_of(tensor).index)),
            **{function: self._to_number(*conversion) for function, conversion in _CONVERSIONS.items()},
            **{function: self._from_numbers(function) for function in _MADE_OF_NUMBERS},
            **dict.fromkeys(_SIZED_BY_NUMBERS, _sized_by_numbers),
        }

    def device_of(self, tensor: Tensor) -> torch.device:
        """Return the device of a tensor on a card, as the program knows it."""
        card = self._recorder.card_of(tensor)
        return self._named.own if card is None else self._named.device(card)

    def _on_device_alone(self, answer: Callable[[Tensor], Any]) -> Answer:
        nowhere = self._host.on_meta

        def answered(args: Any, kwargs: Any) -> Any:
            tensor = args[0]
            return answer(tensor) if tensor.is_meta and tensor not in nowhere else NotImplemented

        return answered

    def _to_numpy(self, word: str) -> Answer:
        def convert(args: Any, kwargs: Any) -> Any:
            tensor = args[0]
            if tensor.is_meta and (kwargs.get("force") or True in args[1:]):
                on_host = tensor.detach().cpu()
                convert((on_host,), {})
                return on_host.numpy(force=True)
            if tensor.is_meta:
                raise TypeError(
                    f"can't convert {self.device_of(tensor)} device type tensor to numpy. "
                    "Use Tensor.cpu() to copy the tensor to host memory first."
                )
            if self._host.is_unknown(tensor):
                self._assumptions.state(f"{word} of values that are not computed returns placeholders, mostly zeros")
                default = self._host.default_of(tensor)
                if default is not None:
                    # numpy reads it in the tensor's memory.
                    with torch._C.DisableTorchFunction(), _disable_current_modes():
                        tensor.detach().fill_(default)
            return NotImplemented

        return convert

    @staticmethod
    def _refusing(word: str, needs_values: Callable[[Any], bool]) -> Answer:
        def refuse(args: Any, kwargs: Any) -> Any:
            if needs_values(args):
                raise data_needed(word)
            return NotImplemented

        return refuse

    def _to_number(self, as_type: NumberType, name: str) -> Answer:
        def convert(args: Any, kwargs: Any) -> Any:
            tensor = args[0]
            if tensor.numel() != 1:
                return NotImplemented
            shares = self._even_shares(tensor)
            if shares is not None:
                share = self._shares(shares)[0]
                return share if as_type is None else as_type(share)
            if not self._host.is_unknown(tensor):
                return NotImplemented
            return number_for(self._recorder, tensor, as_type, name)

        return convert

    def write_out(self, original: Any) -> Any:
        """Return a replacement for `Tensor.__reduce_ex__`, by which torch.save and others write a tensor."""

        def reduce_without_values(tensor: Tensor, protocol: Any) -> Any:
            with torch._C.DisableTorchFunction():
                if self._host.to_file is not None:
                    return original(self._host.to_file(tensor), protocol)
                has_values = not (self._host.is_unknown(tensor) or lies_on_device(tensor))
                card = self._recorder.card_of(tensor)
                layout = (tuple(tensor.shape), tensor.stride(), tensor.dtype) if not has_values else None
            caller = next(frames(), None)
            # `copy.copy` shares the memory.
            if layout is None or (caller is not None and caller.f_code.co_filename == copy.__file__):
                return original(tensor, protocol)
            self._assumptions.state(NOT_WRITTEN)
            return rebuild_without_values, (*layout, card, tensor.requires_grad)

        return reduce_without_values

    def _even_shares(self, tensor: Tensor) -> Tensor | None:
        """Return counts that are taken to be even, unless the user stated others for this line."""
        return None if self._assumptions.questions.answer() else self._host.even_shares(tensor)

    def _shares(self, shares: Tensor) -> list[Any]:
        """Return the even counts as numbers that decide by their value and print as unknown."""
        is_whole = not shares.is_floating_point()
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            numbers = list(map(float, shares.flatten().tolist()))
        defaults = (int(number) if number.is_integer() else None for number in numbers)
        self._assumptions.questions.ask(WHOLE_NUMBER if is_whole else NUMBER)
        return [self._assumptions.number(is_whole=is_whole, default=number) for number in defaults]

    def _to_list(self, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        shares = self._even_shares(tensor)
        if shares is not None:
            return _nested(tensor.shape, iter(self._shares(shares)))
        if not self._host.is_unknown(tensor):
            return NotImplemented
        several = self._assumptions.states_several
        asks = tensor.numel() if several else min(tensor.numel(), 1)
        numbers = [number_for(self._recorder, tensor, None, _ITEM) for _ in range(asks)]
        return _nested(tensor.shape, iter(numbers) if several else repeat(next(iter(numbers), None)))

    def _repr(self, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        assumed = self._host.even_shares(tensor) is not None
        values = self._host.known.of(tensor) if tensor.is_meta and not assumed else None
        if values is not None and len(args) == 1:
            return f"{repr(values)[:-1]}, device='{self.device_of(tensor)}')"
        if values is not None and tensor.dim() == 0:
            return format(values.item(), args[1])
        if not (assumed or self._host.is_unknown(tensor)) or tensor.numel() == 0:
            return NotImplemented
        if len(args) > 1 and args[1] and tensor.dim() == 0:
            return format(UnknownNumber(), args[1])
        if tensor in self._host.on_meta:
            return NotImplemented
        place = f"device='{self.device_of(tensor)}', " if tensor.is_meta else ""
        return f"tensor(values unknown, {place}size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    def _address(self, args: Any, kwargs: Any) -> Any:
        """Return the modelled address, because programs compare addresses to find shared memory."""
        tensor = args[0]
        if not tensor.is_meta:
            return NotImplemented
        allocation = self._ledger.allocation_of(tensor.untyped_storage())
        if allocation is None:
            return 0
        return allocation.block.address + tensor.storage_offset() * tensor.element_size()

    def _type(self, args: Any, kwargs: Any) -> Any:
        kind = kwargs.get("dtype", args[1] if len(args) > 1 else None)
        if kind is not None:
            return cast_to_type(args[0], kind)
        if not args[0].is_meta or len(args) > 1 or kwargs:
            return NotImplemented
        return args[0].type().replace("torch.meta.", "torch.cuda.")

    def _pin_memory(self, args: Any, kwargs: Any) -> Any:
        tensor = args[0]
        if tensor.is_meta:
            raise RuntimeError("cannot pin 'torch.cuda' tensors: only dense CPU tensors can be pinned")
        if tensor in self._pinned:
            return tensor
        return self.mark_pinned(tensor.clone())

    def run_for_programs_own_meta(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a function for which the program itself names the `meta` device."""
        with Patches() as patches:
            patches.put(self._recorder, "making_on_meta", True)
            if func is Tensor.to and args[0].is_meta and args[0] not in self._host.on_meta:
                like = args[0]
                dtype = kwargs.get("dtype", next((arg for arg in args if isinstance(arg, torch.dtype)), like.dtype))
                return torch.empty_strided(like.shape, like.stride(), dtype=dtype, device=META)
            out = func(*args, **kwargs)
        # torch.tensor calls no operator on `meta`, and what has no bytes is not allocated.
        made = [tensor for tensor in tensors_of(out) if tensor.is_meta and tensor.layout is torch.strided]
        for tensor in made:
            if self._recorder.ledger.allocation_of(tensor.untyped_storage()) is None:
                self._host.on_meta.add(tensor)
        return out

    def with_known_bounds(self, index: Any) -> Any:
        """Return an index whose slices end at numbers; the same one if they do already.

        A slice up to a number that is not computed is taken whole: it is no longer than that.
        """
        parts = index if type(index) is tuple else (index,)
        if not any(type(part) is slice and _is_open(part) for part in parts):
            return index
        known: list[Any] = list(parts)
        for at, part in enumerate(parts):
            if type(part) is slice:
                known[at] = slice(self._known_bound(part.start), self._known_bound(part.stop), part.step)
        return tuple(known) if type(index) is tuple else known[0]

    def _known_bound(self, bound: Any) -> Any:
        if isinstance(bound, Tensor) and self._host.is_unknown(bound):
            bound = number_for(self._recorder, bound, None, "a slice")
        if isinstance(bound, UnknownValue) and bound.default is None:
            self._assumptions.state("a slice up to a number that is not computed keeps its full length", is_size=True)
            return None
        return bound

    def lose(self, value: Any) -> None:
        """Mark tensors as unknown that a function wrote an unknown number to, or made with one."""
        for tensor in tensors_among(value):
            self._host.forget_values(tensor)

    def mark_pinned(self, result: Any) -> Any:
        """Mark the result of a torch function as pinned, if it is on the host."""
        if isinstance(result, Tensor) and not result.is_meta:
            self._recorder.host_memory.pin(result)
        return result

    def _deep_copy(self, args: Any, kwargs: Any) -> Any:
        """Copy by operators, because torch would copy the storage without one."""
        tensor, memo = args[0], args[1]
        if not tensor.is_leaf or type(tensor) is not Tensor:
            return NotImplemented
        is_plain = tensor.layout is torch.strided and tensor.grad is None and not vars(tensor)
        there = is_plain and lies_on_device(tensor)
        if tensor not in self._host.unknown and not there:
            return NotImplemented
        if id(tensor) not in memo:
            memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
            if there:
                # The tensor that gets the copied storage has one of its own until then.
                tensor.detach().new_empty(())
        return memo[id(tensor)]

    def _from_numbers(self, func: Any) -> Answer:
        """Create tensors of lists on the host, then move them: torch would leave out the values on the device."""

        def create(args: Any, kwargs: Any) -> Any:
            lists = [value for value in (*args, *kwargs.values()) if isinstance(value, list | tuple)]
            if any(self._host.is_unknown(leaf) or lies_on_device(leaf) for leaf in leaves_of(lists)):
                lost: list[Any] = []
                args = tuple(self._stand_in(arg, lost) if isinstance(arg, list | tuple) else arg for arg in args)
                if "data" in kwargs:
                    kwargs = {**kwargs, "data": self._stand_in(kwargs["data"], lost)}
                out = create(args, kwargs)
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
            return self._create_on_device(func, args, kwargs)

        return create

    def _stand_in(self, value: Any, lost: list[Any]) -> Any:
        """Replace tensors in a list by host tensors; append those without an answer to `lost`."""
        if isinstance(value, list | tuple):
            return [self._stand_in(item, lost) for item in value]
        if not self._host.is_unknown(value):
            return self._host.known.of(value) if lies_on_device(value) else value
        stated = self._assumptions.stated_answer(NUMBER if value.is_floating_point() else WHOLE_NUMBER)
        if stated is NOT_STATED:
            lost.append(value)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return torch.full(value.shape, 1 if stated is NOT_STATED else stated, dtype=value.dtype)

    def _create_on_device(self, func: Any, args: Any, kwargs: Any) -> Tensor:
        card = kwargs.get("device")
        if func is Tensor.new_tensor:
            card = self.device_of(args[0]) if card is None else card
            kwargs = {"dtype": args[0].dtype, **kwargs}
            func, args = torch.tensor, args[1:]
        asks_gradient = kwargs.get("requires_grad", False)
        chosen = with_dtype_of_numbers(func, args, kwargs)
        creation_kwargs = {key: value for key, value in chosen.items() if key not in ("requires_grad", "pin_memory")}
        there: Tensor = func(*args, **{**creation_kwargs, "device": "cpu"}).to(self._named.meta(card))
        if has_unknown_numbers(args, kwargs):
            self._host.known.forget(there)
        return there.requires_grad_() if asks_gradient else there


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
    """Return a card for `torch.device(0)`, which torch refuses without cards; create other devices unchanged."""
    first = args[0] if args else kwargs.get("device")
    return torch.device("cuda", first) if type(first) is int else torch.device(*args, **kwargs)


def _sized_by_numbers(args: Any, kwargs: Any) -> Any:
    stop_at_unknown_numbers(args, kwargs)
    return NotImplemented


def _is_open(part: slice) -> bool:
    return any(isinstance(bound, Tensor | UnknownValue) for bound in (part.start, part.stop))


def has_unknown_numbers(args: Any, kwargs: Any) -> bool:
    return _holds_unknown((*args, *kwargs.values()) if kwargs else args)


def _holds_unknown(value: Any) -> bool:
    if type(value) not in (list, tuple):
        return isinstance(value, UnknownValue)
    # A list may have a million numbers, and few have lists in it.
    kinds = set(map(type, value))
    nested = not kinds.isdisjoint((list, tuple)) and any(map(_holds_unknown, value))
    return nested or not kinds.isdisjoint((UnknownNumber, UnknownInteger))


_VALUES_AT = {torch.tensor: (0, "data"), torch.as_tensor: (0, "data"), torch.full: (1, "fill_value")}
_VALUES_AT |= {torch.asarray: (0, "obj"), torch.scalar_tensor: (0, "s")}
"""Functions that choose a dtype by their numbers: where those are among the arguments, and their name."""


def with_dtype_of_numbers(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the keyword arguments with the dtype of whole numbers, which to torch are floats while unknown."""
    if func not in _VALUES_AT or kwargs.get("dtype") is not None:
        return kwargs
    place, name = _VALUES_AT[func]
    values = args[place] if len(args) > place else kwargs.get(name)
    if not _holds_unknown(values):
        return kwargs
    is_whole = all(
        leaf.whole if isinstance(leaf, UnknownValue) else isinstance(leaf, int) for leaf in leaves_of(values)
    )
    return {**kwargs, "dtype": torch.int64} if is_whole else kwargs


def stop_at_unknown_numbers(args: Any, kwargs: Any) -> None:
    for leaf in leaves_of((*args, *kwargs.values())):
        if isinstance(leaf, UnknownValue):
            operator.index(leaf)


def _nested(shape: Any, numbers: Iterator[Any]) -> Any:
    """Nest numbers as `.tolist()` does."""
    if not shape:
        return next(numbers)
    return [_nested(shape[1:], numbers) for _ in range(shape[0])]


def result_of_unknown_length(func: Any, args: Any, kwargs: Any, assumptions: Assumptions, choices: int = 0) -> Any:
    """Return results as tensors without data, or NotImplemented where their length is not stated and has no bound.

    `choices` is the number of values that may be there; 0 where it is not known.
    """
    make = _SHAPES_OF_LENGTH.get(func)
    if make is None:
        return NotImplemented
    arguments = {**dict(zip((one.name for one in func._schema.arguments), args, strict=False)), **kwargs}
    tensor, dim = arguments.get("self"), arguments.get("dim")
    most = None
    if make is _unique and tensor is not None:
        most = tensor.numel() if dim is None else tensor.size(dim)
    length = assumptions.stated_answer(count_question(most))
    if length is NOT_STATED:
        if most is not None:
            assumptions.state("values that are not computed are assumed to be all different", is_size=True)
            length = assumptions.took(most)
        elif most := choices or arguments.get("minlength", 0):
            assumptions.state(
                "counted values that are not computed are assumed to be below {number}", most, is_size=True
            )
            length = assumptions.took(most)
        else:
            return NotImplemented
    return make(length, **arguments)


@contextmanager
def answer_lengths(func: Any, args: Any, assumptions: Assumptions) -> Iterator[None]:
    """Answer the shape function of a custom operator that needs a data-dependent length.

    The answer is the stated one, the most that the rule allows, or the length of the first tensor: detections are all
    kept.
    """

    def length(*, min: int = 0, max: int | None = None) -> int:
        stated = assumptions.stated_answer(count_question(max, least=min))
        if stated is not NOT_STATED:
            return int(stated)
        limits = [tensor.size(0) for tensor in tensors_of(args) if tensor.dim()][:1] + ([] if max is None else [max])
        if not limits:
            raise data_needed(func.name(), asked=assumptions.questions.last)
        most = builtins.max(min, builtins.min(limits))
        sentence = f"the length of the result of {func.name()} is not computed: it is assumed to be {most}"
        assumptions.state(sentence, is_size=True)
        return int(assumptions.took(most))

    context = SimpleNamespace(new_dynamic_size=length, create_unbacked_symint=length)
    with Patches() as patches:
        patches.replace(fake_impl, "set_ctx_getter", lambda getter: nullcontext())
        patches.replace(fake_impl, "global_ctx_getter", lambda: context)
        yield


def _bincount(count: int, self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    kind = torch.long if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return _empty(max(count, minlength), kind=kind)


def _unique(
    count: int, self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if dim is None:
        # Values and counts keep the memory of as many as there are elements (`UniqueCub.cu`).
        counts = _empty(self.numel()).resize_(count) if return_counts else _empty(0)
        unique = _empty(self.numel(), kind=self.dtype).resize_(count)
        return unique, _empty(*self.shape if return_inverse else (0,)), counts
    shape = list(self.shape)
    shape[dim] = count
    inverse = _empty(self.size(dim) if return_inverse else 0)
    return _empty(*shape, kind=self.dtype), inverse, _empty(count if return_counts else 0)


def _least_squares(a: Tensor, b: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `linalg.lstsq` gives on CUDA, whose driver has no ranks: the solution is part of what it works in."""
    rows, columns = a.shape[-2:]
    is_vector = b.dim() == 1 or b.shape == a.shape[:-1]
    batch, many = (b.shape[:-1], 1) if is_vector else (b.shape[:-2], b.size(-1))
    batch = torch.broadcast_shapes(a.shape[:-2], batch)  # type: ignore[no-untyped-call]
    solution = _empty(*batch, many, max(rows, columns), kind=a.dtype).mT.narrow(-2, 0, columns)
    residuals = _empty(*((*batch, many) if rows > columns else (0,)), kind=a.dtype)
    return solution.squeeze(-1) if is_vector else solution, residuals, _empty(0), _empty(0, kind=a.dtype)


def _empty(*shape: int, kind: torch.dtype = torch.long) -> Tensor:
    return torch.empty(shape, dtype=kind, device="meta")


_SHAPES_OF_LENGTH: dict[Any, Callable[..., Any]] = {
    aten.bincount.default: _bincount,
    aten.repeat_interleave.Tensor: lambda count, **arguments: _empty(count),
    **dict.fromkeys((aten._unique2.default, aten.unique_consecutive.default), _unique),
    **dict.fromkeys((aten.unique_dim.default, aten.unique_dim_consecutive.default), _unique),
}


_MOST_PLACES_BYTES = 1 << 22
_TAKEN_AS_TRUE = "a mask that is not computed is assumed to be true everywhere"
_WITHOUT_BORDERS = "a mask that is not computed is assumed to be the same everywhere, without borders"


class ValueReads:
    def __init__(self, recorder: AllocationRecorder, mode: TorchDispatchMode) -> None:
        self._recorder = recorder
        self._host = recorder.host
        self._mode = mode

    def answer(self, func: Any, treatment: Treatment, args: Any, kwargs: Any) -> Any:
        """Return the result, or NotImplemented to let torch run the operator."""
        if treatment.looks == "index":
            tensor, indices = args[0], args[1]
            masks = [index for index in indices if index is not None and index.dtype in MASKS]
            if not any(mask.is_meta or self._host.is_unknown(mask) for mask in masks):
                return NotImplemented
            places: list[Tensor | None] = []
            with self._mode:
                for index in indices:
                    if index is None or index.dtype not in MASKS:
                        places.append(index)
                    else:
                        places += aten.nonzero.default(index).unbind(1)
                return aten.index.Tensor(tensor, places)
        unknown = any(map(self._host.is_unknown, tensors_of(args)))
        if not unknown and not any_on_device((*args, *kwargs.values())):
            return NotImplemented
        self._recorder.value_reads += 1
        if unknown:
            return self._unknown(func, treatment, args, kwargs)
        values = self._host.known
        reason = values.reason_of(args, kwargs)
        if reason:
            assumptions, is_number = self._recorder.assumptions, func is aten._local_scalar_dense.default
            if is_number:
                stated = assumptions.stated_answer(NUMBER if args[0].is_floating_point() else WHOLE_NUMBER)
                if stated is not NOT_STATED:
                    return stated
            assumptions.state_a_decision(reason)
            if is_number:
                assumptions.took(values.reads(func, args, kwargs))
        out = values.on_device(values.reads(func, args, kwargs), reason)
        self._recorder.after_op(treatment, args, kwargs, out)
        return out

    def _unknown(self, func: Any, treatment: Treatment, args: Any, kwargs: Any) -> Any:
        if func is aten._local_scalar_dense.default:
            (tensor,) = args
            as_type = bool if tensor.dtype is torch.bool else float if tensor.is_floating_point() else int
            return number_for(self._recorder, tensor, as_type, name_for_users(func))
        if func is aten.nonzero.default:
            return self._places(treatment, args[0])
        if func is aten.masked_select.default:
            tensor, mask = args
            with self._mode:
                shape = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
                return tensor.expand(shape)[mask.expand(shape)]
        if func.overloadpacket is aten._ctc_loss and not self._host.is_unknown(args[3]):
            # A loss per sequence, and for backward a row per step, as long as the longest target with blanks.
            steps, batch = args[0].shape[:2]
            lengths: Any = self._host.values(args[3]) if isinstance(args[3], Tensor) else args[3]
            longest = max(map(int, lengths), default=0)
            losses = args[0].new_empty(batch)
            out = losses, args[0].new_empty(batch, steps, 2 * longest + 1)
            self._recorder.after_op(treatment, args, kwargs, out)
            return out
        choices = self._host.shares.choices_of(args[0])
        shapes = result_of_unknown_length(func, args, kwargs, self._recorder.assumptions, choices)
        if shapes is not NotImplemented:
            return self._without_values(func, treatment, args, kwargs, shapes)
        if func is aten.linalg_lstsq.default:
            return self._without_values(func, treatment, args, kwargs, _least_squares(*args[:2]))
        assumptions, decides = self._recorder.assumptions, torch.Tag.data_dependent_output in func.tags
        # The length was answered above.
        stated = assumptions.stated_answer(CONDITION) if decides else NOT_STATED
        if stated is not NOT_STATED:
            return stated
        if func in (aten.equal.default, aten.allclose.default):
            assumptions.state_a_decision("tensors that are not computed are assumed to be equal")
            return assumptions.took(bool(args[0].shape == args[1].shape))
        asked = assumptions.questions.last if decides or func in _SHAPES_OF_LENGTH else None
        raise data_needed(name_for_users(func), remedy_for(func), asked)

    def _without_values(self, func: Any, treatment: Treatment, args: Any, kwargs: Any, shapes: Any) -> Any:
        """Return a result without values, on the device of its first argument."""
        if args[0].is_meta:
            self._recorder.after_op(treatment, args, kwargs, shapes)
        else:
            shapes = map_tensors(self._host.blank_like, shapes)
        self._host.counted(func, args, shapes)
        return shapes

    def _places(self, treatment: Treatment, tensor: Tensor) -> Tensor:
        count = self._count(tensor)
        where = "meta" if tensor.is_meta else "cpu"
        places = torch.empty((count, tensor.dim()), dtype=torch.long, device=where)
        if tensor.is_meta:
            self._recorder.after_op(treatment, (tensor,), {}, places)
        first = torch.arange(count).unsqueeze(1) if tensor.dim() < 2 else None
        if first is None:
            first = torch.stack(torch.unravel_index(torch.arange(count), tensor.shape), 1)
        if tensor.dim() == 0:
            return places
        if not tensor.is_meta:
            return places.copy_(first)
        if places.nbytes <= _MOST_PLACES_BYTES:
            self._host.known.put(places, first, _TAKEN_AS_TRUE)
        else:
            # A loop over rows gets its share of them in each row.
            self._host.shares.put(places, tensor.size(0))
        return places

    def _count(self, tensor: Tensor) -> int:
        assumptions = self._recorder.assumptions
        stated = assumptions.for_library(bool)
        if stated is None:
            stated = assumptions.stated_answer(mask_question(tensor.numel()))
        share = self._host.shares.places_in(tensor) if stated is NOT_STATED else None
        if share is not None:
            assumptions.state(CHOSEN_EVENLY, is_size=True)
            return int(assumptions.took(share))
        if stated is NOT_STATED:
            stated = assumptions.took(tensor not in self._host.stand_ins.borders)
            assumptions.state(_TAKEN_AS_TRUE if stated else _WITHOUT_BORDERS, is_size=True)
        if isinstance(stated, bool):
            return tensor.numel() if stated else 0
        return int(stated)


_in_use: list[AllocationRecorder] = []
"""Recorder of the device in use. A global, because pickle calls the receiving function."""


def follow_pickles(patches: Patches, recorder: AllocationRecorder) -> None:
    _in_use.append(recorder)
    patches.callback(_in_use.clear)


def rebuild_without_values(
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    card: int | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor that was pickled without values: on its card again, or on the host."""
    if card is not None:
        made = torch.empty_strided(shape, stride, dtype=dtype, device=f"cuda:{card}")
    else:
        with without_functions(), without_modes():
            made = _in_use[0].host.blank_like(torch.empty_strided(shape, stride, dtype=dtype, device="meta"))
    return made.requires_grad_(requires_grad)
