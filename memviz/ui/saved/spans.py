"""Which spans a saved timeline is drawn from: all allocations, or of too many the largest, and the rest together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memviz.analysis.lifetimes import BEFORE, Lifetimes, lifetimes
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.figures.colouring import Colouring
from memviz.trace.model import Bytes1, DeviceTrace, Ints8
from memviz.units import bytes_text, count_text

_PARTS = 1200
"""Of a run, in each of which small allocations are drawn as one per category."""


@dataclass(frozen=True, eq=False)
class SavedSpans:
    start: Ints8
    """Instants: 0 is before the first event."""
    end: Ints8
    size: Ints8
    group: Bytes1
    """By category, as `colouring` numbers them."""
    row: Ints8
    """Of `lifetimes`; -1 for what stands for many."""
    note: str = ""
    """What is not as in the recording."""


def all_spans(device: DeviceTrace, colours: Colouring) -> SavedSpans:
    rows = lifetimes(device)
    return SavedSpans(rows.start - BEFORE, rows.end - BEFORE, rows.size, colours.group, np.arange(len(rows)))


def largest_spans(device: DeviceTrace, colours: Colouring, most: int) -> SavedSpans:
    """The live bytes of each part of the run stay those of its highest moment, so no peak is lost or lowered."""
    rows = lifetimes(device)
    largest = np.sort(np.argsort(-rows.size, kind="stable")[:most])
    small = np.ones(len(rows), dtype=np.bool_)
    small[largest] = False
    edges, moments = _parts(device)
    start, end, size, group = _together(rows, colours, np.flatnonzero(small), edges, moments)
    starts = np.concatenate([rows.start[largest] - BEFORE, start])
    order = np.argsort(starts, kind="stable")
    limit = bytes_text(int(rows.size[small].max(initial=0)))
    return SavedSpans(
        starts[order],
        np.concatenate([rows.end[largest] - BEFORE, end])[order],
        np.concatenate([rows.size[largest], size])[order],
        np.concatenate([colours.group[largest], group])[order],
        np.concatenate([largest, np.full(len(start), -1)])[order],
        f"Of {count_text(len(rows))} allocations the {count_text(len(largest))} largest are drawn one by one. Those of "
        f"{limit} and less are drawn together by category, in {count_text(len(moments))} parts of the run, as high as "
        "at the part's highest moment.",
    )


def _parts(device: DeviceTrace) -> tuple[Ints8, Ints8]:
    """Their edges, and of each the instant with most live bytes. The peak is a part of its own."""
    live = timeline(device).live
    peak = int(live.argmax())
    even = np.linspace(0, len(live), min(_PARTS, len(live)) + 1).astype(np.int64)
    edges = np.unique(np.concatenate([even, [peak, peak + 1]]))
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return edges, np.array([first + int(live[first:last].argmax()) for first, last in pairs])


def _together(
    rows: Lifetimes, colours: Colouring, small: Ints8, edges: Ints8, moments: Ints8
) -> tuple[Ints8, Ints8, Ints8, Bytes1]:
    start, end, size, group = rows.start[small] - BEFORE, rows.end[small] - BEFORE, rows.size[small], colours.group
    spans: list[tuple[npt.NDArray[np.int64], ...]] = []
    for number in range(len(colours.labels)):
        mine = group[small] == number
        # What begins at or before a moment is there from the first moment that is not before it, and so its end.
        begun = sum_by(np.searchsorted(moments, start[mine]), size[mine], len(moments) + 1)
        ended = sum_by(np.searchsorted(moments, end[mine]), size[mine], len(moments) + 1)
        held = np.cumsum(begun - ended)[: len(moments)]
        there = np.flatnonzero(held)
        spans.append((edges[there], edges[there + 1], held[there], np.full(len(there), number)))
    starts, ends, sizes, numbers = (np.concatenate(columns) for columns in zip(*spans, strict=True))
    return starts, ends, sizes, numbers.astype(np.uint8)
