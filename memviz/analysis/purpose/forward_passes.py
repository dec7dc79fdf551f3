"""Where one forward ends and the next begins, and what outlives the forward that made it.

A pass is what one outermost call of a module allocates, without a break. It begins anew where another line calls,
or where the line of the outermost module's function moves up to where it began, or above.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import kept
from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.phases import doing_of_allocs
from memviz.analysis.purpose.python_calls import python_stacks
from memviz.trace.model import NO_STACK, Action, Bools, DeviceTrace, Ints4, Ints8, Trace


@dataclass(frozen=True, eq=False)
class Passes:
    """In the order in which they come."""

    first: Ints8
    """Event of the first alloc."""
    last: Ints8
    """Event of the last alloc."""
    next: Ints8
    """Event of the first alloc after it, or the number of events and one."""

    def __len__(self) -> int:
        return len(self.first)

    def around(self, events: Ints8) -> Ints8:
        """The pass within which each event lies, or -1."""
        place = np.searchsorted(self.first, events, side="right") - 1
        inside = (place >= 0) & (np.append(self.last, -1)[place] >= events)
        return np.where(inside, place, -1)


def forward_passes(trace: Trace, device: DeviceTrace) -> Passes:
    return kept(trace, (forward_passes, device), lambda: _passes(trace, device))


def _passes(trace: Trace, device: DeviceTrace) -> Passes:
    events, never = device.events, len(device.events) + 1
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    inside = doing_of_allocs(trace, device)[allocs] == Doing.FORWARD
    if not inside.any():
        none = np.zeros(0, dtype=np.int64)
        return Passes(none, none, none)
    stack = events.stack[allocs]
    entered = inside & ~np.append(False, inside[:-1])
    caller = _callers(trace, stack)
    entered[1:] |= inside[1:] & (caller[1:] != caller[:-1])
    first_of_run = np.maximum.accumulate(np.where(entered, np.arange(len(allocs)), 0))
    begins = entered | _called_again(trace, stack, inside, first_of_run)
    bounds = np.flatnonzero(begins | ~inside)
    last = np.append(bounds[1:], len(allocs)) - 1
    mine = begins[bounds]
    after = np.append(allocs, never)[last[mine] + 1]
    return Passes(first=allocs[bounds[mine]], last=allocs[last[mine]], next=after)


def _called_again(trace: Trace, stack: Ints4, inside: Bools, first_of_run: Ints8) -> Bools:
    """The outermost module's function is back at the line where it began."""
    known = python_stacks(trace)
    rows = np.flatnonzero(inside[1:] & inside[:-1] & (stack[1:] != NO_STACK) & (stack[:-1] != NO_STACK)) + 1
    depth = known.model_called_again(stack[rows - 1], stack[rows])
    rows, depth = rows[depth >= 0], depth[depth >= 0]
    first = stack[first_of_run[rows]]
    again = np.zeros(len(stack), dtype=np.bool_)
    again[rows] = known.line_at(stack[rows], depth) <= known.line_at(first, depth)
    return again


def _callers(trace: Trace, stack: Ints4) -> Ints8:
    """A number for where each stack's outermost module was called from; 0 where it has none."""
    known = python_stacks(trace)
    depth = np.append(known.model_depth, -1)
    place = np.arange(len(depth) - 1)
    of_stack = np.zeros(len(depth), dtype=np.uint64)
    has = depth[:-1] >= 0
    of_stack[:-1][has] = known.prefix(place[has], depth[:-1][has])
    return of_stack[np.where(stack == NO_STACK, len(depth) - 1, stack)].view(np.int64)
