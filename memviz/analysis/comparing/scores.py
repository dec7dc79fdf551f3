"""One line per trace of a comparison: what its peak consists of, what was reserved for it, how long it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import kept
from memviz.analysis.comparing.match_allocations import Pair
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.live import clock, has_times, live_rows
from memviz.analysis.purpose.kinds import KINDS, kinds
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import sum_of_spans, timeline
from memviz.trace.model import DeviceTrace, Trace
from memviz.trace.reserved_bytes import is_reserved_known


@dataclass(frozen=True)
class Score:
    kinds: tuple[tuple[str, int], ...]
    """Live bytes at the peak by `kinds.KINDS`, those that have any."""
    highest: Mapping[str, int]
    """Most live bytes of each kind at any moment."""
    live_bytes: int
    """At the peak; the sum of the above."""
    reserved_bytes: int
    """Most at any time: what a card must be able to give."""
    delta_bytes: int
    """Live, over the baseline's."""
    duration_us: int | None
    """From the first event to the last; None where the file has no times."""

    @property
    def knows_reserved(self) -> bool:
        return is_reserved_known(self.live_bytes, self.reserved_bytes)

    @property
    def gap_bytes(self) -> int:
        """Reserved at most, and not live at the peak."""
        return self.reserved_bytes - self.live_bytes


def scores(sides: Sequence[Pair]) -> tuple[Score, ...]:
    """The baseline first."""
    baseline = timeline(sides[0][1]).peak_bytes
    return tuple(_score(side, baseline) for side in sides)


def _score(side: Pair, baseline: int) -> Score:
    device = side[1]
    line = timeline(device)
    rows = live_rows(device, line.peak_event)
    held = sum_by(kinds(*side, rows), lifetimes(device).size[rows], len(KINDS)).tolist()
    return Score(
        kinds=tuple((kind, count) for kind, count in zip(KINDS, held, strict=True) if count),
        highest=_highest(*side),
        live_bytes=line.peak_bytes,
        reserved_bytes=line.reserved_peak_bytes,
        delta_bytes=line.peak_bytes - baseline,
        duration_us=_duration(device),
    )


def _highest(trace: Trace, device: DeviceTrace) -> dict[str, int]:
    def find() -> dict[str, int]:
        rows, codes, count = lifetimes(device), kinds(trace, device), len(device.events)
        highest = {}
        for code in np.unique(codes).tolist():
            chosen = codes == code
            live = sum_of_spans(rows.start[chosen], rows.end[chosen], rows.size[chosen], count)
            highest[KINDS[code]] = int(live.max())
        return highest

    return kept(trace, (_highest, device.name), find)


def _duration(device: DeviceTrace) -> int | None:
    if not has_times(device):
        return None
    times = clock(device)
    return int(times[-1]) - int(times[0])
