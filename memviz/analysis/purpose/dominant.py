"""Groups with the kind that most of their bytes belong to: what a bar is coloured by.

A kind is a category; or *before recording*, for what was live at the first event without a stack to say more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.callstacks.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.groups import Groups, grouped, keyed_by
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.kinds import KINDS, kinds
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.purpose.told import told_of_groups
from memviz.analysis.sums import sum_by
from memviz.trace.model import Category, DeviceTrace, Ints8, Trace


@dataclass(frozen=True)
class Dominant:
    kind: str
    """One of `kinds.KINDS`."""
    bytes: int
    """Of this kind; the rest of the group is of others."""
    certainty: Certainty = Certainty.OPEN
    reason: str = ""
    """Why most of them are held to be of this kind."""


@dataclass(frozen=True)
class Breakdown:
    groups: Groups
    """All of them."""
    dominant: Mapping[str, Dominant]
    """Under each `Group.key`."""


def breakdown(trace: Trace, device: DeviceTrace, rows: Ints8, by: str, rule: SiteRule = DEFAULT_RULE) -> Breakdown:
    groups = grouped(trace, device, rows, by, rule=rule)
    return Breakdown(groups, dominant_by_group(trace, device, rows, by, rule))


def dominant_by_group(
    trace: Trace, device: DeviceTrace, rows: Ints8, by: str, rule: SiteRule = DEFAULT_RULE
) -> dict[str, Dominant]:
    """Under each `Group.key` of `groups.grouped` for the same rows."""
    keyed = keyed_by(trace, device, rows, by, rule=rule)
    distinct, codes = np.unique(keyed.codes, return_inverse=True)
    sums = bytes_by_kind(trace, device, rows, codes, count=len(distinct))
    names = [keyed.name(int(code))[0] for code in distinct]
    mostly = dominant_of(sums, counts_by_kind(trace, device, rows, codes, count=len(distinct)))
    kind = np.array([KINDS.index(one.kind) for one in mostly], dtype=np.int64)
    reasons = told_of_groups(trace, device, rows, codes, kind)
    reasoned = (
        replace(one, certainty=why.certainty, reason=why.reason) for one, why in zip(mostly, reasons, strict=True)
    )
    return dict(zip(names, reasoned, strict=True))


def bytes_by_kind(trace: Trace, device: DeviceTrace, rows: Ints8, codes: npt.NDArray[Any], *, count: int) -> Ints8:
    """A row per code in 0..count-1, a column per kind."""
    width = len(KINDS)
    pairs = codes * width + kinds(trace, device, rows)
    return sum_by(pairs, lifetimes(device).size[rows], count * width).reshape(count, width)


def counts_by_kind(trace: Trace, device: DeviceTrace, rows: Ints8, codes: npt.NDArray[Any], *, count: int) -> Ints8:
    width = len(KINDS)
    pairs = codes * width + kinds(trace, device, rows)
    return np.bincount(pairs, minlength=count * width).reshape(count, width)


def dominant_of(sums: Ints8, counts: Ints8 | None = None) -> list[Dominant]:
    """Where two are equal a known kind goes before *unknown*; of a group without bytes it is the kind of most."""
    order = np.append(np.arange(1, len(KINDS)), Category.UNKNOWN)
    weights = sums if counts is None else np.where(sums.any(axis=1, keepdims=True), sums, counts)
    largest = order[weights[:, order].argmax(axis=1)]
    return [Dominant(KINDS[code], int(row[code])) for code, row in zip(largest.tolist(), sums, strict=True)]
