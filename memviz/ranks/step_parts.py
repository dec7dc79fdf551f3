"""A recording cut at its steps, so that the same moment of every rank stands in the same column.

Ranks of one program take the same steps, but not the same time, and not always the same number of events: one may have
a stage of its own, one may have run out of memory. By step they can be laid over one another.
"""

from __future__ import annotations

import re
from itertools import groupby

import numpy as np

from memviz.analysis.annotations import steps
from memviz.analysis.decimate import by_event
from memviz.analysis.purpose.phases import phase_spans
from memviz.ranks.row import Curve, StepPart
from memviz.trace.model import DeviceTrace, Ints8, Trace

MOST_PARTS = 24
"""Of a longer recording the last ones: there it was dumped, and there memory ran out."""
MOST_COLUMNS = 480
_TAIL = 0.1
"""What is left after the last step is one of its own where it has a tenth of that one's events."""
_NUMBER = re.compile(r"(\d{1,9})\D*$")
Bounds = tuple[int, str, int, int]
"""Number, name, first and last event."""


def curve(trace: Trace, device: DeviceTrace) -> Curve:
    parts = step_parts(trace, device)
    columns = MOST_COLUMNS // len(parts)
    live = np.concatenate([_columns(device, part, columns) for part in parts])
    return Curve(parts, columns, tuple(live.tolist()))


def step_parts(trace: Trace, device: DeviceTrace) -> tuple[StepPart, ...]:
    """In order; together they hold every event. Where the recording shows no steps, one part is the whole."""
    last = len(device.events) - 1
    bounds = _noted(trace, device) or _seen(trace, device)
    if not bounds:
        return (StepPart(0, "", -1, last),)
    first = bounds[0][2]
    parts = [StepPart(bounds[0][0] - 1, "", -1, first - 1)] if first > 0 else []
    # What lies between two steps is the later one's: no event is lost.
    begins = [first if parts else -1, *(end + 1 for *_, end in bounds[:-1])]
    parts += [StepPart(row[0], row[1], begin, row[3]) for row, begin in zip(bounds, begins, strict=True)]
    end = parts[-1]
    if last - end.last_event > _TAIL * (end.last_event - end.first_event + 1):
        parts.append(StepPart(end.number + 1, "", end.last_event + 1, last))
    else:
        parts[-1] = StepPart(end.number, end.name, end.first_event, last)
    return _shortened(parts)


def _shortened(parts: list[StepPart]) -> tuple[StepPart, ...]:
    """What came before the last steps is one part, so that the peak stays in."""
    if len(parts) <= MOST_PARTS:
        return tuple(parts)
    kept = parts[-(MOST_PARTS - 1) :]
    return (StepPart(kept[0].number - 1, "", parts[0].first_event, kept[0].first_event - 1), *kept)


def _noted(trace: Trace, device: DeviceTrace) -> list[Bounds]:
    """As the profiler or the optimizer noted them."""
    ranges = [step for step in steps(trace, device) if step.end_event >= step.start_event]
    numbers = [int(number[1]) if (number := _NUMBER.search(step.name)) else 0 for step in ranges]
    if any(after <= before for before, after in zip(numbers, numbers[1:], strict=False)):
        numbers = list(range(1, len(ranges) + 1))
    rows = zip(numbers, ranges, strict=True)
    in_order = [(number, step.name, step.start_event, step.end_event) for number, step in rows]
    apart = all(before[3] < after[2] for before, after in zip(in_order, in_order[1:], strict=False))
    return in_order if apart else []


def _seen(trace: Trace, device: DeviceTrace) -> list[Bounds]:
    """As stacks show forwards, backwards and optimizer steps."""
    spans = groupby(phase_spans(trace, device).spans, key=lambda span: span.step)
    rows = [(number, list(group)) for number, group in spans]
    return [(number, f"step {number}", group[0].first, group[-1].last) for number, group in rows]


def _columns(device: DeviceTrace, part: StepPart, columns: int) -> Ints8:
    """The highest of each column; a part of fewer events than columns shows each of them several times."""
    highest = by_event(device, columns, first=part.first_event, last=max(part.last_event, part.first_event)).live_max
    return np.asarray(highest[np.arange(columns) * len(highest) // columns], dtype=np.int64)
