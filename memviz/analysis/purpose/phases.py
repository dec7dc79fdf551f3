"""Phases of training: the phase of each allocation, forward passes, numbered spans of phases, and names of steps."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.annotations import annotated, optimizer_steps
from memviz.analysis.cache import cached
from memviz.analysis.callstacks.sites import path_of
from memviz.analysis.health import history
from memviz.analysis.lifetimes import Lifetimes, lifetimes
from memviz.analysis.purpose.activity import Activity, python_stacks, stack_signs
from memviz.trace.intern import is_among
from memviz.trace.model import (
    NO_STACK,
    Action,
    Bools,
    Bytes1,
    Columns,
    DeviceTrace,
    Ints4,
    Ints8,
    Labels,
    Phase,
    Purposes,
    Trace,
    first_or_second,
    take_rows,
)

# Edited requests inherit the purposes inferred for the recording instead of using their stacks: a recomputed block has
# the stack of the first one, so it would look like a forward within the backward.


def inherited_purposes(device: DeviceTrace) -> Purposes | None:
    """Per row of `lifetimes`; None for what was recorded."""
    inherited = device.taken_over
    if inherited is None:
        return None
    rows = lifetimes(device)
    event = first_events(rows, len(device.events))
    return first_or_second(
        event >= 0, take_rows(inherited.events, event), take_rows(inherited.blocks, rows.block.astype(np.int64))
    )


def first_events(rows: Lifetimes, count: int) -> Ints8:
    """Return each row's alloc event, or the free of a row live at the start; -1 without either."""
    has_request = (rows.free_requested >= 0) & (rows.free_requested < count)
    freed = np.where(has_request, rows.free_requested, np.where(rows.end < count, rows.end, -1))
    return np.where(rows.start >= 0, rows.start, freed)


# Phase of each allocation: as recorded by our own runs, else by its stack.

_WORK = (Activity.FORWARD, Activity.BACKWARD, Activity.STEP)
_ACTIVITY_OF = np.array([Activity.NOTHING, *_WORK], dtype=np.uint8)
"""The activity of each Phase."""
PHASE_OF = np.zeros(len(Activity), dtype=np.uint8)
"""The phase of each Activity."""
PHASE_OF[list(_WORK)] = [Phase.FORWARD, Phase.BACKWARD, Phase.STEP]


def phases(trace: Trace, device: DeviceTrace) -> Bytes1:
    """A Phase per row of `lifetimes`."""
    inferred = PHASE_OF[activity_of_rows(trace, device)]
    recorded = label_of_rows(device, "phase")
    return inferred if recorded is None else np.where(recorded != Phase.UNKNOWN, recorded, inferred).astype(np.uint8)


def activity_of_rows(trace: Trace, device: DeviceTrace) -> Bytes1:
    rows = lifetimes(device)
    doing = stack_signs(trace).doing[rows.stack]
    begun = (rows.start >= 0) & (rows.stack == NO_STACK)
    doing[begun] = activity_of_allocs(trace, device)[rows.start[begun]]
    return _apply_inherited(doing, inherited_purposes(device))


@cached
def activity_of_allocs(trace: Trace, device: DeviceTrace) -> Bytes1:
    """An Activity per event; NOTHING for events other than allocs.

    Where only Python frames are recorded, autograd's own thread leaves empty stacks. So an alloc without a stack
    that follows one made by a call of `backward` belongs to that backward.
    """
    signs, events = stack_signs(trace), device.events
    doing = np.full(len(events), Activity.NOTHING, dtype=np.uint8)
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    stack = events.stack[allocs]
    inherited = None if device.taken_over is None else take_rows(device.taken_over.events, allocs)
    doing_now = _apply_inherited(signs.doing[stack], inherited)
    if not signs.sees_engine:
        last_seen = np.maximum.accumulate(np.where(stack != NO_STACK, np.arange(len(allocs)), 0))
        follows = (
            (stack == NO_STACK) & (doing_now[last_seen] == Activity.BACKWARD) if len(allocs) else stack == NO_STACK
        )
        doing_now[follows if inherited is None else follows & ~inherited.is_known] = Activity.BACKWARD
    doing[allocs] = doing_now
    return doing


