"""Passes and blocks that repeat an earlier one: their allocations are made again without running an operator.

A forward or backward that starts with the same live memory and equal inputs asks for the same memory in the same order.
So only the first of equal passes runs; of the others, mallocs, frees, labels, phases and work are repeated. The same
holds within a forward pass without gradients for the layers of a list that are built alike and get inputs of the same
kinds, and for a module that is called again, such as a decoder of frames. What leaves other memory behind than
gradients and outputs, or uses more than one stream, runs each time.
"""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from itertools import chain
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn

from memviz.predictor.compat import without_functions, without_modes
from memviz.predictor.ledger import LiveAllocation, PhaseMark
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.rules import OperatorTotals
from memviz.predictor.shapes import tensors_among
from memviz.trace.model import Action, Category


class NotRepeatable(BaseException):
    """A repeated layer turned out not to be equal to those that ran: the prediction has to run without repetition.

    No `except Exception` of a model may catch it.
    """


RunPass = Callable[[Hashable, Sequence[torch.Tensor], Callable[[], Any]], Any]
"""Called with a key of the inputs, the weights that may get gradients, and the function that runs the pass."""
_ALLOC, _FREE = int(Action.ALLOC), int(Action.FREE_COMPLETED)
_DEFAULT_POOL = (0, 0)
_MOST_COMPARED = 1 << 8
_PART_DEPTH = 2
"""Modules that are entered in a part of a model: the model, and the part."""


@dataclass(frozen=True)
class Gradient:
    weight: int
    """Its place among the weights."""
    number: int
    like: torch.Tensor
    """A tensor of its shape and strides."""


@dataclass(frozen=True, eq=False)
class RecordedStretch:
    """A stretch that ran: its part of the history, and what it counted."""

    events: range
    numbers: range
    marks: tuple[PhaseMark, ...]
    work: tuple[int, ...]
    """Totals that it added."""
    arrived_bytes: int
    """Copied to the host."""
    pinned: tuple[tuple[int, int], ...] = ()
    """Time and bytes of the tensors that it pinned on the host, or freed there (below 0)."""

    @property
    def left_pinned(self) -> Counter[int]:
        """Number of tensors left pinned, by bytes; negative if earlier ones were freed."""
        left = Counter[int]()
        for _, change in self.pinned:
            left[abs(change)] += 1 if change > 0 else -1
        return left


@dataclass(frozen=True)
class _RecordedPass:
    recording: RecordedStretch
    gradients: tuple[Gradient, ...]


