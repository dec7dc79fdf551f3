"""Passes of a step that repeat an earlier one: their allocations are made again without running an operator.

A forward or backward that starts with the same live memory and equal inputs asks for the same memory in the same order.
So only the first of equal passes runs; of the others, mallocs, frees, labels, phases and work are repeated. What leaves
other memory behind than gradients and outputs, or uses more than one stream, runs each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch

from memviz.predictor.compat import without_functions, without_modes
from memviz.predictor.ledger import LiveAllocation, PhaseMark
from memviz.predictor.recorder import AllocationRecorder
from memviz.predictor.rules import OperatorTotals
from memviz.trace.model import Action, Category

RunPass = Callable[[Hashable, Sequence[torch.Tensor], Callable[[], Any]], Any]
"""Called with a key of the inputs, the weights that may get gradients, and the function that runs the pass."""
_DEFAULT_POOL = (0, 0)


@dataclass(frozen=True)
class _Gradient:
    """Gradient that a pass makes."""

    weight: int
    """Its place among the weights."""
    number: int
    """Number of its allocation."""
    like: torch.Tensor
    """A tensor of its shape and strides."""


@dataclass(frozen=True)
class _RecordedPass:
    events: range
    """Entries of the history."""
    numbers: range
    """Allocations made."""
    marks: tuple[PhaseMark, ...]
    gradients: tuple[_Gradient, ...]
    work: tuple[int, ...]
    """Totals that it added."""
    arrived_bytes: int
    """Copied to the host."""


class PassRepeater:
    """Runs passes of one program on one stream, and repeats those that are equal to an earlier one."""

    def __init__(self, recorder: AllocationRecorder, marks: list[PhaseMark]) -> None:
        self._recorder = recorder
        self._ledger = recorder.ledger
        self._marks = marks
        self._recorded: dict[Hashable, _RecordedPass] = {}
        self.is_on = True
        """Set to False where reference cycles hold memory, since they are collected at other times."""
        self.repeated = 0

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
            recording = self._record(start, before, weights)
        if recording is not None:
            self._recorded[full_key] = recording
        return out

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
        }

    def _record(
        self, start: Mapping[str, Any], before: list[torch.Tensor | None], weights: Sequence[torch.Tensor]
    ) -> _RecordedPass | None:
        """Return what a pass did since `start`; None where it cannot be repeated."""
        end, history = self._state(), self._ledger.history
        if end["emptied"] != start["emptied"] or end["pinned"] != start["pinned"]:
            return None
        events, numbers = range(start["events"], end["events"]), range(start["numbers"], end["numbers"])
        if self._recorder.position.follows_streams or any(history.stream[events.start : events.stop]):
            return None
        if set(history.pool[events.start : events.stop]) - {_DEFAULT_POOL}:
            return None
        if any(number not in numbers for number in history.cause[events.start : events.stop]):
            # It freed what was there before.
            return None
        gradients = self._gradients(before, weights, numbers)
        if gradients is None:
            return None
        work = tuple(after - first for after, first in zip(end["work"], start["work"], strict=True))
        marks = tuple(self._marks[start["marks"] :])
        return _RecordedPass(events, numbers, marks, gradients, work, end["arrived"] - start["arrived"])

    def _gradients(
        self, before: list[torch.Tensor | None], weights: Sequence[torch.Tensor], numbers: range
    ) -> tuple[_Gradient, ...] | None:
        """Return the gradients that are new, each with memory of its own; None where others changed."""
        gradients = []
        for place, (weight, old) in enumerate(zip(weights, before, strict=True)):
            gradient = weight.grad
            if gradient is old:
                continue
            if old is not None or gradient is None or type(gradient) is not torch.Tensor:
                return None
            allocation = self._ledger.allocation_of(gradient.untyped_storage())
            size = gradient.numel() * gradient.element_size()
            if allocation is None or allocation.number not in numbers or allocation.requested != size:
                return None
            with without_modes():
                like = torch.empty_strided(gradient.shape, gradient.stride(), dtype=gradient.dtype, device="meta")
            gradients.append(_Gradient(place, allocation.number, like))
        if len({gradient.number for gradient in gradients}) < len(gradients):
            return None
        return tuple(gradients)

    def _outputs(self, recorded: _RecordedPass) -> list[int] | None:
        """Return what the pass left to its caller, in the order in which it was freed later; None if any lives."""
        history, numbers, events = self._ledger.history, recorded.numbers, recorded.events
        freed = set()
        for event in events:
            if history.action[event] == Action.FREE_COMPLETED:
                freed.add(history.cause[event])
        categories = self._recorder.categories.values
        kept = {number for number in numbers if number not in freed}
        workspaces = {number for number in numbers if categories[number] == Category.WORKSPACE}
        if workspaces - kept:
            return None
        kept -= workspaces
        later = [
            history.cause[event]
            for event in range(events.stop, len(history))
            if history.action[event] == Action.FREE_COMPLETED and history.cause[event] in kept
        ]
        live = {allocation.number for allocation in self._recorder.workspaces.live}
        if len(later) < len(kept) or workspaces - live:
            return None
        gradients = {gradient.number for gradient in recorded.gradients}
        return [number for number in later if number not in gradients]

    def _repeat(self, recorded: _RecordedPass, weights: Sequence[torch.Tensor], outputs: list[int]) -> Any:
        recorder, ledger, history = self._recorder, self._ledger, self._ledger.history
        gradients = {gradient.number: gradient for gradient in recorded.gradients}
        made: dict[int, LiveAllocation] = {}
        marks, next_mark = recorded.marks, 0
        times = ledger.times
        for event in recorded.events:
            while next_mark < len(marks) and marks[next_mark][2] < times[event]:
                self._mark(marks[next_mark])
                next_mark += 1
            action, number = history.action[event], history.cause[event]
            if action == Action.ALLOC:
                allocation = self._allocate(event, number)
                if allocation is None:
                    continue
                made[number] = allocation
                if number in gradients:
                    gradient = gradients[number]
                    with without_functions():
                        weights[gradient.weight].grad = self._owner(gradient.like, allocation)
            elif action == Action.FREE_COMPLETED:
                ledger.free(made.pop(number), ledger.stacks[event])
        for mark in marks[next_mark:]:
            self._mark(mark)
        for name, added in zip(_TOTALS, recorded.work, strict=True):
            setattr(recorder.totals, name, getattr(recorder.totals, name) + added)
        recorder.host.arrived_bytes += recorded.arrived_bytes
        self.repeated += 1
        return _Output(ledger, [made[number] for number in outputs])

    def _allocate(self, event: int, number: int) -> LiveAllocation | None:
        """Repeat an allocation with its labels; None for a workspace, which lives on."""
        columns, ledger = self._recorder.columns, self._ledger
        category = columns.category.values[number]
        if category == Category.WORKSPACE:
            return None
        columns.category.values.append(category)
        columns.module.append(columns.module[number])
        columns.phase.append(columns.phase[number])
        columns.rule.append(columns.rule[number])
        columns.forward_stack.append(columns.forward_stack[number])
        return ledger.malloc(ledger.history.size[event], ledger.stacks[event])

    def _owner(self, like: torch.Tensor, allocation: LiveAllocation) -> torch.Tensor:
        """Return a new tensor that owns the allocation."""
        with without_modes():
            tensor = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
            self._ledger.own(tensor.untyped_storage(), allocation)
        return tensor

    def _mark(self, mark: PhaseMark) -> None:
        self._marks.append((mark[0], mark[1], self._ledger.mark()))


_TOTALS = tuple(OperatorTotals.__dataclass_fields__)


class _Output:
    """Stands for the output of a repeated pass: frees its memory when it is gone."""

    def __init__(self, ledger: Any, allocations: list[LiveAllocation]) -> None:
        self._ledger = ledger
        self._allocations = allocations

    def __del__(self) -> None:
        for allocation in self._allocations:
            if not self._ledger.closed:
                self._ledger.free(allocation, self._ledger.stack_of_free())


def key_of_inputs(value: Any) -> Hashable:
    """Return what memory depends on in the inputs of a pass; None where that is unknown."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device.type, value.requires_grad)
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return ("value", value)
    if isinstance(value, Mapping):
        value = [part for name in value for part in (name, value[name])]
    if not isinstance(value, list | tuple):
        return None
    parts = tuple(map(key_of_inputs, value))
    return None if None in parts else (type(value).__name__, parts)