def _apply_inherited(doing: Bytes1, inherited: Purposes | None) -> Bytes1:
    if inherited is None:
        return doing
    return np.where(inherited.phase != Phase.UNKNOWN, _ACTIVITY_OF[inherited.phase], doing)


def label_of_rows(device: DeviceTrace, column: str) -> Bytes1 | Ints4 | None:
    """Return the labels by our own runs per row of `lifetimes`, 0 for none; None where nothing is labelled."""
    if device.event_labels is None and device.block_labels is None:
        return None
    rows = lifetimes(device)
    labels = _label_column(device.event_labels, column, rows.start)
    before = rows.start < 0
    labels[before] = _label_column(device.block_labels, column, rows.block)[before]
    return labels


def _label_column(labels: Labels | None, column: str, place: npt.NDArray[Any]) -> Bytes1 | Ints4:
    if labels is None or not len(labels):
        return np.zeros(len(place), dtype=np.int32)
    values: Ints4 = getattr(labels, column)
    return np.where(place >= 0, values[place], 0).astype(np.int32)


# A forward pass is all that one outermost call of a module allocates, without a break. A new one begins where another
# line calls, or where the line of the outermost module's function moves up to where it began, or above.


@dataclass(frozen=True, eq=False)
class Passes(Columns):
    """Forward passes in order of time."""

    first: Ints8
    """Event of the first alloc."""
    last: Ints8
    """Event of the last alloc."""
    next: Ints8
    """Event of the first alloc after it, or the number of events and one."""

    def around(self, events: Ints8) -> Ints8:
        """The pass that contains each event, or -1."""
        place = np.searchsorted(self.first, events, side="right") - 1
        inside = (place >= 0) & (np.append(self.last, -1)[place] >= events)
        return np.where(inside, place, -1)


@cached
def forward_passes(trace: Trace, device: DeviceTrace) -> Passes:
    events, never = device.events, len(device.events) + 1
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    inside = activity_of_allocs(trace, device)[allocs] == Activity.FORWARD
    if not inside.any():
        return Passes.empty()
    stack = events.stack[allocs]
    entered = inside & ~np.append(False, inside[:-1])
    caller = _caller_numbers(trace, stack)
    entered[1:] |= inside[1:] & (caller[1:] != caller[:-1])
    first_of_run = np.maximum.accumulate(np.where(entered, np.arange(len(allocs)), 0))
    begins = entered | _called_again(trace, stack, inside, first_of_run)
    bounds = np.flatnonzero(begins | ~inside)
    last = np.append(bounds[1:], len(allocs)) - 1
    is_pass = begins[bounds]
    after = np.append(allocs, never)[last[is_pass] + 1]
    return Passes(first=allocs[bounds[is_pass]], last=allocs[last[is_pass]], next=after)


def _called_again(trace: Trace, stack: Ints4, inside: Bools, first_of_run: Ints8) -> Bools:
    """The outermost module's function is back at the line where it began."""
    stacks = python_stacks(trace)
    rows = np.flatnonzero(inside[1:] & inside[:-1] & (stack[1:] != NO_STACK) & (stack[:-1] != NO_STACK)) + 1
    depth = stacks.model_called_again(stack[rows - 1], stack[rows])
    rows, depth = rows[depth >= 0], depth[depth >= 0]
    first = stack[first_of_run[rows]]
    again = np.zeros(len(stack), dtype=np.bool_)
    again[rows] = stacks.line_at(stack[rows], depth) <= stacks.line_at(first, depth)
    return again


def _caller_numbers(trace: Trace, stack: Ints4) -> Ints8:
    """A number for where each stack's outermost module was called from; 0 where it has none."""
    stacks = python_stacks(trace)
    depth = np.append(stacks.model_depth, -1)
    place = np.arange(len(depth) - 1)
    of_stack = np.zeros(len(depth), dtype=np.uint64)
    has = depth[:-1] >= 0
    of_stack[:-1][has] = stacks.prefix(place[has], depth[:-1][has])
    return of_stack[np.where(stack == NO_STACK, len(depth) - 1, stack)].view(np.int64)