class Repeater:
    """Records what runs on one stream, and repeats its mallocs and frees."""

    def __init__(self, recorder: AllocationRecorder, marks: list[PhaseMark]) -> None:
        self._recorder = recorder
        self._ledger = recorder.ledger
        self._marks = marks
        self._kept: dict[RecordedStretch, tuple[set[int], set[int]]] = {}
        """Allocations that each stretch left live: others, and workspaces."""
        self.repeated = 0

    def _state(self) -> Mapping[str, Any]:
        recorder, ledger = self._recorder, self._ledger
        return {
            "events": len(ledger.history),
            "numbers": ledger.count,
            "marks": len(self._marks),
            "emptied": len(ledger.emptied),
            "work": astuple(recorder.totals),
            "arrived": recorder.host.arrived_bytes,
            "pinned": recorder.pinned.used,
            "changes": len(recorder.pinned.changes),
        }

    def _recording(
        self, start: Mapping[str, Any], *, own: Collection[int | None] | None = (), pins: bool = False
    ) -> RecordedStretch | None:
        """Return what ran since `start`; None where it cannot be repeated.

        It may have freed what it made and what `own` names; anything where that is None. With `pins`, it may leave
        more or less memory pinned on the host.
        """
        end, history = self._state(), self._ledger.history
        if end["emptied"] != start["emptied"] or (end["pinned"] != start["pinned"] and not pins):
            return None
        events, numbers = range(start["events"], end["events"]), range(start["numbers"], end["numbers"])
        if self._recorder.position.follows_streams or any(history.stream[events.start : events.stop]):
            return None
        if set(history.pool[events.start : events.stop]) - {_DEFAULT_POOL}:
            return None
        causes = history.cause[events.start : events.stop]
        if own is not None and any(number not in numbers and number not in own for number in causes):
            return None
        work = tuple(after - first for after, first in zip(end["work"], start["work"], strict=True))
        marks = tuple(self._marks[start["marks"] :])
        pinned = tuple(self._recorder.pinned.changes[start["changes"] :])
        return RecordedStretch(events, numbers, marks, work, end["arrived"] - start["arrived"], pinned)

    def _new_gradient(self, place: int, weight: torch.Tensor, numbers: range) -> Gradient | None:
        """Return the gradient of a weight; None unless it has memory of its own, allocated among these."""
        gradient = weight.grad
        if type(gradient) is not torch.Tensor:
            return None
        allocation = self._ledger.allocation_of(gradient.untyped_storage())
        size = gradient.numel() * gradient.element_size()
        if allocation is None or allocation.number not in numbers or allocation.requested != size:
            return None
        with without_modes():
            like = torch.empty_strided(gradient.shape, gradient.stride(), dtype=gradient.dtype, device="meta")
        return Gradient(place, allocation.number, like)

    def _kept_allocations(self, recording: RecordedStretch) -> Set[int] | None:
        """Return the allocations that were not freed within it, but workspaces; None where a workspace is gone."""
        if recording not in self._kept:
            history, categories = self._ledger.history, self._recorder.categories.values
            kept = set(recording.numbers)
            for event in recording.events:
                if history.action[event] == Action.FREE_COMPLETED:
                    kept.discard(history.cause[event])
            workspaces = {number for number in kept if categories[number] == Category.WORKSPACE}
            self._kept[recording] = kept - workspaces, workspaces
        kept, workspaces = self._kept[recording]
        live = {allocation.number for allocation in self._recorder.workspaces.live}
        return None if workspaces - live else kept

    def _repeat_events(
        self,
        recording: RecordedStretch,
        allocate: Callable[[int, int], LiveAllocation | None],
        free: Callable[[int, int, dict[int, LiveAllocation]], None] | None = None,
        pin: Callable[[int], None] | None = None,
    ) -> dict[int, LiveAllocation]:
        """Allocate and free as recorded; return the allocations that live on, by the recorded number."""
        recorder, ledger, history = self._recorder, self._ledger, self._ledger.history
        made: dict[int, LiveAllocation] = {}
        pin = pin or recorder.host_memory.repeat_pinned
        # Marks of phases and changes of pinned memory are between the events.
        between = [(mark[2], partial(self._mark, mark)) for mark in recording.marks]
        between += [(time, partial(pin, change)) for time, change in recording.pinned]
        between.sort(key=operator.itemgetter(0))
        at = 0
        part = slice(recording.events.start, recording.events.stop)
        columns = (history.action[part], history.cause[part], ledger.times[part], ledger.stacks[part])
        for event, action, number, time, stack in zip(recording.events, *columns, strict=True):
            while at < len(between) and between[at][0] < time:
                between[at][1]()
                at += 1
            if action == _ALLOC:
                allocation = allocate(event, number)
                if allocation is not None:
                    made[number] = allocation
            elif action == _FREE and free is not None:
                free(event, number, made)
            elif action == _FREE:
                ledger.free(made.pop(number), stack)
        for _, repeat in between[at:]:
            repeat()
        for name, added in zip(_TOTALS, recording.work, strict=True):
            setattr(recorder.totals, name, getattr(recorder.totals, name) + added)
        recorder.host.arrived_bytes += recording.arrived_bytes
        self.repeated += 1
        return made

    def _allocate(
        self, event: int, number: int, category: int, move: Callable[[int], int], call: int = 0
    ) -> LiveAllocation | None:
        """Repeat an allocation with its labels; None for a workspace, which lives on.

        `move` is from the path of the module that made it to that of this one; `call` is the module's call that decides
        an open category, else 0.
        """
        if category == Category.WORKSPACE:
            return None
        columns, ledger = self._recorder.columns, self._ledger
        columns.category.allocated(_UNKNOWN if call else category, may_be_saved=bool(call), call=call)
        columns.module.append(move(columns.module[number]))
        columns.phase.append(columns.phase[number])
        columns.rule.append(columns.rule[number])
        columns.forward_stack.append(columns.forward_stack[number])
        return ledger.malloc(ledger.history.size[event], ledger.stacks[event])

    def _drop(self, drop: Callable[[], None], stack: int) -> None:
        """Drop a tensor, of which this has to be the last owner."""
        ledger, events = self._ledger, len(self._ledger.history)
        before, ledger.stack_of_free = ledger.stack_of_free, lambda: stack
        try:
            drop()
        finally:
            ledger.stack_of_free = before
        if len(ledger.history) == events:
            raise NotRepeatable

    def _mark(self, mark: PhaseMark) -> None:
        self._marks.append((mark[0], mark[1], self._ledger.mark()))


