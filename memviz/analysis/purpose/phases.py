"""In which phase of training each allocation was made: as recorded by our own runs, else by its stack."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.cache import kept
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.activity import Doing, stack_signs
from memviz.analysis.purpose.taken_over import known_of_rows
from memviz.trace.model import NO_STACK, Action, Bytes1, DeviceTrace, Ints4, Labels, Phase, Purposes, Trace
from memviz.trace.picked import picked

_PHASE = np.zeros(len(Doing), dtype=np.uint8)
_PHASE[[Doing.FORWARD, Doing.BACKWARD, Doing.STEP]] = [Phase.FORWARD, Phase.BACKWARD, Phase.STEP]
DOING = (Doing.NOTHING, Doing.FORWARD, Doing.BACKWARD, Doing.STEP)
"""Of each Phase."""


def phases(trace: Trace, device: DeviceTrace) -> Bytes1:
    """A Phase per row of `lifetimes`."""
    inferred = _PHASE[doing_of_rows(trace, device)]
    recorded = label_of_rows(device, "phase")
    return inferred if recorded is None else np.where(recorded != Phase.UNKNOWN, recorded, inferred).astype(np.uint8)


def doing_of_rows(trace: Trace, device: DeviceTrace) -> Bytes1:
    """A Doing per row of `lifetimes`."""
    rows = lifetimes(device)
    doing = stack_signs(trace).doing[rows.stack]
    begun = (rows.start >= 0) & (rows.stack == NO_STACK)
    doing[begun] = doing_of_allocs(trace, device)[rows.start[begun]]
    return _as_known(doing, known_of_rows(device))


def doing_of_allocs(trace: Trace, device: DeviceTrace) -> Bytes1:
    """A Doing per event; NOTHING for all that are no alloc.

    Where only Python frames are recorded, autograd's own thread leaves empty stacks. So an alloc without a stack
    that follows one made by a call of `backward` belongs to that backward.
    """
    return kept(trace, (doing_of_allocs, device), lambda: _doing_of_allocs(trace, device))


def _doing_of_allocs(trace: Trace, device: DeviceTrace) -> Bytes1:
    signs, events = stack_signs(trace), device.events
    doing = np.full(len(events), Doing.NOTHING, dtype=np.uint8)
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    stack = events.stack[allocs]
    known = None if device.taken_over is None else picked(device.taken_over.events, allocs)
    doing_now = _as_known(signs.doing[stack], known)
    if not signs.sees_engine:
        last_seen = np.maximum.accumulate(np.where(stack != NO_STACK, np.arange(len(allocs)), 0))
        follows = (stack == NO_STACK) & (doing_now[last_seen] == Doing.BACKWARD) if len(allocs) else stack == NO_STACK
        doing_now[follows if known is None else follows & ~known.is_known] = Doing.BACKWARD
    doing[allocs] = doing_now
    return doing


def _as_known(doing: Bytes1, known: Purposes | None) -> Bytes1:
    if known is None:
        return doing
    return np.where(known.phase != Phase.UNKNOWN, np.array(DOING, dtype=np.uint8)[known.phase], doing).astype(np.uint8)


def label_of_rows(device: DeviceTrace, column: str) -> Bytes1 | Ints4 | None:
    """What our own runs wrote, per row of `lifetimes`, 0 where they wrote nothing; None where nothing is labelled."""
    if device.event_labels is None and device.block_labels is None:
        return None
    rows = lifetimes(device)
    labels = _label(device.event_labels, column, rows.start)
    before = rows.start < 0
    labels[before] = _label(device.block_labels, column, rows.block)[before]
    return labels


def _label(labels: Labels | None, column: str, place: npt.NDArray[Any]) -> Bytes1 | Ints4:
    if labels is None or not len(labels):
        return np.zeros(len(place), dtype=np.int32)
    values: Ints4 = getattr(labels, column)
    return np.where(place >= 0, values[place], 0).astype(np.int32)