# Spans of forwards, backwards and optimizer steps, numbered from 1, as stacks show them. A step of training ends with
# its optimizer step; where none shows, with its last backward before another forward. Where only forwards show, each
# is a step.

_NAMES = {Activity.FORWARD: "forward", Activity.BACKWARD: "backward", Activity.STEP: "optimizer step"}
_CRITERION = re.compile(r"(loss|losses|criterion)[^/]*\.py$", re.IGNORECASE)
"""Files of modules that compute a loss, as torch/nn/modules/loss.py."""
_BLIP = 2
"""So few allocations of another kind, with the same kind before and behind, are a hook's."""


@dataclass(frozen=True)
class PhaseSpan:
    doing: Activity
    step: int
    """From 1; the number of the forward in a trace without training."""
    first: int
    """Event of its first alloc."""
    last: int
    """Event before the next span begins, or the last event of the trace."""

    @property
    def kind(self) -> str:
        return _NAMES[self.doing]


@dataclass(frozen=True)
class PhaseSpans:
    spans: tuple[PhaseSpan, ...]
    is_training: bool

    def name(self, span: PhaseSpan) -> str:
        """'backward of step 2'; of forwards alone 'forward 2', of a single one 'forward'."""
        if self.is_training:
            return f"{span.kind} of step {span.step}"
        return f"{span.kind} {span.step}" if len(self.spans) > 1 else span.kind

    def around(self, event: int) -> int:
        """Return the index of the span that contains an event, or -1."""
        place = int(np.searchsorted([span.first for span in self.spans], event, side="right")) - 1
        return place if place >= 0 and event <= self.spans[place].last else -1


@cached
def phase_spans(trace: Trace, device: DeviceTrace) -> PhaseSpans:
    if device.taken_over is not None:
        # Phases of the recording, at their events in the edited trace.
        inherited = device.taken_over.spans
        return _spans(_ACTIVITY_OF[inherited.phase], inherited.step, inherited.first, len(device.events))
    events, of_event = _without_blips(*_working_events(trace, device))
    begins = np.flatnonzero(of_event != np.append(Activity.NOTHING, of_event[:-1]))
    at, doing = events[begins].astype(np.int64), of_event[begins]
    is_training = bool(is_among(doing, (Activity.BACKWARD, Activity.STEP)).any())
    if is_training:
        ended_by = Activity.STEP if (doing == Activity.STEP).any() else Activity.BACKWARD
        begins_step = (np.append(Activity.NOTHING, doing[:-1]) == ended_by) & (doing == Activity.FORWARD)
        step = np.cumsum(begins_step) + 1
    else:
        at = _of_models(trace, device, forward_passes(trace, device).first)
        doing = np.full(len(at), Activity.FORWARD, dtype=np.uint8)
        step = np.arange(1, len(at) + 1)
    return _spans(doing, step, at, len(device.events))


def _of_models(trace: Trace, device: DeviceTrace, at: Ints8) -> Ints8:
    """Forwards of models: a criterion that is called by itself belongs to the forward before it."""
    paths = [
        path_of(trace.strings[code]) for code in python_stacks(trace).model_files(device.events.stack[at]).tolist()
    ]
    is_model = np.array([_CRITERION.search(path) is None for path in paths], dtype=np.bool_)
    return at[is_model] if is_model.any() else at


def _spans(doing: Bytes1, step: Ints4 | Ints8, at: Ints8, count: int) -> PhaseSpans:
    last = np.append(at[1:] - 1, count - 1)[: len(at)]
    columns = (column.tolist() for column in (doing, step, at, last))
    spans = tuple(PhaseSpan(Activity(kind), *rest) for kind, *rest in zip(*columns, strict=True))
    return PhaseSpans(spans, any(span.doing != Activity.FORWARD for span in spans))


