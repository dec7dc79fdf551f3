"""Reduced traces: without memviz's own labels, without stacks, or without their beginning.

The inference has to work without the removed parts; the true purpose of each allocation is kept separately.
"""

from dataclasses import dataclass, replace

import numpy as np

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.phases import label_of_rows
from memviz.trace.model import NO_STACK, Annotations, Bytes1, DeviceTrace, Events, Trace


@dataclass(frozen=True)
class Known:
    """A trace without labels, and the true purpose of its allocations."""

    name: str
    trace: Trace
    device: DeviceTrace
    truth: Bytes1
    """A Category per row of `lifetimes`."""


def without_labels(name: str, trace: Trace, device: DeviceTrace) -> Known:
    truth = label_of_rows(device, "category")
    assert truth is not None, "this trace has no labels to strip"
    bare = replace(device, event_labels=None, block_labels=None, annotations=_no_annotations())
    return Known(name, replace(trace, devices=(bare,)), bare, truth.astype(np.uint8))


def without_stacks(known: Known) -> Known:
    """Sizes and order are all that is left."""
    events, blocks = known.device.events, known.device.blocks
    none = np.full(len(events), NO_STACK, dtype=np.int32)
    bare = replace(
        known.device,
        events=replace(events, stack=none, forward_stack=none.copy()),
        blocks=replace(blocks, stack=np.full(len(blocks), NO_STACK, dtype=np.int32)),
    )
    return Known(f"{known.name}, no stacks", replace(known.trace, devices=(bare,)), bare, known.truth)


def without_beginning(known: Known, share: float, *, stacks: bool = False) -> Known:
    """Cut the first events, like a recording started late: allocations live then have no stack either."""
    device, events = known.device, known.device.events
    skipped = int(len(events) * share)
    later = Events(**{name: column[skipped:] for name, column in events.columns()})
    late = replace(device, events=later)
    if not stacks:
        late = replace(late, blocks=replace(late.blocks, stack=_of_blocks_made_since(device, skipped)))
    rows = lifetimes(device)
    places = dict(zip(zip(rows.address.tolist(), rows.end.tolist(), strict=True), known.truth.tolist(), strict=True))
    left = lifetimes(late)
    keys = zip(left.address.tolist(), (left.end + skipped).tolist(), strict=True)
    truth = np.array([places[key] for key in keys], dtype=np.uint8)
    return Known(f"{known.name}, late", replace(known.trace, devices=(late,)), late, truth)


def _of_blocks_made_since(device: DeviceTrace, event: int) -> np.ndarray:
    rows, stacks = lifetimes(device), device.blocks.stack.copy()
    old = rows.block[(rows.block >= 0) & (rows.start < event)]
    stacks[old] = NO_STACK
    return stacks


def _no_annotations() -> Annotations:
    return Annotations(np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.int64))