class PassRepeater(Repeater):
    """Runs passes of one program, and repeats those that are equal to an earlier one."""

    def __init__(self, recorder: AllocationRecorder, marks: list[PhaseMark]) -> None:
        super().__init__(recorder, marks)
        self._recorded: dict[Hashable, _RecordedPass] = {}
        self.is_on = True
        """Set to False where reference cycles hold memory, since they are collected at other times."""

    def run(self, key: Hashable, weights: Sequence[torch.Tensor], take: Callable[[], Any]) -> Any:
        """Run a pass, or repeat an equal one. An empty key is equal to no other."""
        if not key or not self.is_on:
            return take()
        with without_functions():
            before = [weight.grad for weight in weights]
        full_key = (key, bytes(gradient is not None for gradient in before))
        recorded = self._recorded.get(full_key)
        if recorded is not None:
            outputs = self._outputs(recorded)
            return take() if outputs is None else self._repeat(recorded, weights, outputs)
        start = self._state()
        out = take()
        with without_functions():
            recording = self._recording(start)
            gradients = None if recording is None else self._gradients(before, weights, recording.numbers)
        if recording is not None and gradients is not None:
            self._recorded[full_key] = _RecordedPass(recording, gradients)
        return out

    def _gradients(
        self, before: list[torch.Tensor | None], weights: Sequence[torch.Tensor], numbers: range
    ) -> tuple[Gradient, ...] | None:
        """Return the gradients that are new, each with memory of its own; None where others changed."""
        gradients = []
        for place, (weight, old) in enumerate(zip(weights, before, strict=True)):
            if weight.grad is old:
                continue
            gradient = None if old is not None else self._new_gradient(place, weight, numbers)
            if gradient is None:
                return None
            gradients.append(gradient)
        if len({gradient.number for gradient in gradients}) < len(gradients):
            return None
        return tuple(gradients)

    def _outputs(self, recorded: _RecordedPass) -> list[int] | None:
        """Return what the pass left to its caller, in the order in which it was freed later; None if any lives."""
        history = self._ledger.history
        kept = self._kept_allocations(recorded.recording)
        if kept is None:
            return None
        later = [
            history.cause[event]
            for event in range(recorded.recording.events.stop, len(history))
            if history.action[event] == Action.FREE_COMPLETED and history.cause[event] in kept
        ]
        if len(later) < len(kept):
            return None
        gradients = {gradient.number for gradient in recorded.gradients}
        return [number for number in later if number not in gradients]

    def _repeat(self, recorded: _RecordedPass, weights: Sequence[torch.Tensor], outputs: list[int]) -> Any:
        gradients = {gradient.number: gradient for gradient in recorded.gradients}
        categories = self._recorder.categories.values

        def allocate(event: int, number: int) -> LiveAllocation | None:
            allocation = self._allocate(event, number, categories[number], lambda module: module)
            if number in gradients and allocation is not None:
                gradient = gradients[number]
                with without_functions(), without_modes():
                    weights[gradient.weight].grad = tensor_that_owns(self._ledger, gradient.like, allocation)
            return allocation

        made = self._repeat_events(recorded.recording, allocate)
        return _Output(self._ledger, [made[number] for number in outputs])