def _working_events(trace: Trace, device: DeviceTrace) -> tuple[Ints4, Bytes1]:
    """Events that show an activity, and which: allocations, and optimizer steps annotated by torch."""
    allocs = np.flatnonzero(device.events.action == Action.ALLOC).astype(np.int32)
    doing = activity_of_allocs(trace, device)[allocs]
    tells = is_among(doing, _WORK)
    intervals = annotated(device)
    # A fused optimizer allocates nothing.
    noted = intervals.start_event[optimizer_steps(trace, device)]
    noted = np.repeat(noted[noted < len(device.events)], _BLIP + 1)
    at = np.concatenate([allocs[tells], noted.astype(np.int32)])
    what = np.concatenate([doing[tells], np.full(len(noted), Activity.STEP, dtype=np.uint8)])
    order = np.argsort(at, kind="stable")
    return at[order], what[order]


def _without_blips(at: Ints4, doing: Bytes1) -> tuple[Ints4, Bytes1]:
    begins = np.flatnonzero(doing != np.append(Activity.NOTHING, doing[:-1]))
    length = np.diff(np.append(begins, len(doing)))
    kind = doing[begins]
    between = np.zeros(len(begins), dtype=np.bool_)
    between[1:-1] = (kind[:-2] == kind[2:]) & (length[1:-1] <= _BLIP) & (length[:-2] > _BLIP) & (length[2:] > _BLIP)
    stays = np.repeat(~between, length)
    return at[stays], doing[stays]


# Names of steps and forwards: as the program annotated them, else by our own count.

_LONGEST = 40
_PROFILED = "ProfilerStep#"
_OPTIMIZERS = ("Optimizer.", "optimizer step")
"""Annotations of an optimizer step by torch and by memviz; it is only a part of a training step."""
_SAYS_STEP = re.compile(r"\b(step|iter|iteration|batch|warm-?up)(\b|_?\d)", re.IGNORECASE)


def step_name(trace: Trace, device: DeviceTrace, span: PhaseSpan) -> str:
    """'ProfilerStep#1', 'step 2', 'recorded step 2'; where nothing is trained 'forward 3', or 'the forward'."""
    phases = phase_spans(trace, device)
    # Counted by us, from where the recording begins.
    recorded = "recorded " if history(device) == "late" else ""
    if not phases.is_training:
        return f"{recorded}forward {span.step}" if len(phases.spans) > 1 else "the forward"
    return noted_step(trace, device, span.first) or f"{recorded}step {span.step}"


def phase_name(trace: Trace, device: DeviceTrace, span: PhaseSpan) -> str:
    """'backward of ProfilerStep#1', as briefly as above a timeline."""
    phases = phase_spans(trace, device)
    noted = noted_step(trace, device, span.first) if phases.is_training else ""
    return f"{span.kind} of {noted}" if noted else phases.name(span)


def noted_step(trace: Trace, device: DeviceTrace, event: int) -> str:
    """Return the name that the profiler or the program gave the step around an event; empty without one."""
    begins, ends, names = _annotated_steps(trace, device)
    place = bisect_right(begins, event) - 1
    return names[place] if place >= 0 and event <= ends[place] else ""


@cached
def _annotated_steps(trace: Trace, device: DeviceTrace) -> tuple[list[int], list[int], list[str]]:
    """First and last event and the name of each span, in order and disjoint."""
    intervals = annotated(device)
    names = [trace.strings[code][:_LONGEST] for code in intervals.name.tolist()]
    places = [place for place, name in enumerate(names) if name.startswith(_PROFILED)]
    if not places:
        outermost = np.flatnonzero(intervals.depth == 0).tolist()
        own = (place for place in outermost if not names[place].startswith(_OPTIMIZERS))
        places = [place for place in own if _SAYS_STEP.search(names[place])]
    begins, ends = intervals.start_event[places].tolist(), intervals.end_event[places].tolist()
    return begins, ends, [names[place] for place in places]
