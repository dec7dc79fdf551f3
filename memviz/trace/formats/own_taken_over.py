"""What an estimate takes over of the recording it comes from, in a file of our own: see `own_labels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from memviz.errors import TraceError
from memviz.trace.formats.base64_columns import column_of, count_of, text_of
from memviz.trace.model import Category, Phase, Purposes, Spans, TakenOver

CERTAINTIES = 4
"""How many `analysis.purpose` has."""
_MOST_SPANS = 3
"""That begin with one event: all phases may, where a noted one holds no event."""
_MOST_STEPS = np.iinfo(np.int32).max


def dump_taken_over(known: TakenOver) -> dict[str, Any]:
    spans = known.spans
    return {
        "events": _dump_purposes(known.events),
        "blocks": _dump_purposes(known.blocks),
        "spans": {
            "phase": text_of(spans.phase),
            "step": text_of(spans.step.astype("<i4")),
            "first": text_of(spans.first.astype("<i8")),
        },
    }


def _dump_purposes(purposes: Purposes) -> dict[str, Any]:
    return {name: text_of(column.astype(np.uint8)) for name, column in purposes.columns()}


def read_taken_over(value: Any, events: int, blocks: int) -> TakenOver | None:
    """None where a file has none, or not all of it."""
    of_events, of_blocks, spans = (_part(value, name) for name in ("events", "blocks", "spans"))
    if of_events is None or of_blocks is None or spans is None:
        return None
    return TakenOver(_purposes(of_events, events), _purposes(of_blocks, blocks), _spans(spans, events))


def _part(value: Any, name: str) -> dict[str, Any] | None:
    part = value.get(name) if type(value) is dict else None
    return part if type(part) is dict else None


def _purposes(value: dict[str, Any], count: int) -> Purposes:
    return Purposes(
        column_of(value.get("category"), np.uint8, count, len(Category)),
        column_of(value.get("certainty"), np.uint8, count, CERTAINTIES),
        column_of(value.get("phase"), np.uint8, count, len(Phase)),
        column_of(value.get("is_known"), np.uint8, count, 2).astype(np.bool_),
    )


def _spans(value: dict[str, Any], events: int) -> Spans:
    count = count_of(value.get("phase"), np.uint8)
    phase = column_of(value.get("phase"), np.uint8, count, len(Phase))
    first = column_of(value.get("first"), np.dtype("<i8"), count, events)
    if count > _MOST_SPANS * events or (phase == Phase.UNKNOWN).any() or (first[1:] < first[:-1]).any():
        raise TraceError("Its phases (under the key 'memviz') do not follow one another.")
    return Spans(phase, column_of(value.get("step"), np.dtype("<i4"), count, _MOST_STEPS), first)
