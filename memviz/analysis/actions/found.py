"""What was found of a recording, as its edited requests take it over: by event and by final block."""

from __future__ import annotations

import numpy as np

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.phase_spans import phase_spans
from memviz.analysis.purpose.phases import DOING, phases
from memviz.analysis.purpose.taken_over import first_events
from memviz.trace.model import DeviceTrace, Ints8, Purposes, Spans, TakenOver, Trace
from memviz.trace.picked import picked


def found(trace: Trace, device: DeviceTrace) -> TakenOver:
    rows, said = lifetimes(device), categories(trace, device)
    of_rows = Purposes(said.category, said.certainty, phases(trace, device), np.ones(len(rows), dtype=np.bool_))
    events = _rows_at(first_events(rows, len(device.events)), len(device.events))
    blocks = _rows_at(rows.block.astype(np.int64), len(device.blocks))
    return TakenOver(picked(of_rows, events), picked(of_rows, blocks), _spans(trace, device))


def _rows_at(place: Ints8, count: int) -> Ints8:
    """The row at each place, or -1."""
    row = np.full(count, -1, dtype=np.int64)
    has_place = np.flatnonzero(place >= 0)
    row[place[has_place]] = has_place
    return row


def _spans(trace: Trace, device: DeviceTrace) -> Spans:
    spans = phase_spans(trace, device).spans
    return Spans(
        np.array([DOING.index(span.doing) for span in spans], dtype=np.uint8),
        np.array([span.step for span in spans], dtype=np.int32),
        np.array([span.first for span in spans], dtype=np.int64),
    )
