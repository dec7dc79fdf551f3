"""What the trace shows about each allocation: what made it, and what went on when it was freed.

"Outlives" and "freed before" compare the end of an allocation with an event at which something else is seen to
go on. NEVER stands for what the trace does not show: nothing outlives it, and only what is freed at all was
freed before it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from memviz.analysis.annotations import annotated
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.analysis.purpose.activity import Doing, stack_signs
from memviz.analysis.purpose.phases import doing_of_allocs, doing_of_rows
from memviz.trace.model import NO_STACK, Action, Bools, Bytes1, DeviceTrace, Ints8, Trace

_WORK = (Doing.FORWARD, Doing.BACKWARD, Doing.STEP)


class Evidence:
    """Per row of `lifetimes`; each column is computed when a rule first asks for it."""

    def __init__(self, trace: Trace, device: DeviceTrace) -> None:
        self._trace = trace
        self._device = device
        self._rows = lifetimes(device)
        self._count = len(device.events)
        self._never = self._count + 1
        self._signs = stack_signs(trace)
        self._allocs = np.flatnonzero(device.events.action == Action.ALLOC)
        self._alloc_doing = doing_of_allocs(trace, device)[self._allocs]
        self._alloc_seen = device.events.stack[self._allocs] != NO_STACK
        self.size = self._rows.size

    @cached_property
    def _doing(self) -> Bytes1:
        return doing_of_rows(self._trace, self._device)

    def during(self, doing: Doing) -> Bools:
        same: Bools = self._doing == doing
        return same

    @cached_property
    def begun(self) -> Bools:
        """Its alloc is in the trace."""
        return self._rows.start > BEFORE

    @cached_property
    def never_freed(self) -> Bools:
        open_end: Bools = self._rows.end == self._count
        return open_end

    @cached_property
    def no_stack(self) -> Bools:
        none: Bools = self._rows.stack == NO_STACK
        return none

    @cached_property
    def workspace(self) -> Bools:
        return self._signs.workspace[self._rows.stack]

    @cached_property
    def accumulated(self) -> Bools:
        return self._signs.accumulates[self._rows.stack]

    @cached_property
    def recomputed(self) -> Bools:
        return self._signs.recomputes[self._rows.stack]

    def comes(self, event: Ints8) -> Bools:
        return event < self._never

    def outlives(self, event: Ints8) -> Bools:
        return (self._rows.end >= event) & self.comes(event)

    def freed_before(self, event: Ints8) -> Bools:
        return (self._rows.end < event) & ~self.never_freed

    @cached_property
    def next_work(self) -> Ints8:
        return self._next(self._allocs[np.isin(self._alloc_doing, _WORK)])

    @cached_property
    def next_backward(self) -> Ints8:
        return self._next(self._allocs[self._alloc_doing == Doing.BACKWARD])

    @cached_property
    def after_work(self) -> Bools:
        """Some forward, backward or step was seen before it."""
        work = self._allocs[np.isin(self._alloc_doing, _WORK)]
        return self._rows.start > (work[0] if len(work) else self._never)

    @cached_property
    def last_of_forward(self) -> Ints8:
        """The last alloc of the pass that made it. What is freed later was its output, or kept for a backward.

        Passes that follow one another are told apart by the stack of the first: a pass begins at each alloc that
        has it. Where that stack comes more often than once a pass, the pass only seems shorter.
        """
        allocs, inside = self._allocs, self._alloc_doing == Doing.FORWARD
        stacks = self._device.events.stack[allocs]
        enters = inside & ~np.concatenate([np.zeros(1, dtype=np.bool_), inside[:-1]])[: len(inside)]
        first_of_run = np.maximum.accumulate(np.where(enters, np.arange(len(allocs)), 0))
        begins = inside & (stacks == stacks[first_of_run]) if len(allocs) else inside
        bounds = np.flatnonzero(begins | ~inside)
        last = np.append(bounds[1:], len(allocs)) - 1
        pass_of = np.searchsorted(allocs[bounds], self._rows.start, side="right") - 1
        found = np.full(len(self.size), self._never)
        known = pass_of >= 0
        found[known] = allocs[last[pass_of[known]]]
        return found

    @cached_property
    def step_over(self) -> Ints8:
        return self._next(self._allocs[(self._alloc_doing != Doing.STEP) & self._alloc_seen], self._annotated_ends)

    @cached_property
    def backward_over(self) -> Ints8:
        return self._next(self._backward_ends, self._annotated_starts)

    @cached_property
    def next_backward_over(self) -> Ints8:
        """Where the next backward that begins is over."""
        ends = np.sort(np.concatenate([self._backward_ends, self._annotated_starts]))
        return _after(self.next_backward, ends, self._never)

    @cached_property
    def backwards(self) -> Ints8:
        """How many backwards began while it was alive."""
        begins = self._backward_begins
        upto = np.searchsorted(begins, self._rows.end, side="right")
        return np.asarray(upto - np.searchsorted(begins, self._rows.start, side="right"), dtype=np.int64)

    @cached_property
    def _telling(self) -> Bools:
        """Allocs that show whether a backward goes on. Without C++ frames a hook's stack may hide its backward."""
        told: Bools = (self._alloc_doing != Doing.NOTHING) | (self._alloc_seen & self._signs.sees_engine)
        return told

    @cached_property
    def _backward_ends(self) -> Ints8:
        ends: Ints8 = self._allocs[self._telling & (self._alloc_doing != Doing.BACKWARD)]
        return ends

    @cached_property
    def _backward_begins(self) -> Ints8:
        telling = np.flatnonzero(self._telling)
        backward = self._alloc_doing[telling] == Doing.BACKWARD
        begins = backward & ~np.concatenate([np.zeros(1, dtype=np.bool_), backward[:-1]])[: len(backward)]
        found: Ints8 = self._allocs[telling[begins]]
        return found

    @cached_property
    def _optimizer_steps(self) -> Ints8:
        names = annotated(self._device).intervals.name
        codes = [code for code in np.unique(names) if self._trace.strings[code].startswith("Optimizer.step#")]
        return np.flatnonzero(np.isin(names, codes))

    @cached_property
    def _annotated_starts(self) -> Ints8:
        return annotated(self._device).intervals.start_event[self._optimizer_steps]

    @cached_property
    def _annotated_ends(self) -> Ints8:
        """The event after each recorded end of an optimizer step."""
        intervals = annotated(self._device).intervals
        closed = self._optimizer_steps[~intervals.is_open[self._optimizer_steps]]
        return intervals.end_event[closed] + 1

    def _next(self, *events: Ints8) -> Ints8:
        return _after(self._rows.start, np.sort(np.concatenate(events)), self._never)


def _after(start: Ints8, events: Ints8, never: int) -> Ints8:
    """For each start the first of these (sorted) events behind it, or `never`."""
    return np.append(events, never)[np.searchsorted(events, start, side="right")]
