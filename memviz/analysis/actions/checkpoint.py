"""Activation checkpointing on a recorded trace: a layer keeps its input, and makes the rest again in the backward."""

from __future__ import annotations

import numpy as np

from memviz.analysis.actions.action import ActionKind, Proposal
from memviz.analysis.actions.edit import Again, Earlier, Edit, edited
from memviz.analysis.actions.layers import Layer, LayeredStep, layered_steps
from memviz.analysis.findings.facts import Facts
from memviz.analysis.purpose.phase_spans import PhaseSpan
from memviz.analysis.purpose.python_calls import call_over, python_stacks
from memviz.trace.model import Ints8
from memviz.units import count_text

ASSUMPTIONS = (
    "Within a layer's forward what it keeps now lives until the function that made it is over, or until the layer is.",
    "In the backward each layer's forward is run once more, with its temporaries, before the layer's own backward: "
    "about 30 % more work.",
    "Only layers that come from the same lines, one after the other, are checkpointed, and only where the trace shows "
    "their forward.",
)


def checkpoint(facts: Facts) -> Proposal | None:
    steps = layered_steps(facts)
    if not steps:
        return None
    count = max(len(step.layers) for step in steps)
    trace = edited(facts.trace, facts.device, checkpoint_edit(facts, steps))
    return Proposal(ActionKind.CHECKPOINT, f"checkpoint {count_text(count)} layers", ASSUMPTIONS, trace)


def checkpoint_edit(facts: Facts, steps: tuple[LayeredStep, ...]) -> Edit:
    earlier: list[tuple[Ints8, Ints8]] = []
    again: list[tuple[Ints8, ...]] = []
    for step in steps:
        earlier += [(layer.kept, _let_go(facts, layer)) for layer in step.layers]
        if step.backward is not None:
            begins = _recomputed_at(facts, step, step.backward)
            pairs = zip(step.layers, begins, strict=True)
            again += [_recomputed(facts, layer, begin) for layer, begin in pairs if begin < facts.count]
    made_again = Again(*(np.concatenate(column) for column in zip(*again, strict=True))) if again else Edit().again
    return Edit(Earlier(*(np.concatenate(column) for column in zip(*earlier, strict=True))), made_again)


def _let_go(facts: Facts, layer: Layer) -> Ints8:
    """The event before which each of what a layer keeps is let go where nothing is kept for a backward: when the
    function that holds it is over, as later stacks show. What the function hands on stays until the layer is done."""
    rows, made = facts.rows, layer.made
    depths = python_stacks(facts.trace).code_depth
    over = call_over(facts.trace, rows.start[made], rows.stack[made], layer.past, depths)
    is_handed_on = over == np.append(rows.start[made][1:], layer.past)
    return np.where(is_handed_on, layer.past, over)[np.searchsorted(made, layer.kept)]


def _recomputed_at(facts: Facts, step: LayeredStep, backward: PhaseSpan) -> list[int]:
    """The event before which the backward comes to each layer: when the one above has let go of all it kept. The
    number of events where the trace ends before."""
    rows, begins = facts.rows, []
    for number, layer in enumerate(step.layers):
        first_freed = int(rows.end[layer.kept].min(initial=facts.count))
        if first_freed == facts.count:
            begins.append(facts.count)
            continue
        if number + 1 < len(step.layers):
            above = np.append(step.layers[number + 1].kept, layer.output)
        else:
            # What comes behind the last layer: the head and the loss.
            behind = np.arange(layer.made[-1] + 1, len(rows))
            above = np.append(behind[rows.start[behind] < backward.first], layer.output)
        ends = rows.end[above]
        ends = ends[(ends >= backward.first) & (ends < first_freed)]
        begins.append(int(ends.max()) + 1 if len(ends) else min(backward.first, first_freed))
    return begins


def _recomputed(facts: Facts, layer: Layer, begin: int) -> tuple[Ints8, ...]:
    """All that the layer makes up to the last that its backward needs; the rest is not run again."""
    rows = facts.rows
    needed = layer.made[layer.made <= layer.kept.max(initial=-1)]
    # What lives on beyond the layer without being kept for the backward, as its output, is not made twice.
    needed = needed[np.isin(needed, layer.kept) | (rows.end[needed] <= layer.past)]
    is_kept = np.isin(needed, layer.kept)
    end = np.where(is_kept, np.maximum(rows.end[needed], begin), begin)
    return (
        needed,
        np.full(len(needed), begin),
        end,
        rows.start[needed],
        rows.end[needed],
        np.ones(len(needed), np.int64),
    )
