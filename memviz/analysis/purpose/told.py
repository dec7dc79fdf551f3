"""What is said of any set of allocations together: each purpose with its reason, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.kinds import KINDS, kinds
from memviz.analysis.purpose.reasons import REASON_TEXTS, Certainty, Reason
from memviz.analysis.sums import sum_by
from memviz.trace.model import DeviceTrace, Ints8, Trace


@dataclass(frozen=True)
class Told:
    kind: str
    """One of `kinds.KINDS`."""
    certainty: Certainty
    reason: str
    bytes: int
    count: int


def told(trace: Trace, device: DeviceTrace, rows: Ints8) -> tuple[Told, ...]:
    """Rows of `lifetimes`; by bytes, the largest first. They add up."""
    codes, width = _codes(trace, device, rows)
    distinct, of_row = np.unique(codes, return_inverse=True)
    sums = sum_by(of_row, lifetimes(device).size[rows], len(distinct))
    counts = np.bincount(of_row, minlength=len(distinct))
    order = np.argsort(-sums, kind="stable").tolist()
    return tuple(_told(int(distinct[i]), width, int(sums[i]), int(counts[i])) for i in order)


def told_of_groups(
    trace: Trace, device: DeviceTrace, rows: Ints8, group: npt.NDArray[Any], kind: npt.NDArray[Any]
) -> list[Told]:
    """For each group the largest reason among its rows of this kind (an index into KINDS, one for each group)."""
    codes, width = _codes(trace, device, rows)
    chosen = np.flatnonzero(codes // width == kind[group])
    span = len(KINDS) * width
    distinct, of_row = np.unique(group[chosen].astype(np.int64) * span + codes[chosen], return_inverse=True)
    sums = sum_by(of_row, lifetimes(device).size[rows][chosen], len(distinct))
    counts = np.bincount(of_row, minlength=len(distinct))
    order = np.lexsort((-sums, distinct // span))
    first = order[np.unique((distinct // span)[order], return_index=True)[1]]
    return [_told(int(distinct[i] % span), width, int(sums[i]), int(counts[i])) for i in first.tolist()]


def _codes(trace: Trace, device: DeviceTrace, rows: Ints8) -> tuple[Ints8, int]:
    """Kind, certainty and reason as one number each, and by how much a kind is larger than the last."""
    said = categories(trace, device)
    rest = said.certainty[rows].astype(np.int64) * len(Reason) + said.reason[rows]
    width = len(Certainty) * len(Reason)
    return kinds(trace, device, rows) * width + rest, width


def _told(code: int, width: int, size: int, count: int) -> Told:
    kind, rest = divmod(code, width)
    certainty, reason = divmod(rest, len(Reason))
    return Told(KINDS[kind], Certainty(certainty), REASON_TEXTS.get(Reason(reason), ""), size, count)
