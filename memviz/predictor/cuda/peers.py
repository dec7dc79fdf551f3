"""Several cards in one process: the card of each operator, and copies between cards.

To torch the tensors of all cards are of one device, `meta`; the ledger knows the card of each storage. An operator
runs on the card of its arguments, and a function that makes tensors on the card that it names, or the current one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from memviz.predictor.assumptions import name_for_users
from memviz.predictor.compat import Patches, without_functions
from memviz.predictor.cuda.machine import META, FakeMachine, NamedDevices
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.rules import Treatment
from memviz.predictor.shapes import tensors_of
from memviz.trace.model import Category

aten = torch.ops.aten
_BETWEEN_CARDS = {aten._to_copy.default, aten.copy_.default, aten._foreach_copy_.default}
"""Operators whose arguments may be on different cards."""
_NCCL = ("_nccl_all_reduce", "_nccl_reduce", "_nccl_broadcast", "_nccl_all_gather", "_nccl_reduce_scatter")


class _BackToCard(torch.autograd.Function):
    """Hands a tensor to a copy to another card, and its gradient back: torch's own backward sees one device."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, device: torch.device) -> Tensor:
        ctx.device = device
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].to(ctx.device), None


class Peers:
    """Differences between a process with several cards and one with a single card."""

    def __init__(self, recorder: AllocationRecorder, named: NamedDevices) -> None:
        self._recorder = recorder
        self._named = named
        self._has_access = FakeMachine(recorder.card, named).has_peers
        self._group: Callable[..., Any] = torch._C._group_tensors_by_device_and_dtype
        self.answers: dict[Any, Callable[[Any, Any], Any]] = {
            Tensor.to: self._to,
            Tensor.cuda: self._to_card,
            Tensor.copy_: self._copy,
        }

    def follow(self, patches: Patches) -> None:
        patches.replace(torch._C, "_group_tensors_by_device_and_dtype", self._groups)
        patches.put_all(torch._C, dict.fromkeys(_NCCL, self._collective))

    def turn_to_card(self, func: Any, args: Any, kwargs: Any) -> None:
        """Turn the ledger to the card that gets an operator's results."""
        here, device = self._named.here, kwargs.get("device")
        with without_functions():
            cards = [card for card in map(self._recorder.card_of, _with_memory(args, kwargs)) if card is not None]
        if len(set(cards)) > 1 and func not in _BETWEEN_CARDS:
            other = next(card for card in cards if card != cards[0])
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:{cards[0]} and cuda:{other}! (in {name_for_users(func)})"
            )
        if device is not None and (index := torch.device(device).index) is not None:
            here.used = index
        elif cards:
            here.used = cards[0]
        self._recorder.ledger.turn_to(here.used)

    def by_card(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator on lists, as of a model on several cards, for each card; NotImplemented for any other."""
        first = args[0] if args and type(args[0]) is list and func.__name__.startswith("_foreach_") else []
        cards = [self._recorder.card_of(tensor) for tensor in first if isinstance(tensor, Tensor)]
        if len(set(cards)) < 2 or len(cards) != len(first) or func in _BETWEEN_CARDS:
            return NotImplemented
        out: list[Any] = [None] * len(cards)
        for card in dict.fromkeys(cards):
            places = [place for place, one in enumerate(cards) if one == card]
            named = {name: _entries_at(value, places) for name, value in kwargs.items()}
            results = func(*(_entries_at(value, places) for value in args), **named)
            for place, result in zip(places, results or (), strict=False):
                out[place] = result
        return None if out[0] is None else out

    def copied(self, treatment: Treatment, args: Any, kwargs: Any, out: Any) -> None:
        """Record the buffers of a copy between cards that do not reach each other's memory (torch's Copy.cu)."""
        if self._has_access or treatment.name not in ("_to_copy", "copy_"):
            return
        source: Tensor = args[1] if treatment.name == "copy_" else args[0]
        recorder = self._recorder
        from_card, to_card = recorder.card_of(source), recorder.card_of(out)
        same_dtype = source.dtype == out.dtype
        if None in (from_card, to_card) or from_card == to_card or same_dtype and source.stride() == out.stride():
            return
        at_source = kwargs.get("non_blocking") or True in args[2:]
        size = out.numel() * (out if at_source else source).element_size()
        is_whole = source.is_contiguous() and source.shape == out.shape
        needs = {
            to_card: not (out.is_contiguous() and (same_dtype or at_source)),
            from_card: not (is_whole and (same_dtype or not at_source)),
        }
        taken = []
        for card, is_needed in needs.items():
            if is_needed and card is not None:
                with recorder.ledger.on(card):
                    taken.append(recorder.allocate(Category.TEMPORARY, size, treatment.name))
        for allocation in reversed(taken):
            recorder.ledger.free(allocation)

    def _with_backward_to_card(self, tensor: Tensor, card: int) -> Tensor:
        follows = torch.is_grad_enabled() and tensor.requires_grad
        track: Any = _BackToCard
        moved: Tensor = track.apply(tensor, self._named.device(card)) if follows else tensor
        return moved

    def _to(self, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        device = rest[0] if rest else kwargs.get("device", kwargs.get("other"))
        if isinstance(device, Tensor):
            if (card := self._recorder.card_of(device)) is None:
                return NotImplemented
            rest[:1] = self._named.device(card), device.dtype
            kwargs = {name: value for name, value in kwargs.items() if name != "other"}
        elif not self._named.is_own(device, numbers=True):
            return NotImplemented
        source, target = self._recorder.card_of(tensor), self._named.card(rest[0] if rest else device)
        if source is not None and source != target:
            tensor = self._with_backward_to_card(tensor, source)
        place = META if source == target else self._named.meta(target)
        if not rest:
            return tensor.to(**{**kwargs, "device": place})
        return tensor.to(place, *rest[1:], **kwargs)

    def _to_card(self, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        device = rest.pop(0) if rest else kwargs.get("device")
        options = {"non_blocking": rest[0]} if rest else {}
        options |= {name: value for name, value in kwargs.items() if name != "device"}
        return self._to((tensor, self._named.device(self._named.card(device))), options)

    def _copy(self, args: Any, kwargs: Any) -> Any:
        target, source, *rest = args if len(args) > 1 else (args[0], kwargs.pop("src"))
        card_of = self._recorder.card_of
        if (card := card_of(source)) is not None and card_of(target) not in (None, card):
            source = self._with_backward_to_card(source, card)
        return target.copy_(source, *rest, **kwargs)

    def _groups(self, lists: Sequence[Sequence[Any]], with_indices: bool = False) -> Any:
        """Group lists of tensors by the card of the first list's, as optimizers and clipping of gradients do."""
        cards, groups = [self._recorder.card_of(tensor) for tensor in lists[0]], {}
        for card in dict.fromkeys(cards):
            places = [place for place, one in enumerate(cards) if one == card]
            part = [[tensors[place] for place in places] if tensors else [] for tensors in lists]
            for (device, dtype), (grouped, indices) in self._group(part, with_indices).items():
                own = device if card is None else self._named.device(card)
                groups[own, dtype] = grouped, [places[index] for index in indices]
        return groups

    def _collective(self, inputs: Any, outputs: Any = None, *_: Any) -> None:
        self._recorder.note_nccl()
        for tensor in tensors_of(outputs if isinstance(outputs, list | tuple | Tensor) else inputs):
            self._recorder.host.forget_values(tensor)


def _entries_at(value: Any, places: list[int]) -> Any:
    return [value[place] for place in places] if type(value) is list else value


def _with_memory(args: Any, kwargs: Any) -> list[Tensor]:
    """Return the arguments on a card; those of zero bytes only where there are no others."""
    tensors = [tensor for tensor in tensors_of((args, kwargs)) if tensor.is_meta]
    return [one for one in tensors if one.layout is not torch.strided or one.untyped_storage().nbytes()] or tensors
