"""Allocations that are never freed, that grow from step to step, or that are freed at once (churn)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.annotations import ended_steps, marks
from memviz.analysis.groups import Groups, group_codes, group_rows
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.trace.model import Action, DeviceTrace, Ints8, Trace


def never_freed_rows(device: DeviceTrace) -> Ints8:
    """Allocations of the trace whose free was not requested before its end."""
    rows, count = lifetimes(device), len(device.events)
    return np.flatnonzero((rows.start >= 0) & (rows.end == count) & (rows.free_requested == count))


@dataclass(frozen=True)
class GrowthRow:
    key: str
    label: str
    bytes: tuple[int, ...]
    """Live at the end of each step."""

    @property
    def grown_bytes(self) -> int:
        return self.bytes[-1] - self.bytes[0]


@dataclass(frozen=True)
class Growth:
    by: str
    steps: tuple[str, ...]
    """Steps that ended within the trace; empty if none did."""
    live_bytes: tuple[int, ...]
    """At the end of each step."""
    rows: tuple[GrowthRow, ...]
    """Rows that are larger at the end of the last step than of the first, by that difference."""
    rest_bytes: tuple[int, ...]
    """All else; rows and rest add up to `live_bytes`."""
    unit: str = "step"
    """Or "mark"."""


def growth(
    trace: Trace, device: DeviceTrace, by: str = "site", *, top: int = 20, within: tuple[int, int] | None = None
) -> Growth:
    """Compare the ends of steps, or the moments that the program named with `memviz.mark` where it has no steps.

    `within` are two events between which the moments are to be, named ones first, if there are two.
    """
    # In the middle of a step its activations are live: they would look like something that grows.
    ended = ended_steps(trace, device)
    named = tuple(mark for mark in marks(trace, device) if mark.end_event >= 0)
    complete_steps, unit = (named, "mark") if len(ended) < 2 <= len(named) else (ended, "step")
    if within is not None:
        for moments, kind in ((named, "mark"), (ended, "step")):
            inside = tuple(one for one in moments if within[0] <= one.end_event <= within[1])
            if len(inside) > 1:
                complete_steps, unit = inside, kind
                break
    if not complete_steps:
        return Growth(by, (), (), (), ())
    ends = np.array([span.end_event for span in complete_steps])
    all_rows = lifetimes(device)
    # Rows that are live at the end of some step: from the first such step up to, not with, the last one.
    first, past = np.searchsorted(ends, all_rows.start), np.searchsorted(ends, all_rows.end)
    rows = np.flatnonzero(first < past)
    keyed = group_codes(trace, device, rows, by)
    distinct, codes = np.unique(keyed.codes, return_inverse=True)
    # One row per code, one column per step.
    size, count, width = all_rows.size[rows], len(distinct), len(ends) + 1
    change = sum_by(codes * width + first[rows], size, count * width)
    change -= sum_by(codes * width + past[rows], size, count * width)
    per_step = np.cumsum(change.reshape(count, width), axis=1)[:, :-1]
    grown = per_step[:, -1] - per_step[:, 0]
    growing = [GrowthRow(*keyed.name(int(distinct[i])), tuple(per_step[i].tolist())) for i in np.flatnonzero(grown > 0)]
    largest = sorted(growing, key=lambda row: (-row.grown_bytes, row.label, row.key))[:top]
    live = timeline(device).live[ends + 1]
    rest = live - np.array([row.bytes for row in largest], dtype=np.int64).reshape(-1, len(ends)).sum(axis=0)
    names = tuple(step.name for step in complete_steps)
    return Growth(by, names, tuple(live.tolist()), tuple(largest), tuple(rest.tolist()), unit)


def freed_at_once(trace: Trace, device: DeviceTrace, *, top: int | None = None) -> Groups:
    """Return them by call site. Bytes are summed over all such allocations: traffic, never live together."""
    rows, count = lifetimes(device), len(device.events)
    # The order among allocs and frees alone: a segment may be made in between.
    order = np.append(np.cumsum(device.events.action <= Action.FREE_COMPLETED), count + 1)
    freed = np.minimum(rows.free_requested, rows.end)
    at_once = np.flatnonzero((rows.start >= 0) & (freed < count) & (order[freed] == order[rows.start] + 1))
    return group_rows(trace, device, at_once, "site", top=top)
