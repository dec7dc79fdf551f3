"""The share of a trace with a purpose, and the share with the right one."""

from dataclasses import dataclass

import numpy as np

from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.purpose.categories import KINDS, SAYS_NOTHING, categories, kinds
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.trace.model import Category, DeviceTrace, Trace
from tests.purposes.stripped import Known


@dataclass(frozen=True)
class Told:
    """Bytes at the peak, by kind of purpose."""

    bytes: int
    by_kind: dict[str, int]

    @property
    def share(self) -> float:
        nothing = sum(self.by_kind.get(kind, 0) for kind in SAYS_NOTHING)
        return 1 - nothing / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Judged:
    """Shares of the bytes whose purpose is known."""

    right: float
    wrong: float
    confidently_wrong: float

    @property
    def words(self) -> str:
        return f"{self.right:.1%} {self.wrong:.1%} {self.confidently_wrong:.1%}"


def told(trace: Trace, device: DeviceTrace) -> Told:
    rows = live_rows(device, timeline(device).peak_event)
    sums = sum_by(kinds(trace, device, rows), lifetimes(device).size[rows], len(KINDS))
    by_kind = {KINDS[code]: int(sums[code]) for code in np.argsort(-sums) if sums[code]}
    return Told(int(sums.sum()), by_kind)


def judged(known: Known, *, at_peak: bool) -> Judged:
    """Score the categories of the allocations live at the peak, or of all allocations."""
    rows = np.arange(len(known.truth))
    if at_peak:
        rows = live_rows(known.device, timeline(known.device).peak_event)
    rows = rows[known.truth[rows] != Category.UNKNOWN]
    found = categories(known.trace, known.device)
    size, said, truth = lifetimes(known.device).size[rows], found.category[rows], known.truth[rows]
    total = max(int(size.sum()), 1)
    wrong = (said != truth) & (said != Category.UNKNOWN)
    return Judged(
        right=int(size[said == truth].sum()) / total,
        wrong=int(size[wrong].sum()) / total,
        confidently_wrong=int(size[wrong & found.sure[rows]].sum()) / total,
    )
