"""Layers of a training step that repeat an earlier one, forward and backward, without running an operator.

Layers of a list that are built alike and get inputs of the same kinds ask for the same memory in the same order. The
first of them runs, and so do the last three, whose backward comes first; those between are one node of the graph each,
that allocates and frees as theirs would. The events are those of a step in which all layers run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from memviz.predictor.compat import without_functions, without_modes
from memviz.predictor.ledger import LiveAllocation, PhaseMark
from memviz.predictor.position import NO_TASK
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.repetition import (
    BlockRepeater,
    Gradient,
    NotRepeatable,
    RecordedBlock,
    RecordedStretch,
    Replaceable,
    is_held_elsewhere,
    like_in_memory,
    memory_of,
    owners_of,
    tensor_that_owns,
)
from memviz.predictor.shapes import tensors_among
from memviz.trace.model import Action, Category

_autograd: Any = torch._C._autograd
_Source = tuple[str, int] | None
"""Origin of an argument with a gradient: an output of the layer before, or the same argument as of the layer before."""
_Origin = tuple[str, int]
"""Owner of memory that a backward frees: itself ("new"), its forward, a gradient of an output, or an argument."""


@dataclass(frozen=True)
class _Place:
    run: int
    index: int
    count: int


@dataclass(frozen=True)
class _TrainedForward(RecordedBlock):
    categories: Mapping[int, int]
    order: tuple[int, ...]
    """Its allocations without workspaces."""
    shape: tuple[tuple[int, int, int], ...]
    """Mallocs and frees with sizes and places in `order`, which are the same for equal layers."""
    held: tuple[bool, ...]
    """Arguments that its graph holds."""

    @property
    def asks_for(self) -> Hashable:
        """Return what is the same for equal layers."""
        return self.shape, self.held, tuple(change for _, change in self.recording.pinned)


@dataclass
class _RanLayer:
    key: Hashable
    place: _Place
    forward: _TrainedForward
    weights: tuple[torch.Tensor, ...]
    had_gradients: tuple[bool, ...]
    sources: tuple[_Source, ...]
    arguments: tuple[int | None, ...]
    """Allocations of its arguments."""
    is_checkpointed: bool
    """True if its inputs wait on the host until a checkpoint needs them."""
    start: Mapping[str, Any] | None = None
    gradients: dict[int, int | None] | None = None
    """Allocations of the gradients of its outputs."""


@dataclass(frozen=True)
class _TrainedBackward:
    recording: RecordedStretch
    path: str
    origins: Mapping[int, _Origin]
    """Owners of the allocations that it frees."""
    weights: Mapping[int, Gradient]
    """Gradients of weights, by allocation."""
    arguments: tuple[tuple[int, int, torch.Tensor], ...]
    """Gradients of arguments: place of the argument, allocation, a tensor of its kind."""
    given: Mapping[int, int | None]
    """Allocations of the gradients of the outputs."""
    categories: Mapping[int, int]
    freed_inputs: Counter[int]
    """Sizes of the inputs on the host that it freed, which a checkpoint put there before the forward."""


class _RepeatedLayer:
    """Memory that a repeated layer keeps until its backward."""

    def __init__(self, repeater: TrainedBlockRepeater, key: Hashable, place: _Place, path: str) -> None:
        self.repeater, self.key, self.place, self.path = repeater, key, place, path
        self.kept: dict[int, LiveAllocation] = {}
        """Its allocations that live on but outputs, by their place in the order of its forward."""
        self.is_pinned = False
        """True while memory of the host waits for its backward."""
        self.frame: Any = None
        """Holds what a checkpoint keeps of a layer whose inputs wait on the host."""
        self.arguments: list[torch.UntypedStorage | None] = []
        self.sources: tuple[_Source, ...] = ()
        self.inputs: tuple[int, ...] = ()
        """Places of the arguments with gradients."""
        self.weights: list[torch.Tensor] = []
        self.results: tuple[torch.Tensor, ...] = ()

    def __del__(self) -> None:
        # Its backward was never run, so nothing says when its memory is freed.
        self.repeater.failed |= bool(self.kept) or self.is_pinned


class _RepeatedNode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: _RepeatedLayer, *inputs: torch.Tensor) -> Any:
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        results, layer.results = layer.results, ()
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        layer, ctx.layer = ctx.layer, None
        if layer is None:
            raise NotRepeatable
        with without_functions(), without_modes():
            return (None, *layer.repeater.repeat_backward(layer, gradients))


class TrainedBlockRepeater(BlockRepeater):
    """Repeats layers with and without gradients; without, all but the first of equal ones.

    In training the last of a run begins the gradients that all its layers share, the one before may give them other
    memory, and the third last is like all others. Any mismatch ends the prediction with `NotRepeatable`.
    """

    def __init__(self, recorder: AllocationRecorder, marks: list[PhaseMark]) -> None:
        super().__init__(recorder, marks)
        self._places: WeakKeyDictionary[nn.Module, _Place] = WeakKeyDictionary()
        self._forwards: dict[Hashable, _TrainedForward | None] = {}
        self._backwards: dict[Hashable, _TrainedBackward] = {}
        self._open: _RanLayer | None = None
        """The layer whose backward runs now."""
        self._before: tuple[_Place, tuple[Hashable, ...], tuple[Hashable, ...]] | None = None
        """The layer that was called last, its arguments and its outputs."""
        self._is_inside = False
        self._runs = 0
        self.failed = False

    def follow(self, model: nn.Module) -> None:
        super().follow(model)
        for module in nn.Module.modules(model):
            if isinstance(module, nn.ModuleList | nn.Sequential):
                for structure, layers in groupby(module, self._blocks.get):
                    run = list(layers)
                    # Shorter runs have no layer between those that must run.
                    if structure is not None and len(run) >= _SHORTEST_RUN:
                        self._runs += 1
                        for index, layer in enumerate(run):
                            self._places[layer] = _Place(self._runs, index, len(run))

    def run(self, module: nn.Module, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
        if not torch.is_grad_enabled():
            return super().run(module, args, kwargs, call)
        place = self._places.get(module)
        hooks = () if place is None else _saved_tensors_hooks()
        if place is None or self._is_inside or not self._may_repeat(hooks):
            return call(module, *args, **kwargs)
        is_offloaded, is_checkpointed = not _OFFLOADS.isdisjoint(hooks), len(hooks) > 1
        with without_functions():
            arguments = list(tensors_among((args, kwargs)))
            sources = self._sources(place, arguments)
            weights = tuple(module.parameters())
            key = self._key(self._blocks[module], args, kwargs, (*weights, *module.buffers()))
            if key is not None:
                gradients = tuple((weight.requires_grad, weight.grad is None) for weight in weights)
                key = key, self._values_of((args, kwargs)), gradients, hooks
            forward = None if key is None else self._forwards.get(key)
            if forward is not None and sources is not None and place.index < place.count - _LAST_THAT_RUN:
                layer = _RepeatedLayer(self, key, place, self._recorder.position.path)
                layer.frame = _autograd._top_saved_tensors_default_hooks(False)[0] if is_checkpointed else None
                return self._repeat_forward(layer, forward, module, arguments, sources)
            started, signs = self._state(), tuple(map(self._tensor_key, arguments))
            owners = list(map(owners_of, arguments))
        self._is_inside = True
        try:
            out = call(module, *args, **kwargs)
        finally:
            self._is_inside = False
        if key is None or is_held_elsewhere(out):
            self._before = None
            return out
        with without_functions():
            # A checkpoint holds its arguments since before the call. An offload copies what the graph would hold.
            grown = [now > before for now, before in zip(list(map(owners_of, arguments)), owners, strict=True)]
            held = tuple(more or bool(hooks) and not is_offloaded for more in grown)
            forward = self._record_forward(started, module, arguments, out, held)
            if place.index or not is_offloaded or is_checkpointed:
                # The first layer may copy to the host what all layers share.
                self._forwards.setdefault(key, forward)
            outputs = list(out) if type(out) is tuple else [out]
            self._before = None if forward is None else (place, signs, tuple(map(self._tensor_key, outputs)))
            if forward is not None and sources is not None:
                numbers = tuple(map(self._number_of, arguments))
                had = tuple(weight.grad is not None for weight in weights)
                ran = _RanLayer(key, place, forward, weights, had, sources, numbers, is_checkpointed)
                for number, output in enumerate(outputs):
                    node: Any = output.grad_fn
                    node.register_prehook(partial(self._begin_backward, ran, number, output.output_nr))
        return out

    def _may_repeat(self, hooks: Sequence[str]) -> bool:
        """Return False within a backward, under autocast, and where unknown hooks take saved tensors."""
        if self._recorder.position.graph_task() != NO_TASK or torch.is_autocast_enabled("cuda"):
            return False
        if hooks and hooks[0].startswith(_CHECKPOINT):
            # It keeps nothing of what the layer saves, and gives the layer's inputs to the hook around it.
            hooks = hooks[1:]
        return not hooks or (len(hooks) == 1 and hooks[0] in _OFFLOADS)

    def _tensor_key(self, tensor: torch.Tensor) -> Hashable:
        return id(tensor), self._number_of(tensor), type(tensor.grad_fn).__name__

    def _sources(self, place: _Place, arguments: list[torch.Tensor]) -> tuple[_Source, ...] | None:
        """Return where each argument's gradient goes; None where that is not the layer before."""
        if self._before is None:
            return None
        before, signs, outputs = self._before
        if (before.run, before.index + 1) != (place.run, place.index) or len(signs) != len(arguments):
            return None
        sources: list[_Source] = []
        for number, argument in enumerate(arguments):
            sign = self._tensor_key(argument)
            if not argument.requires_grad:
                sources.append(None)
            elif sign in outputs:
                sources.append(("output", outputs.index(sign)))
            elif sign == signs[number]:
                sources.append(("shared", number))
            else:
                return None
        return tuple(sources)

    def _record_forward(
        self,
        start: Mapping[str, Any],
        module: nn.Module,
        arguments: list[torch.Tensor],
        out: Any,
        held: tuple[bool, ...],
    ) -> _TrainedForward | None:
        weights = Replaceable((), module, self._number_of)
        stretch = self._recording(start, own=set(weights.numbers), pins=True)
        block = self._record_call(stretch, arguments, out, weights)
        if block is None:
            return None
        recording, tensors = block.recording, out if isinstance(out, tuple) else (out,)
        outputs = [output for output in block.outputs if output is not None and output.argument < 0]
        if len(outputs) < len(block.outputs) or not all(tensor.requires_grad for tensor in tensors):
            return None
        categories = self._recorder.categories
        order = tuple(number for number in recording.numbers if categories.values[number] != Category.WORKSPACE)
        if any(output.number not in order for output in outputs):
            return None
        places, history = {number: place for place, number in enumerate(order)}, self._ledger.history
        shape = tuple(
            (history.action[event], history.size[event], places[history.cause[event]])
            for event in recording.events
            if history.action[event] in (Action.ALLOC, Action.FREE_COMPLETED) and history.cause[event] in places
        )
        kinds = {number: categories.values[number] for number in recording.numbers}
        return _TrainedForward(**vars(block), categories=kinds, order=order, shape=shape, held=held)

    def _begin_backward(self, layer: _RanLayer, output: int, at: int, gradients: Any) -> None:
        with without_functions():
            if self._open is not layer:
                self._open, layer.start, layer.gradients = layer, self._state(), {}
            gradient = gradients[at]
            assert layer.gradients is not None
            layer.gradients[output] = None if gradient is None else self._number_of(gradient)

    def _repeat_forward(
        self,
        layer: _RepeatedLayer,
        forward: _TrainedForward,
        module: nn.Module,
        arguments: list[torch.Tensor],
        sources: tuple[_Source, ...],
    ) -> Any:
        recorder = self._recorder
        signs = tuple(map(self._tensor_key, arguments))
        paths = recorder.position.path_mover(forward.path)
        layer.weights = list(module.parameters())
        recorder.label_used(layer.weights[place] for place in forward.used)  # type: ignore[misc]

        def allocate(event: int, number: int) -> LiveAllocation | None:
            return self._allocate(event, number, forward.categories[number], paths, forward.undecided[number])

        made = self._repeat_events(forward.recording, allocate)
        with without_modes():
            layer.results, _ = self._make_outputs(forward, made, arguments)
            layer.is_pinned = any(forward.recording.left_pinned.values())
            layer.kept = {forward.order.index(number): allocation for number, allocation in made.items()}
            layer.arguments = [
                argument.untyped_storage() if holds else None
                for argument, holds in zip(arguments, forward.held, strict=True)
            ]
            layer.sources = sources
            layer.inputs = tuple(place for place, source in enumerate(sources) if source is not None)

            outputs = _RepeatedNode.apply(layer, *(arguments[place] for place in layer.inputs))  # type: ignore[no-untyped-call]
        recorder.position.skip_earlier_nodes()
        self._before = (layer.place, signs, tuple(map(self._tensor_key, outputs)))
        return outputs if forward.is_tuple else outputs[0]

    def repeat_backward(
        self, layer: _RepeatedLayer, gradients: tuple[torch.Tensor | None, ...]
    ) -> list[torch.Tensor | None]:
        """Free and allocate as the backward of an equal layer; return the gradients of the arguments."""
        if (ran := self._open) is not None:
            self._open = None
            if ran.key == layer.key and (ran.place.run, ran.place.index) == (layer.place.run, layer.place.index + 1):
                self._backwards[layer.key] = self._record_backward(ran, layer, gradients)
        backward = self._backwards.get(layer.key)
        given = {place: gradient for place, gradient in enumerate(gradients) if gradient is not None}
        if backward is None or given.keys() != {at for at, number in backward.given.items() if number is not None}:
            raise NotRepeatable
        kept, layer.kept, layer.is_pinned = layer.kept, {}, False
        events = _BackwardEvents(self, layer, backward, kept, given)
        self._repeat_events(backward.recording, events.allocate, events.free, events.pin)
        return events.results()

    def _record_backward(
        self, ran: _RanLayer, layer: _RepeatedLayer, gradients: tuple[torch.Tensor | None, ...]
    ) -> _TrainedBackward:
        forward, first = ran.forward, self._forwards[ran.key]
        recording = None if ran.start is None else self._recording(ran.start, own=None, pins=True)
        is_equal = first is not None and forward.asks_for == first.asks_for
        if recording is None or recording.marks or not is_equal:
            raise NotRepeatable
        freed_inputs = Counter[int]()
        freed_inputs.subtract(forward.recording.left_pinned)
        freed_inputs.subtract(recording.left_pinned)
        if any(count < 0 or count > 0 and not ran.is_checkpointed for count in freed_inputs.values()):
            raise NotRepeatable
        given = ran.gradients or {}
        origins = self._origins(ran, recording, given)
        live = {allocation.number for allocation in self._ledger.live.values()}
        ended = {*forward.order} - live
        freed = {forward.order[at] for kind, at in origins.values() if kind == "forward"}
        outputs = {output.number for output in forward.outputs if output is not None}
        in_forward = {forward.order[at] for action, _, at in forward.shape if action == Action.FREE_COMPLETED}
        if ended != {*forward.order} or freed & outputs or {*forward.order} - freed - outputs - in_forward:
            raise NotRepeatable
        held = zip(ran.arguments, forward.held, strict=True)
        if any(holds and number not in live and number not in origins for number, holds in held if number is not None):
            raise NotRepeatable
        weights, arguments = self._weight_gradients(ran, recording), self._argument_gradients(ran, gradients)
        own = {number for number in recording.numbers if number in live}
        passed = {number for _, number, _ in arguments}
        if own != {*weights} | (passed - {*given.values()}) or not passed <= own | {*given.values()}:
            raise NotRepeatable
        categories = self._recorder.categories
        if any(categories.call_of(number) for number in recording.numbers):
            raise NotRepeatable
        kinds = {number: categories.values[number] for number in recording.numbers}
        return _TrainedBackward(recording, forward.path, origins, weights, arguments, given, kinds, +freed_inputs)

    def _origins(
        self, ran: _RanLayer, recording: RecordedStretch, given: Mapping[int, int | None]
    ) -> dict[int, _Origin]:
        known: dict[int | None, _Origin] = {number: ("argument", at) for at, number in enumerate(ran.arguments)}
        known |= {number: ("gradient", at) for at, number in given.items()}
        known |= {number: ("forward", at) for at, number in enumerate(ran.forward.order)}
        known |= {number: ("new", number) for number in recording.numbers}
        history, origins = self._ledger.history, {}
        for event in recording.events:
            if history.action[event] == Action.FREE_COMPLETED:
                number = history.cause[event]
                if number not in known:
                    raise NotRepeatable
                origins[number] = known[number]
        return origins

    def _weight_gradients(self, ran: _RanLayer, recording: RecordedStretch) -> dict[int, Gradient]:
        gradients: dict[int, Gradient] = {}
        for place, (weight, had) in enumerate(zip(ran.weights, ran.had_gradients, strict=True)):
            if had and weight.grad is None:
                raise NotRepeatable
            if had or weight.grad is None:
                continue
            gradient = self._new_gradient(place, weight, recording.numbers)
            if gradient is None or gradient.number in gradients:
                raise NotRepeatable
            gradients[gradient.number] = gradient
        return gradients

    def _argument_gradients(
        self, ran: _RanLayer, gradients: tuple[torch.Tensor | None, ...]
    ) -> tuple[tuple[int, int, torch.Tensor], ...]:
        """Return the gradients that went to the layer before: they are those of its outputs."""
        found = []
        for place, source in enumerate(ran.sources):
            if source is None or source[0] == "shared":
                continue
            gradient = gradients[source[1]]
            number = None if gradient is None else self._number_of(gradient)
            if gradient is None or number is None or type(gradient) is not torch.Tensor:
                raise NotRepeatable
            found.append((place, number, like_in_memory(gradient, memory_of(gradient.untyped_storage().nbytes()))))
        return tuple(found)


