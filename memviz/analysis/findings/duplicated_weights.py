"""The same sizes in the same order, allocated twice before the first forward, and both live: weights and a copy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.findings.facts import Facts, made_by, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.model import Bools, Category, Ints8
from memviz.units import bytes_text, count_text

_FEWEST = 3
"""Weights: two layers of a network are often alike."""
_MUCH = 0.4
"""Of the bytes of all weights: two equal parts of a network are no copy of it."""
_MOST_DISTANCES = 8


def duplicated_weights(facts: Facts) -> Iterator[Finding]:
    rows = _weights(facts)
    first, second = _longest_repeat(facts, rows)
    size = int(facts.rows.size[second].sum())
    if size < max(_MUCH * int(facts.rows.size[rows].sum()), facts.noticeable_bytes):
        return
    site = facts.largest_site(second)
    yield Finding(
        FindingKind.DUPLICATED_WEIGHTS,
        size,
        f"{count_text(len(second))} allocations of {bytes_text(size)} together{made_by(site)} have the sizes of "
        f"{count_text(len(first))} made before them, in the same order, and both are live: probably a second copy of "
        "the weights.",
        "If it is read only now and then (an average, a reference model), keep it on the host or in half precision.",
        np.concatenate([first, second]),
        int(facts.rows.start[second[-1]]),
        site_name(site),
        Certainty.PROBABLE,
    )


def _weights(facts: Facts) -> Ints8:
    """What was made before the first forward and is live in all, in the order in which it was made. A copy that no
    module made looks like something that was given to the model."""
    if not facts.forwards:
        return np.zeros(0, dtype=np.int64)
    first, last, rows = facts.forwards[0].first, facts.forwards[-1].last, facts.rows
    is_there = (rows.start >= 0) & (rows.start < first) & (rows.end > last)
    return np.flatnonzero(
        is_there & facts.has_purpose(Category.PARAMETER, Category.WEIGHT_COPIES, Category.INPUT, Category.UNKNOWN)
    )


def _longest_repeat(facts: Facts, rows: Ints8) -> tuple[Ints8, Ints8]:
    """Two stretches of equal sizes made at other places; a network's own equal layers come from one place."""
    size, stack = facts.rows.size[rows], facts.rows.stack[rows]
    nothing = rows[:0]
    best = (nothing, nothing)
    for distance in _distances(size):
        same = (size[:-distance] == size[distance:]) & (stack[:-distance] != stack[distance:])
        begin, length = _longest_run(same)
        length = min(length, distance)
        stretch = np.arange(begin, begin + length)
        if length < _FEWEST or not _has_one_of_a_kind(size[stretch]):
            continue
        if size[stretch].sum() > facts.rows.size[best[0]].sum():
            best = rows[stretch], rows[stretch + distance]
    return best


def _distances(size: Ints8) -> list[int]:
    """From one block of the largest size that comes twice to the others of that size."""
    sizes, counts = np.unique(size, return_counts=True)
    if not (counts > 1).any():
        return []
    places = np.flatnonzero(size == sizes[counts > 1][-1])
    return [int(distance) for distance in np.unique(places[1:] - places[0])[:_MOST_DISTANCES]]


def _longest_run(same: Bools) -> tuple[int, int]:
    edges = np.diff(np.concatenate([[0], same.astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(begins):
        return 0, 0
    longest = int((ends - begins).argmax())
    return int(begins[longest]), int((ends - begins)[longest])


def _has_one_of_a_kind(size: Ints8) -> bool:
    """Equal layers one after another have none: each half of four of them is the other's copy."""
    return bool((np.unique(size, return_counts=True)[1] == 1).any())
