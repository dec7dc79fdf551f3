"""Operators that read values: a number from a tensor, the indices where a mask is true, results of unknown length.

Known values give the card's own answer. Otherwise the answer is what the user stated for the line with --assume, or
a default value, which is noted; without either the program stops there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from memviz.errors import UsageError
from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.arguments import with_each
from memviz.runner.predict.assumptions import NOT_STATED, Assumptions
from memviz.runner.predict.default_values import CHOSEN_EVENLY, FIRST_CHOSEN, FIRST_INDEX
from memviz.runner.predict.operator_treatments import Treatment, tensors_in
from memviz.runner.predict.prediction_errors import data_needed, name_for_users, not_predicted, remedy_for

aten = torch.ops.aten
BELOW_MINLENGTH = "values that are not computed are taken to be below minlength where they are counted"


def result_of_unknown_length(func: Any, args: Any, kwargs: Any, assumptions: Assumptions) -> Any:
    """Shapes of what the operator gives, as tensors without data; NotImplemented where nobody says how long."""
    make = _SHAPES_OF_LENGTH.get(func)
    if make is None:
        return NotImplemented
    named = {**dict(zip((one.name for one in func._schema.arguments), args, strict=False)), **kwargs}
    given = assumptions.given()
    if given is NOT_STATED:
        least = named.get("minlength", 0)
        if not least:
            return NotImplemented
        assumptions.state(BELOW_MINLENGTH)
        given = least
    if type(given) is not int or given < 0:
        raise UsageError(f"--assume takes a whole number here, of what the result has; not {given!r}.")
    return make(given, **named)


def has_length(func: Any) -> bool:
    """Return whether a stated length determines the result."""
    return func in _SHAPES_OF_LENGTH


def _bincount(count: int, self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    kind = torch.long if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    return _empty(max(count, minlength), kind=kind)


def _unique(
    count: int, self: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    if dim is None:
        found, whence = _empty(count, kind=self.dtype), self.shape
    else:
        shape = list(self.shape)
        shape[dim] = count
        found, whence = _empty(*shape, kind=self.dtype), torch.Size([self.size(dim)])
    return found, _empty(*whence if return_inverse else (0,)), _empty(count if return_counts else 0)


def _repeat_interleave(count: int, repeats: Tensor, output_size: int | None = None) -> Tensor:
    return _empty(count)


def _empty(*shape: int, kind: torch.dtype = torch.long) -> Tensor:
    return torch.empty(shape, dtype=kind, device="meta")


_SHAPES_OF_LENGTH: dict[Any, Callable[..., Any]] = {
    aten.bincount.default: _bincount,
    aten.repeat_interleave.Tensor: _repeat_interleave,
    **dict.fromkeys((aten._unique2.default, aten.unique_consecutive.default), _unique),
    **dict.fromkeys((aten.unique_dim.default, aten.unique_dim_consecutive.default), _unique),
}


_MASKS = (torch.bool, torch.uint8)
_MOST_PLACES = 1 << 22
"""Bytes."""
_ARE_EQUAL = (aten.equal.default, aten.allclose.default)
_TAKEN_AS_EQUAL = "tensors that are not computed are taken to be equal"
_TAKEN_AS_TRUE = "a mask that is not computed is taken to be true everywhere"


class ValueReads:
    def __init__(self, recorder: AllocationRecorder, mode: TorchDispatchMode) -> None:
        self._recorder = recorder
        self._host = recorder.host
        self._mode = mode

    def instead(self, func: Any, treatment: Treatment, args: Any, kwargs: Any) -> Any:
        """The result, or NotImplemented where torch itself is right."""
        if treatment.looks == "index":
            return self._index(args)
        unknown = any(map(self._host.is_unknown, tensors_in(args)))
        if not unknown and not any(tensor.is_meta for tensor in tensors_in((*args, *kwargs.values()))):
            return NotImplemented
        if unknown:
            return self._unknown(func, treatment, args, kwargs)
        known = self._host.known
        reason = known.reason_of(args, kwargs)
        if reason:
            given = self._recorder.assumptions.given() if func is aten._local_scalar_dense.default else NOT_STATED
            if given is not NOT_STATED:
                return given
            self._recorder.assumptions.state_a_decision(reason)
        out = known.on_device(known.reads(func, args, kwargs), reason)
        self._recorder.after_op(treatment, args, kwargs, out)
        return out

    def _unknown(self, func: Any, treatment: Treatment, args: Any, kwargs: Any) -> Any:
        if func is aten._local_scalar_dense.default:
            return self._number(args[0])
        if func is aten.nonzero.default:
            return self._places(treatment, args[0])
        if func is aten.masked_select.default:
            tensor, mask = args
            with self._mode:
                shape = torch.broadcast_shapes(tensor.shape, mask.shape)  # type: ignore[no-untyped-call]
                return tensor.expand(shape)[mask.expand(shape)]
        if func.overloadpacket is aten._ctc_loss and (longest := self._longest(args[3])) is not None:
            return self._losses_of_sequences(treatment, args, kwargs, longest)
        if (shapes := result_of_unknown_length(func, args, kwargs, self._recorder.assumptions)) is not NotImplemented:
            return self._without_values(func, treatment, args, kwargs, shapes)
        if func is aten.linalg_lstsq.default:
            raise not_predicted(name_for_users(func), "no rule says what its solver takes")
        given = self._recorder.assumptions.given()
        if given is NOT_STATED and func in _ARE_EQUAL:
            self._recorder.assumptions.state_a_decision(_TAKEN_AS_EQUAL)
            return bool(args[0].shape == args[1].shape)
        decides = torch.Tag.data_dependent_output in func.tags
        if given is NOT_STATED or not decides:
            raise data_needed(name_for_users(func), remedy_for(func), takes_value=decides or has_length(func))
        return given

    def _without_values(self, func: Any, treatment: Treatment, args: Any, kwargs: Any, shapes: Any) -> Any:
        """Return a result without values, on the device of its first argument."""
        if args[0].is_meta:
            self._recorder.after_op(treatment, args, kwargs, shapes)
        else:
            shapes = with_each(self._host.blank_like, shapes)
        self._host.counted(func, args, shapes)
        return shapes

    def _number(self, tensor: Tensor) -> Any:
        """For C++ code that wants a plain number; a program's own `.item()` is answered before."""
        assumptions = self._recorder.assumptions
        stands = self._host.stands_for(tensor)
        assumed = assumptions.for_library(bool if tensor.dtype == torch.bool else int, stands)
        if assumed is not None:
            return assumed
        given = assumptions.given()
        if given is not NOT_STATED:
            return given
        if self._host.stand_ins.is_drawn(tensor):
            raise data_needed(name_for_users(aten._local_scalar_dense.default))
        if tensor.dtype == torch.bool:
            return assumptions.truth(stands)
        if tensor.is_floating_point():
            return float(assumptions.number())
        if tensor in self._recorder.choices:
            assumptions.state_a_decision(FIRST_CHOSEN)
            return FIRST_INDEX
        if stands is None:
            raise data_needed(name_for_users(aten._local_scalar_dense.default))
        return int(assumptions.number(whole=True, stands=stands))

    def _longest(self, lengths: Any) -> int | None:
        if isinstance(lengths, Tensor):
            values = self._host.known.of(lengths) if lengths.is_meta else lengths
            known = values is not None and not self._host.is_unknown(lengths)
            return int(values.max()) if known and values is not None else None
        return max(lengths, default=0)

    def _losses_of_sequences(self, treatment: Treatment, args: Any, kwargs: Any, longest: int) -> Any:
        """A loss a sequence, and for backward a row a step: as long as the longest target with blanks between."""
        steps, batch = args[0].shape[:2]
        losses = args[0].new_empty(batch)
        out = losses, args[0].new_empty(batch, steps, 2 * longest + 1)
        self._recorder.after_op(treatment, args, kwargs, out)
        return out

    def _index(self, args: Any) -> Any:
        """With masks: as on a card, each becomes the places where it is true."""
        tensor, indices = args[0], args[1]
        masks = [index for index in indices if index is not None and index.dtype in _MASKS]
        if not any(mask.is_meta or self._host.is_unknown(mask) for mask in masks):
            return NotImplemented
        places: list[Tensor | None] = []
        with self._mode:
            for index in indices:
                if index is None or index.dtype not in _MASKS:
                    places.append(index)
                else:
                    places += aten.nonzero.default(index).unbind(1)
            return aten.index.Tensor(tensor, places)

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
        if places.nbytes <= _MOST_PLACES:
            self._host.known.put(places, first, _TAKEN_AS_TRUE)
        return places

    def _count(self, tensor: Tensor) -> int:
        given = self._recorder.assumptions.for_library(bool)
        if given is None:
            given = self._recorder.assumptions.given()
        share = self._host.shares.places_in(tensor) if given is NOT_STATED else None
        if share is not None:
            self._recorder.assumptions.state(CHOSEN_EVENLY)
            return share
        if given is NOT_STATED or given is True:
            self._recorder.assumptions.state(_TAKEN_AS_TRUE)
            return tensor.numel()
        if given is False:
            return 0
        if type(given) is int and 0 <= given <= tensor.numel():
            return given
        raise UsageError(
            f"A mask of {tensor.numel():,} elements is true that often at most, or True or False; not {given}."
        )