class _BackwardEvents:
    def __init__(
        self,
        repeater: TrainedBlockRepeater,
        layer: _RepeatedLayer,
        backward: _TrainedBackward,
        kept: dict[int, LiveAllocation],
        given: dict[int, torch.Tensor],
    ) -> None:
        self._repeater, self._layer, self._backward, self._kept = repeater, layer, backward, kept
        self._ledger = repeater._ledger
        self._storages = {at: gradient.untyped_storage() for at, gradient in given.items()}
        self._own: dict[int, torch.UntypedStorage] = {}
        """Memory of gradients of arguments."""
        self._freed_inputs = backward.freed_inputs.copy()
        self._passed = {number: like for _, number, like in backward.arguments}
        self._paths = repeater._recorder.position.path_mover(backward.path, layer.path)

    def allocate(self, event: int, number: int) -> LiveAllocation | None:
        ledger, backward = self._ledger, self._backward
        allocation = self._repeater._allocate(event, number, backward.categories[number], self._paths)
        if allocation is None:
            return None
        if (gradient := backward.weights.get(number)) is not None:
            weight = self._layer.weights[gradient.weight]
            if weight.grad is not None:
                raise NotRepeatable
            weight.grad = tensor_that_owns(ledger, gradient.like, allocation)
        elif number in self._passed:
            storage = self._own[number] = memory_of(self._passed[number].untyped_storage().nbytes())
            ledger.own(storage, allocation)
        return allocation

    def free(self, event: int, number: int, made: dict[int, LiveAllocation]) -> None:
        kind, at = self._backward.origins[number]
        stack, ledger = self._ledger.stacks[event], self._ledger
        if kind == "new":
            ledger.free(made.pop(number), stack)
        elif kind == "forward":
            if at not in self._kept:
                raise NotRepeatable
            ledger.free(self._kept.pop(at), stack)
        elif kind == "gradient":
            ledger.let_go(self._storages.pop(at), stack)
        elif self._layer.frame is not None:
            self._repeater._drop(self._drop_frame, stack)
        else:
            self._repeater._drop(partial(self._layer.arguments.__setitem__, at, None), stack)

    def pin(self, change: int) -> None:
        if change < 0 and self._freed_inputs[-change]:
            self._freed_inputs[-change] -= 1
            self._drop_frame()
        else:
            self._repeater._recorder.host_memory.repeat_pinned(change)

    def _drop_frame(self) -> None:
        self._layer.frame = None

    def results(self) -> list[torch.Tensor | None]:
        events = len(self._ledger.history)
        self._layer.arguments.clear()
        self._drop_frame()
        if len(self._ledger.history) != events or self._kept:
            raise NotRepeatable
        found: dict[int, torch.Tensor] = {}
        given = {number: at for at, number in self._backward.given.items()}
        for place, number, like in self._backward.arguments:
            storage = self._own[number] if number in self._own else self._storages.pop(given[number])
            found[place] = like_in_memory(like, storage)
        return [found.get(place) for place in self._layer.inputs]


def _saved_tensors_hooks() -> tuple[str, ...]:
    """Return the names of the functions that pack saved tensors now, innermost first."""
    hooks: list[Any] = []
    while (top := _autograd._top_saved_tensors_default_hooks(False)) is not None:
        hooks.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    for pack, unpack in reversed(hooks):
        _autograd._push_saved_tensors_default_hooks(pack, unpack)
    return tuple(getattr(pack, "__qualname__", "") for pack, _ in hooks)


_CHECKPOINT = "_checkpoint_hook."
_OFFLOADS = frozenset({"save_on_cpu.__init__.<locals>.pack_to_cpu", "_Mover.to_host", "_to_host"})
"""Torch's own, and those of `optimizations/activation_offload.py` and `checkpointing.py`."""
_LAST_THAT_RUN = 3
_SHORTEST_RUN = _LAST_THAT_RUN + 2
