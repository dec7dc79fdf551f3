"""Layers of a forward, as repeating groups of stacks: allocations, tensors saved for backward, and output of each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from memviz.analysis.findings.finding import Facts
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.phases import PhaseSpan
from memviz.analysis.sums import sum_by
from memviz.trace.intern import distinct, is_among
from memviz.trace.model import Category, Ints8
from memviz.units import count_text

_FEWEST = 2
_NEARLY_ALL = 0.95
"""Share of the bytes saved by repeated groups; the smallest group with that share is a layer."""
_KEPT = np.array([Category.ACTIVATION, Category.OUTPUT, Category.UNKNOWN], dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of one forward. Rows of `lifetimes`, rising."""

    first: int
    """Event of its first alloc."""
    past: int
    """The event behind it."""
    made: Ints8
    kept: Ints8
    """Rows of `made` that are live when the backward begins, except the output."""
    output: int
    """The last that it makes and that is live behind it; the next layer's input."""


@dataclass(frozen=True)
class LayeredStep:
    step: int
    backward: PhaseSpan | None
    """None where the trace ends before it begins, as where memory runs out in the forward."""
    layers: tuple[Layer, ...]


@dataclass(frozen=True, eq=False)
class LayersHolding:
    """Layers of one forward that made some of these rows."""

    count: int
    is_equal: bool
    """All layers hold the same sizes."""
    rows: Ints8

    @property
    def description(self) -> str:
        return f"{count_text(self.count)} {'equal ' if self.is_equal else ''}layers"


def layers_holding(facts: Facts, rows: Ints8, event: int) -> LayersHolding | None:
    """Layers of the forward around an event that hold some of `rows`; None if fewer than two do."""
    for step in layered_steps(facts, around=event):
        parts = [rows[is_among(rows, layer.made)] for layer in step.layers]
        sizes = {tuple(np.sort(facts.rows.size[part]).tolist()) for part in parts if len(part)}
        count = sum(len(part) > 0 for part in parts)
        if count >= _FEWEST:
            return LayersHolding(count, len(sizes) == 1, np.concatenate(parts))
    return None


def layered_steps(facts: Facts, around: int | None = None) -> tuple[LayeredStep, ...]:
    """Forwards with the backward that follows at once, where equal layers keep something: all, or the one around an
    event."""
    spans = facts.phases.spans
    if not facts.phases.is_training and not len(facts.failed_events):
        return ()
    layered = []
    for number, span in enumerate(spans):
        following = spans[number + 1] if number + 1 < len(spans) else None
        if span.doing != Activity.FORWARD or (following is not None and following.doing != Activity.BACKWARD):
            continue
        if around is None or span.first <= around <= (following or span).last:
            layered.append(LayeredStep(span.step, following, _layers(facts, span, following)))
    return tuple(step for step in layered if step.layers)


def saved_for_backward(facts: Facts, forward: PhaseSpan, backward: PhaseSpan | None) -> Ints8:
    """Rows of a forward, live when its backward begins and freed within it, or live at the earlier end of the trace."""
    rows, last_event = facts.rows, facts.count - 1
    begin, end = (backward.first, backward.last) if backward else (_end_without_backward(facts, forward), last_event)
    end += end == last_event
    first, last = np.searchsorted(rows.start, [forward.first, begin])
    allocated = np.arange(first, last)
    is_saved = (rows.end[allocated] > begin) & (rows.end[allocated] <= end)
    return allocated[is_saved & np.isin(facts.purposes.category[allocated], _KEPT)]


def _end_without_backward(facts: Facts, forward: PhaseSpan) -> int:
    """The event at which a forward ends that no backward follows: a request fails, or the recording ends."""
    failed = facts.failed_events[facts.failed_events >= forward.first]
    return int(failed[0]) if len(failed) else facts.count - 1


def _layers(facts: Facts, forward: PhaseSpan, backward: PhaseSpan | None) -> tuple[Layer, ...]:
    rows, saved = facts.rows, saved_for_backward(facts, forward, backward)
    past = backward.first if backward else _end_without_backward(facts, forward) + 1
    first, last = np.searchsorted(rows.start, [forward.first, past])
    allocated = np.arange(first, last)
    count, of_layers = _most_repeated_stacks(facts, saved)
    if count < _FEWEST:
        return ()
    # A layer begins with the first that all of them make, kept or not; one line may make several at once.
    stack, times = np.unique(rows.stack[allocated], return_counts=True)
    equal = allocated[np.isin(rows.stack[allocated], stack[times % count == 0])]
    if not len(equal):
        return ()
    anchors = equal[rows.stack[equal] == rows.stack[equal[0]]]
    begins = rows.start[anchors[:: len(anchors) // count]]
    bounds = [*begins.tolist(), int(rows.start[of_layers[-1]]) + 1]
    bounds[-1] = max(bounds[-1], int(rows.start[equal[-1]]) + 1)
    layers = (_layer(facts, allocated, saved, one, two) for one, two in pairwise(bounds))
    return tuple(layer for layer in layers if layer is not None)


def _most_repeated_stacks(facts: Facts, saved: Ints8) -> tuple[int, Ints8]:
    """Count of repeats of the group of stacks that saves most bytes, and its rows. A single occurrence is no layer.

    One layer may have a stack several times, as a loop over heads does: then the repeating sequence is the group.
    """
    rows = facts.rows
    stacks, code = np.unique(rows.stack[saved], return_inverse=True)
    if not len(saved):
        return 0, saved
    times, bytes_per_stack = np.bincount(code), sum_by(code, rows.size[saved], len(stacks))
    in_a_row = np.bincount(code[np.append(True, code[1:] != code[:-1])])
    counts = [count for count in distinct(in_a_row)[::-1].tolist() if count >= _FEWEST]
    periodic = []
    for count in counts:
        # The same sequence of stacks comes so many times.
        part = code[(times % count == 0)[code]]
        if len(part) and (part.reshape(count, -1) == part[: len(part) // count]).all():
            periodic.append(count)
    sums = {count: int(bytes_per_stack[times % count == 0].sum()) for count in periodic}
    for count in periodic:
        if sums[count] >= _NEARLY_ALL * max(sums.values()):
            return count, saved[(times % count == 0)[code]]
    return 0, saved[:0]


def _layer(facts: Facts, allocated: Ints8, saved: Ints8, first: int, past: int) -> Layer | None:
    rows = facts.rows
    begin, end = np.searchsorted(rows.start[allocated], [first, past])
    own = allocated[begin:end]
    live = own[(rows.end[own] > past) | (rows.end[own] == facts.count)]
    if not len(live):
        return None
    output = int(live[-1])
    first_saved, past_saved = np.searchsorted(saved, [own[0], own[-1] + 1])
    own_saved = saved[first_saved:past_saved]
    return Layer(first, past, own, own_saved[own_saved != output], output)
