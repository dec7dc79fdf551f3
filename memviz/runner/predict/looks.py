"""Operators that look at values: a number taken from a tensor, the places where a mask is true.

Where the values are known the answer is the card's own. Where nobody computes them, the answer is what the user
stated for that line, or a natural one if there is any, which is noted; otherwise the program is stopped there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from memviz.errors import UsageError
from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.arguments import with_each
from memviz.runner.predict.assumptions import NOT_STATED
from memviz.runner.predict.choices import FIRST, SENTENCE
from memviz.runner.predict.even_shares import EVENLY
from memviz.runner.predict.lengths import has_length, of_unknown_length
from memviz.runner.predict.operator_treatments import Treatment, tensors_in
from memviz.runner.predict.prediction_errors import data_needed, name_for_users, not_predicted, remedy_for

aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)
_MOST_PLACES = 1 << 22
"""Bytes."""
_ARE_EQUAL = (aten.equal.default, aten.allclose.default)
_EQUAL = "tensors that are not computed are taken to be equal"
_ALL_TRUE = "a mask that is not computed is taken to be true everywhere"


class Looks:
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
        self._recorder.ran(treatment, args, kwargs, out)
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
        if (shapes := of_unknown_length(func, args, kwargs, self._recorder.assumptions)) is not NotImplemented:
            return self._without_values(func, treatment, args, kwargs, shapes)
        if func is aten.linalg_lstsq.default:
            raise not_predicted(name_for_users(func), "no rule says what its solver takes")
        given = self._recorder.assumptions.given()
        if given is NOT_STATED and func in _ARE_EQUAL:
            self._recorder.assumptions.state_a_decision(_EQUAL)
            return bool(args[0].shape == args[1].shape)
        decides = torch.Tag.data_dependent_output in func.tags
        if given is NOT_STATED or not decides:
            raise data_needed(name_for_users(func), remedy_for(func), takes_value=decides or has_length(func))
        return given

    def _without_values(self, func: Any, treatment: Treatment, args: Any, kwargs: Any, shapes: Any) -> Any:
        """Where what it is made of lies."""
        if args[0].is_meta:
            self._recorder.ran(treatment, args, kwargs, shapes)
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
            assumptions.state_a_decision(SENTENCE)
            return FIRST
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
        self._recorder.ran(treatment, args, kwargs, out)
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
            self._recorder.ran(treatment, (tensor,), {}, places)
        first = torch.arange(count).unsqueeze(1) if tensor.dim() < 2 else None
        if first is None:
            first = torch.stack(torch.unravel_index(torch.arange(count), tensor.shape), 1)
        if tensor.dim() == 0:
            return places
        if not tensor.is_meta:
            return places.copy_(first)
        if places.nbytes <= _MOST_PLACES:
            self._host.known.put(places, first, _ALL_TRUE)
        return places

    def _count(self, tensor: Tensor) -> int:
        given = self._recorder.assumptions.for_library(bool)
        if given is None:
            given = self._recorder.assumptions.given()
        share = self._host.shares.places_in(tensor) if given is NOT_STATED else None
        if share is not None:
            self._recorder.assumptions.state(EVENLY)
            return share
        if given is NOT_STATED or given is True:
            self._recorder.assumptions.state(_ALL_TRUE)
            return tensor.numel()
        if given is False:
            return 0
        if type(given) is int and 0 <= given <= tensor.numel():
            return given
        raise UsageError(
            f"A mask of {tensor.numel():,} elements is true that often at most, or True or False; not {given}."
        )
