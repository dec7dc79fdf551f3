"""The equal layers of a forward: what each of them makes, keeps for the backward and hands to the next one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.findings.facts import Facts
from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.phase_spans import PhaseSpan
from memviz.analysis.sums import sum_by
from memviz.trace.model import Category, Ints8

_FEWEST = 2
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
    """Of these, what is live when the backward begins, but for the output."""
    output: int
    """The last that it makes and that is live behind it; the next layer's input."""


@dataclass(frozen=True)
class LayeredStep:
    step: int
    backward: PhaseSpan | None
    """None where the trace ends before it begins, as where memory runs out in the forward."""
    layers: tuple[Layer, ...]


def layered_steps(facts: Facts, around: int | None = None) -> tuple[LayeredStep, ...]:
    """Forwards with the backward that follows at once, where equal layers keep something: all, or the one around an
    event."""
    spans = facts.phases.spans
    if not facts.phases.is_training:
        return ()
    layered = []
    for number, span in enumerate(spans):
        following = spans[number + 1] if number + 1 < len(spans) else None
        if span.doing != Doing.FORWARD or (following is not None and following.doing != Doing.BACKWARD):
            continue
        if around is None or span.first <= around <= (following or span).last:
            layered.append(LayeredStep(span.step, following, _layers(facts, span, following)))
    return tuple(step for step in layered if step.layers)


def kept_for_backward(facts: Facts, forward: PhaseSpan, backward: PhaseSpan | None) -> Ints8:
    """Made in a forward, live when its backward begins, and freed within it; or live where the trace ends before."""
    rows, last_event = facts.rows, facts.count - 1
    begin, end = (backward.first, backward.last) if backward else (last_event, last_event)
    end += end == last_event
    first, last = np.searchsorted(rows.start, [forward.first, begin])
    made = np.arange(first, last)
    waits = (rows.end[made] > begin) & (rows.end[made] <= end)
    return made[waits & np.isin(facts.purposes.category[made], _KEPT)]


def _layers(facts: Facts, forward: PhaseSpan, backward: PhaseSpan | None) -> tuple[Layer, ...]:
    rows, kept = facts.rows, kept_for_backward(facts, forward, backward)
    first, last = np.searchsorted(rows.start, [forward.first, backward.first if backward else facts.count])
    made = np.arange(first, last)
    count, of_layers = _repeated(facts, kept)
    if count < _FEWEST:
        return ()
    # A layer begins with the first that all of them make, kept or not; one line may make several at once.
    stack, times = np.unique(rows.stack[made], return_counts=True)
    equal = made[np.isin(rows.stack[made], stack[times % count == 0])]
    if not len(equal):
        return ()
    anchors = equal[rows.stack[equal] == rows.stack[equal[0]]]
    begins = rows.start[anchors[:: len(anchors) // count]]
    bounds = [*begins.tolist(), int(rows.start[of_layers[-1]]) + 1]
    bounds[-1] = max(bounds[-1], int(rows.start[equal[-1]]) + 1)
    layers = (_layer(facts, made, kept, one, two) for one, two in zip(bounds, bounds[1:], strict=False))
    return tuple(layer for layer in layers if layer is not None)


def _repeated(facts: Facts, kept: Ints8) -> tuple[int, Ints8]:
    """How often the stacks that keep most bytes come, and their rows. What comes once is no layer."""
    rows = facts.rows
    stacks, code = np.unique(rows.stack[kept], return_inverse=True)
    if not len(kept):
        return 0, kept
    times = np.bincount(code)
    held = sum_by(times, sum_by(code, rows.size[kept], len(stacks)), int(times.max()) + 1)
    held[:_FEWEST] = 0
    count = int(held.argmax())
    return (count, kept[times[code] == count]) if held[count] else (0, kept[:0])


def _layer(facts: Facts, made: Ints8, kept: Ints8, first: int, past: int) -> Layer | None:
    rows = facts.rows
    begin, end = np.searchsorted(rows.start[made], [first, past])
    own = made[begin:end]
    live = own[(rows.end[own] > past) | (rows.end[own] == facts.count)]
    if not len(live):
        return None
    output = int(live[-1])
    first_kept, past_kept = np.searchsorted(kept, [own[0], own[-1] + 1])
    mine = kept[first_kept:past_kept]
    return Layer(first, past, own, mine[mine != output], output)
