"""From one trace's peak to the others': what holds how many bytes more, as rows that add up to the byte.

The same sums as `compare`, over the finer things of `alike`, and with what each row consists of most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from memviz.analysis.alike import BEFORE_RECORDING, KINDS, Alike, Pair, Thing, alike, kinds
from memviz.analysis.compare import Moment, compare
from memviz.analysis.frames import DEFAULT_RULE, SiteRule
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.live import live_rows
from memviz.analysis.sums import sum_by
from memviz.trace.model import Category, Ints8

SAYS_NOTHING = (Category.UNKNOWN.label, BEFORE_RECORDING)
"""Kinds that explain no change."""


@dataclass(frozen=True)
class Change:
    thing: Thing
    kind: str
    """What most of its bytes are, where it holds most: one of `alike.KINDS`."""
    bytes: tuple[int, ...]
    """Per trace, 0 where it has nothing there."""
    counts: tuple[int, ...]

    def delta(self, other: int) -> int:
        return self.bytes[other] - self.bytes[0]


@dataclass(frozen=True)
class Changes:
    by: str
    moments: tuple[Moment, ...]
    """The baseline first."""
    rows: tuple[Change, ...]
    """By the largest difference from the baseline. They add up to every moment's bytes."""

    def delta(self, other: int) -> int:
        return self.moments[other].live_bytes - self.moments[0].live_bytes


def changes(sides: Sequence[Pair], by: str = "site", *, rule: SiteRule = DEFAULT_RULE) -> Changes:
    """At each side's peak."""
    moments = compare(sides, "category", top=0).moments
    found = alike(sides, by, rule=rule)
    held = [_held(found, number, side, moments[number].event) for number, side in enumerate(sides)]
    totals = np.stack([each[0] for each in held])
    counts = np.stack([each[1] for each in held])
    kind = np.maximum.reduce([each[2] for each in held]).argmax(axis=1)
    rows = [
        Change(found.things[i], KINDS[kind[i]], tuple(totals[:, i].tolist()), tuple(counts[:, i].tolist()))
        for i in np.flatnonzero(counts.any(axis=0)).tolist()
    ]
    return Changes(by, moments, tuple(sorted(rows, key=_by_difference)))


def _held(found: Alike, number: int, side: Pair, event: int) -> tuple[Ints8, Ints8, Ints8]:
    """Bytes and allocations of each thing, and its bytes per kind."""
    rows = live_rows(side[1], event)
    size, thing = lifetimes(side[1]).size[rows], found.of_rows(number, side)[rows]
    many = len(found.things)
    by_kind = sum_by(thing * len(KINDS) + kinds(*side)[rows], size, many * len(KINDS))
    counts = np.bincount(thing, minlength=many)
    return sum_by(thing, size, many), counts, by_kind.reshape(many, len(KINDS))


def _by_difference(row: Change) -> tuple[int, str, str]:
    largest = max(abs(each - row.bytes[0]) for each in row.bytes)
    return -largest, row.thing.label, row.thing.key


def says_most(sides: Sequence[Pair], other: int = 1) -> str:
    """The grouping to look at first: sites, unless most of the change sits where only one trace ever was.

    Two different steps share few sites, and then their categories say more, as far as those are known.
    """
    pair = [sides[0], sides[other]]
    rows = compare(pair, "site").rows
    moved = sum(abs(row.delta_bytes[1]) for row in rows)
    one_sided = sum(abs(row.delta_bytes[1]) for row in rows if not all(row.counts))
    if 2 * one_sided <= moved:
        return "site"
    found = changes(pair, "category").rows
    moved = sum(abs(row.delta(1)) for row in found)
    explained = sum(abs(row.delta(1)) for row in found if row.thing.key not in SAYS_NOTHING)
    return "category" if 2 * explained > moved else "site"