@dataclass(frozen=True)
class OutputTensor:
    number: int
    """Its allocation; -1 where it is an argument's memory."""
    argument: int
    """Place of the argument whose memory it is, else -1."""
    is_argument: bool
    """True if it is that argument itself."""
    like: torch.Tensor
    """A tensor of its shape, strides and offset."""


@dataclass(frozen=True)
class RecordedBlock:
    recording: RecordedStretch
    path: str
    outputs: tuple[OutputTensor | None, ...]
    is_tuple: bool
    used: tuple[int, ...]
    """Places of the parameters on the device that operators took."""
    undecided: Mapping[int, int]
    """Calls that made the allocations whose category was open at the end."""
    replaced: Mapping[int, Any]
    """Values that it put in the place of others, by place in `Replaceable`."""
    given: tuple[int | None, ...]
    """Allocations of what could be replaced when it began."""


class BlockRepeater(Repeater):
    """Runs the layers of lists in a forward pass without gradients, and repeats those that are equal to another."""

    def __init__(self, recorder: AllocationRecorder, marks: list[PhaseMark]) -> None:
        super().__init__(recorder, marks)
        self._blocks: WeakKeyDictionary[nn.Module, Hashable] = WeakKeyDictionary()
        """Structures of the layers that may be equal to another, without their weights."""
        self._called: WeakSet[nn.Module] | None = None
        """Modules that were called, once a model is followed."""
        self._records_again = False
        """True within a module that is recorded since it was called before."""
        self._recorded: dict[Hashable, RecordedBlock | None] = {}

    def follow(self, model: nn.Module) -> None:
        """Find the lists of two or more layers of one class."""
        self._called = WeakSet()
        structures = _Structures()
        for module in nn.Module.modules(model):
            if isinstance(module, nn.ModuleList | nn.Sequential):
                kinds = Counter(map(type, module))
                for layer in module:
                    if kinds[type(layer)] > 1 and next(layer.children(), None) is not None:
                        self._blocks[layer] = structures.number_of(layer)

    def run(self, module: nn.Module, args: Any, kwargs: Any, call: Callable[..., Any]) -> Any:
        """Call a module, or repeat the call of an equal one."""
        structure = self._blocks.get(module)
        if torch.is_grad_enabled() or structure is None and not self._may_repeat_itself(module):
            return call(module, *args, **kwargs)
        with _without_collecting(module) as collect:
            out = self._run_or_repeat(structure, module, args, kwargs, call)
        for hook in collect:
            hook(module, args, out)
        return out

    def _run_or_repeat(
        self, structure: Hashable, module: nn.Module, args: Any, kwargs: Any, call: Callable[..., Any]
    ) -> Any:
        with without_functions():
            values = (*args, *kwargs.values())
            items = Replaceable(values, module, self._number_of)
            # One that is called again is compared with itself alone.
            kind, frozen = (
                module if structure is None else structure,
                {name: _frozen(kwargs[name]) for name in kwargs},
            )
            key = self._key(kind, map(_frozen, args), frozen, (*items.weights, *nn.Module.buffers(module)))
            del frozen
            keys = (key, items.owners()), (key, items.owners(), self._values_of(values))
            arguments = [value for value in values if isinstance(value, torch.Tensor)]
        if key is None:
            return call(module, *args, **kwargs)
        # Other values are other inputs where they decided something.
        by_values = keys[1] in self._recorded
        if keys[by_values] in self._recorded:
            recorded = self._recorded[keys[by_values]]
            if recorded is None:
                return call(module, *args, **kwargs)
            if self._kept_allocations(recorded.recording) is not None:
                self._recorder.value_reads += by_values
                return self._repeat(recorded, arguments, items)
        is_first = structure is None and self._called is not None and module not in self._called
        if self._called is not None:
            self._called.add(module)
        start, before, reads = self._state(), self._records_again, self._recorder.value_reads
        self._records_again |= structure is None and not is_first
        try:
            out = call(module, *args, **kwargs)
        finally:
            self._records_again = before
        block = None
        if not is_held_elsewhere(out, arguments):
            with without_functions():
                block = self._record_call(self._recording(start, own=set(items.numbers)), arguments, out, items)
            if block is not None:
                made = (*block.outputs, *block.replaced.values())
                new = {one.number for one in made if isinstance(one, OutputTensor) and one.argument < 0}
                # A call that kept more than its outputs is not repeated.
                block = block if self._kept_allocations(block.recording) == new else None
        # A first call may keep what later ones use.
        if block is not None or not is_first:
            arrived = block is not None and block.recording.arrived_bytes > 0
            self._recorded[keys[arrived or self._recorder.value_reads > reads]] = block
        return out

    def _may_repeat_itself(self, module: nn.Module) -> bool:
        """Return True from the second call of a module with others inside, as of a decoder of frames; from the first of
        a part of the model, as of the network that a pipeline calls once a step."""
        if self._called is None or self._records_again or next(module.children(), None) is None:
            return False
        if module in self._called or len(self._recorder.position.modules) == _PART_DEPTH:
            return True
        self._called.add(module)
        return False

    def _number_of(self, tensor: Any) -> int | None:
        is_tensor = isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided
        allocation = self._ledger.allocation_of(tensor.untyped_storage()) if is_tensor else None
        return None if allocation is None else allocation.number

    def _key(
        self, structure: Hashable, args: Iterable[Any], kwargs: Mapping[str, Any], weights: Iterable[torch.Tensor]
    ) -> Hashable:
        given = (*args, *kwargs.values())
        inputs = key_of_inputs(given, mutable=False)
        if inputs is None:
            return None
        # Equal memory under other names would be other inputs.
        storages = [tensor.untyped_storage()._cdata for tensor in tensors_among(given)]
        shared = tuple(storages.index(storage) for storage in storages)
        places = tuple(map(self._place_of, weights))
        autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        caller = self._recorder.stacks.current_key()
        return structure, inputs, tuple(kwargs), shared, places, autocast, caller

    def _values_of(self, given: Any) -> tuple[bytes | int, ...]:
        """Return a key of the arguments' known values: the values, or the memory if they are many."""
        known, values = self._recorder.host.known, []
        for tensor in tensors_among(given):
            if tensor in known:
                held = known.of(tensor) if tensor.numel() <= _MOST_COMPARED else None
                storage = int(tensor.untyped_storage()._cdata)
                with without_modes():
                    values.append(storage if held is None else str(held.tolist()).encode())
        return tuple(values)

    def _place_of(self, weight: torch.Tensor) -> Hashable:
        is_here = self._ledger.allocation_of(weight.untyped_storage()) is not None
        return tuple(weight.shape), weight.stride(), weight.dtype, type(weight), is_here

    def _record_call(
        self, recording: RecordedStretch | None, arguments: list[torch.Tensor], out: Any, items: Replaceable
    ) -> RecordedBlock | None:
        """Return the call; None where it cannot be repeated."""
        changed = items.changed(self._number_of)
        results = out if type(out) is tuple else (out,)
        if recording is None or changed is None or recording.marks or self._kept_allocations(recording) is None:
            return None
        places = [place for place, value in changed.items() if isinstance(value, torch.Tensor)]
        outputs = self._outputs(arguments, [*results, *(changed[place] for place in places)])
        if outputs is None:
            return None
        undecided = {number: self._recorder.categories.call_of(number) for number in recording.numbers}
        used = items.labelled_weights(lambda number: self._recorder.categories.values[number] == Category.PARAMETER)
        replaced = changed | dict(zip(places, outputs[len(results) :], strict=True))
        path, is_tuple = self._recorder.position.path, type(out) is tuple
        return RecordedBlock(
            recording, path, outputs[: len(results)], is_tuple, used, undecided, replaced, items.numbers
        )

    def _outputs(self, arguments: list[torch.Tensor], values: Iterable[Any]) -> tuple[OutputTensor | None, ...] | None:
        known, numbers = self._recorder.host.known, list(map(self._number_of, arguments))
        outputs: list[OutputTensor | None] = []
        for tensor in values:
            if tensor is None:
                outputs.append(None)
                continue
            if type(tensor) is not torch.Tensor or not tensor.is_floating_point() or tensor in known:
                return None
            storage = tensor.untyped_storage()
            allocation = self._ledger.allocation_of(storage)
            if allocation is None:
                return None
            argument = numbers.index(allocation.number) if allocation.number in numbers else -1
            same = next((place for place, given in enumerate(arguments) if given is tensor), -1)
            with without_modes():
                like = like_in_memory(tensor, memory_of(storage.nbytes()))
            outputs.append(OutputTensor(allocation.number, max(argument, same), same >= 0, like))
        return tuple(outputs)

    def _repeat(self, recorded: RecordedBlock, arguments: list[torch.Tensor], items: Replaceable) -> Any:
        paths = self._recorder.position.path_mover(recorded.path)
        categories, undecided = self._recorder.categories.values, recorded.undecided
        with without_functions():
            self._recorder.label_used(items.weights[place] for place in recorded.used)

        def allocate(event: int, number: int) -> LiveAllocation | None:
            return self._allocate(event, number, categories[number], paths, undecided[number])

        def free(event: int, number: int, made: dict[int, LiveAllocation]) -> None:
            if number in made:
                self._ledger.free(made.pop(number), self._ledger.stacks[event])
            else:
                with without_functions(), without_modes():
                    self._drop(partial(items.drop, number, recorded.given), self._ledger.stacks[event])

        made = self._repeat_events(recorded.recording, allocate, free)
        with without_functions(), without_modes():
            results, replaced = self._make_outputs(recorded, made, arguments)
            items.replace(replaced)
        return results if recorded.is_tuple else results[0]

    def _make_outputs(
        self, recorded: RecordedBlock, made: dict[int, LiveAllocation], arguments: list[torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[int, Any]]:
        """Return what a repeated call returns, and what it puts into lists; allocations are taken from `made`."""
        storages: dict[int, torch.UntypedStorage] = {}

        def tensor(output: OutputTensor | None) -> torch.Tensor | None:
            if output is None:
                return None
            if output.is_argument:
                return arguments[output.argument]
            if output.argument >= 0:
                storage = arguments[output.argument].untyped_storage()
            elif output.number in storages:
                storage = storages[output.number]
            else:
                storage = storages[output.number] = memory_of(output.like.untyped_storage().nbytes())
                self._ledger.own(storage, made.pop(output.number))
            return like_in_memory(output.like, storage)

        results = tuple(map(tensor, recorded.outputs))
        replaced = recorded.replaced.items()
        return results, {place: tensor(one) if isinstance(one, OutputTensor) else one for place, one in replaced}


class Replaceable:
    """Values in whose place a call may put others: items of the lists that it gets, as a cache of earlier frames, and
    the memory of its weights, as one that casts them up and down again."""

    def __init__(self, values: Iterable[Any], module: nn.Module, number_of: Callable[[Any], int | None]) -> None:
        values = tuple(values)
        self._lists = [(held, len(held)) for held in values if type(held) is list]
        self._dicts = [(held, tuple(map(id, held.values()))) for held in values if type(held) is dict]
        self._module = module
        self.weights = tuple(nn.Module.parameters(module))
        self.numbers = tuple(map(number_of, self._values()))
        """Allocations of the tensors."""
        self._ids = tuple(map(id, self._values()))

    def _items(self) -> Iterable[Any]:
        return chain(*(held for held, _ in self._lists))

    def _values(self) -> Iterable[Any]:
        return chain(self._items(), self.weights)

    def owners(self) -> tuple[int, ...]:
        return tuple(owners_of(value) for value in self._items() if isinstance(value, torch.Tensor))

    def labelled_weights(self, is_labelled: Callable[[int], bool]) -> tuple[int, ...]:
        """Return the places of the weights whose memory before the call has a label."""
        numbers = self.numbers[len(self.numbers) - len(self.weights) :]
        return tuple(place for place, number in enumerate(numbers) if number is not None and is_labelled(number))

    def changed(self, number_of: Callable[[Any], int | None]) -> dict[int, Any] | None:
        """Return the values that are others now, by place; None where a list got longer, a weight is another object, or
        what a list holds is unknown."""
        weights = tuple(nn.Module.parameters(self._module))
        is_same = len(weights) == len(self.weights) and all(map(operator.is_, weights, self.weights))
        is_same &= all(tuple(map(id, held.values())) == ids for held, ids in self._dicts)
        if not is_same or any(len(held) != length for held, length in self._lists):
            return None
        before = zip(self._ids, self.numbers, strict=True)
        pairs = enumerate(zip(self._values(), before, strict=True))
        others = {place: value for place, (value, old) in pairs if (id(value), number_of(value)) != old}
        if any(key_of_inputs(value, mutable=False) is None for value in others.values()):
            return None
        return {place: value.data if isinstance(value, nn.Parameter) else value for place, value in others.items()}

    def drop(self, number: int, numbers: Sequence[int | None]) -> None:
        """Drop the values of one allocation, by the number that it had when the call was recorded."""
        self.replace({place: None for place, one in enumerate(numbers) if one == number})

    def replace(self, values: Mapping[int, Any]) -> None:
        start = 0
        for held, length in self._lists:
            for place in range(length):
                if start + place in values:
                    held[place] = values[start + place]
            start += length
        for place, weight in enumerate(self.weights, start):
            if place in values:
                value = values[place]
                weight.data = like_in_memory(weight, memory_of(weight.nbytes)) if value is None else value


def _frozen(value: Any) -> Any:
    """Return an argument whose items may be compared: those of a list are followed, a dict has to stay as it is."""
    if type(value) is dict:
        return ("dict", *chain(*value.items()))
    return ("list", *value) if type(value) is list else value


def owners_of(tensor: Any) -> int:
    """Return how many hold a tensor or its memory, of Python and of C++."""
    memory: Any = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return int(memory) + int(tensor._use_count()) + sys.getrefcount(tensor)


def _references_of_a_call() -> int:
    """References of the caller's variable, the parameter and `getrefcount`; one more while Dynamo evaluates frames.

    Dynamo may go on with that after a graph that it could not make.
    """
    fresh = object()
    return (lambda value: sys.getrefcount(value))(fresh)


def is_held_elsewhere(out: Any, arguments: Sequence[torch.Tensor] = ()) -> bool:
    """Return whether anything but the caller has a reference to what was returned, besides arguments."""
    given = {id(None), *map(id, arguments)}
    if id(out) not in given and sys.getrefcount(out) > _references_of_a_call():
        return True
    places = range(len(out)) if type(out) is tuple else ()
    return any(id(out[place]) not in given and sys.getrefcount(out[place]) > 2 for place in places)


_COLLECTS = "install_output_capuring_hook.<locals>.output_capturing_hook"
"""Name, as transformers spells it, of the hook that only appends outputs to a list, as for hidden states."""


@contextmanager
def _without_collecting(module: nn.Module) -> Iterator[list[Callable[..., Any]]]:
    """Leave the hooks that collect outputs without effect, and yield them: a call that is repeated calls no hook."""
    hooks = module._forward_hooks
    apart = {key: hook for key, hook in hooks.items() if getattr(hook, "__qualname__", "") == _COLLECTS}
    hooks.update(dict.fromkeys(apart, lambda *_: None))
    try:
        yield list(apart.values())
    finally:
        hooks.update(apart)


def tensor_that_owns(ledger: Any, like: torch.Tensor, allocation: LiveAllocation) -> torch.Tensor:
    tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
    ledger.own(tensor.untyped_storage(), allocation)
    return tensor


def like_in_memory(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a tensor of the same dtype, offset, shape and strides in other memory."""
    empty = torch.empty(0, dtype=tensor.dtype, device="meta")
    return empty.set_(storage, int(tensor.storage_offset()), tensor.size(), tensor.stride())


def memory_of(size: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(size, device="meta")  # type: ignore[no-untyped-call]


_NO_EFFECT = frozenset({"layer_idx", "_modules", "_parameters", "_buffers", "_orig_mod"})
"""The place in a cache of keys and values, since a call with a cache is not repeated; and what is compared apart."""
_DEPTH = 3
"""How deep attributes, and what hooks hold, are compared."""


class _Structures:
    """Numbers of what memory depends on in modules besides their weights: classes, settings and hooks."""

    def __init__(self) -> None:
        self._settings: dict[int, Hashable] = {}
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[nn.Module, int] = {}

    def number_of(self, module: nn.Module) -> int:
        """Return the same number for modules of equal structure."""
        number = self._known.get(module)
        if number is None:
            held = tuple((key, value) for key, value in vars(module).items() if key not in _NO_EFFECT)
            settings = tuple((key, _settings_key(value, _DEPTH, self._settings)) for key, value in held)
            inside = tuple((name, self.number_of(child)) for name, child in module.named_children())
            key = type(module), settings, inside
            number = self._known[module] = self._numbers.setdefault(key, len(self._numbers))
        return number


def _settings_key(value: Any, depth: int, seen: dict[int, Hashable]) -> Hashable:
    """Return plain values and the code of functions, down to a depth; of others the type."""
    if value is None or isinstance(value, bool | int | float | str | type | torch.dtype | CodeType):
        return value
    if isinstance(value, torch.Tensor):
        return key_of_inputs(value)
    if not depth or isinstance(value, nn.Module):
        return (type(value),)
    if id(value) in seen:
        # Configurations are shared by all modules.
        return seen[id(value)]
    parts: Iterable[Any]
    if isinstance(value, Mapping):
        # Hooks are listed by numbers that no two modules share.
        parts = value.values() if all(isinstance(key, int) for key in value) else chain(*value.items())
    elif isinstance(value, tuple | list | set | frozenset):
        parts = value
    elif isinstance(value, MethodType):
        parts = (value.__func__, value.__self__)
    elif isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        parts = (value.__code__, *cells, *(value.__defaults__ or ()))
    else:
        parts = chain((value.func, value.args) if isinstance(value, partial) else (), getattr(value, "__dict__", ()))
        parts = chain(parts, getattr(value, "__dict__", {}).values())
    result = seen[id(value)] = type(value), tuple(_settings_key(part, depth - 1, seen) for part in parts)
    return result


_UNKNOWN = int(Category.UNKNOWN)
_TOTALS = tuple(OperatorTotals.__dataclass_fields__)


class _Output:
    """Represents the output of a repeated pass, and frees its memory when deleted."""

    def __init__(self, ledger: Any, allocations: list[LiveAllocation]) -> None:
        self._ledger = ledger
        self._allocations = allocations

    def __del__(self) -> None:
        for allocation in self._allocations:
            if not self._ledger.closed:
                self._ledger.free(allocation, self._ledger.stack_of_free())


def key_of_inputs(value: Any, *, mutable: bool = True) -> Hashable:
    """Return what memory depends on in the inputs of a pass; None where that is unknown.

    With `mutable=False`, lists and dicts with contents are unknown too: what gets them may write to them.
    """
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device.type, value.requires_grad)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return ("value", value)
    if not mutable and isinstance(value, list | Mapping) and value:
        return None
    if isinstance(value, Mapping):
        value = [part for name in value for part in (name, value[name])]
    if not isinstance(value, list | tuple):
        return None
    parts = tuple(key_of_inputs(part, mutable=mutable) for part in value)
    return None if None in parts else (type(value).__name__, parts)
