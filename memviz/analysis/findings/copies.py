"""Findings about copies: weights allocated twice, and half precision copied into single precision."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.callstacks.sites import operator_name, operators
from memviz.analysis.findings.finding import Facts, Finding, FindingKind, origin_text, site_name
from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.model import NO_STACK, Bools, Category, Ints8
from memviz.units import bytes_text, count_text

# Duplicated weights: the same sizes in the same order, allocated twice before the first forward, and both live.

_FEWEST_WEIGHTS = 3
"""Weights: two layers of a network often have equal sizes."""
_DUPLICATE_SHARE = 0.4
"""Share of the bytes of all weights: two equal parts of a network are no copy of it."""
_MOST_DISTANCES = 8


def duplicated_weights(facts: Facts) -> Iterator[Finding]:
    rows = _weight_rows(facts)
    first, second = _longest_repeat(facts, rows)
    size = int(facts.rows.size[second].sum())
    if size < max(_DUPLICATE_SHARE * int(facts.rows.size[rows].sum()), facts.noticeable_bytes):
        return
    site = facts.largest_site(second)
    yield Finding(
        FindingKind.DUPLICATED_WEIGHTS,
        size,
        f"{count_text(len(second))} allocations of {bytes_text(size)} together{origin_text(site)} have the sizes of "
        f"{count_text(len(first))} made before them, in the same order, and both are live: probably a second copy of "
        "the weights.",
        "If it is read rarely (an average, a reference model), keep it in CPU memory or in half precision.",
        np.concatenate([first, second]),
        int(facts.rows.start[second[-1]]),
        site_name(site),
        Certainty.PROBABLE,
    )


def _weight_rows(facts: Facts) -> Ints8:
    """Return the rows made before the first forward and live through the last, in order of creation. A weight copy made
    outside of modules looks like an input of the model."""
    if not facts.forwards:
        return np.zeros(0, dtype=np.int64)
    first, last, rows = facts.forwards[0].first, facts.forwards[-1].last, facts.rows
    is_there = (rows.start >= 0) & (rows.start < first) & (rows.end > last)
    return np.flatnonzero(
        is_there & facts.has_purpose(Category.PARAMETER, Category.WEIGHT_COPIES, Category.INPUT, Category.UNKNOWN)
    )


def _longest_repeat(facts: Facts, rows: Ints8) -> tuple[Ints8, Ints8]:
    """Two longest runs of equal sizes from different stacks; equal layers of one network share their stacks."""
    size, stack = facts.rows.size[rows], facts.rows.stack[rows]
    best = rows[:0], rows[:0]
    # From one block of the largest size that comes twice to the others of that size.
    sizes, counts = np.unique(size, return_counts=True)
    places = np.flatnonzero(size == sizes[counts > 1].max(initial=-1))
    for distance in np.unique(places[1:] - places[:1])[:_MOST_DISTANCES].tolist():
        same = (size[:-distance] == size[distance:]) & (stack[:-distance] != stack[distance:])
        begin, length = _longest_run(same)
        length = min(length, distance)
        stretch = np.arange(begin, begin + length)
        # Equal layers one after another have none of a kind: each half of four of them is the other's copy.
        if length < _FEWEST_WEIGHTS or not (np.unique(size[stretch], return_counts=True)[1] == 1).any():
            continue
        if size[stretch].sum() > facts.rows.size[best[0]].sum():
            best = rows[stretch], rows[stretch + distance]
    return best


def _longest_run(same: Bools) -> tuple[int, int]:
    edges = np.diff(np.concatenate([[0], same.astype(np.int8), [0]]))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    if not len(begins):
        return 0, 0
    longest = int((ends - begins).argmax())
    return int(begins[longest]), int((ends - begins)[longest])


# Copies from half into single precision. A trace does not record what an operator read. So C++ frames must name an
# operator that copies, a block of half the size must be live at the same time, and none of twice the size, which would
# make it a copy into half precision.

_COPY_OPERATORS = ("_to_copy", "to", "copy_", "_copy_from")
"""Operators that make the same values in another precision."""
_LEAST_SHARE = 4
"""A copy counts from this fraction of the noticeable bytes on: one line often makes several."""


def wider_copies(facts: Facts) -> Iterator[Finding]:
    copies, sources = _pairs_of_copies(facts)
    for site, rows in facts.by_site(copies):
        matching = sources[np.searchsorted(copies, rows)]
        most, event = facts.most_together(rows)
        if most < facts.noticeable_bytes or len(np.unique(matching)) < len(rows):
            continue
        yield Finding(
            FindingKind.WIDER_COPIES,
            most,
            f"{bytes_text(most)}{origin_text(site)} are probably copies to a wider dtype: each time a block of half "
            "the size is live at the same moment.",
            "Stay in one precision there, or work in chunks.",
            np.unique(np.concatenate([rows, matching])),
            event,
            site_name(site),
            Certainty.PROBABLE,
        )


def _pairs_of_copies(facts: Facts) -> tuple[Ints8, Ints8]:
    """Rows from the first forward on, ascending, and for each the latest live row of half its size."""
    rows = facts.rows
    begin = facts.forwards[0].first if facts.forwards else facts.count
    is_wide = (rows.start >= begin) & (rows.size % 2 == 0) & (rows.stack != NO_STACK)
    is_wide &= rows.size * _LEAST_SHARE >= facts.noticeable_bytes
    # What comes from the host has no source here.
    wide = np.flatnonzero(
        is_wide & ~facts.has_purpose(Category.PARAMETER, Category.INPUT, Category.AUTOCAST_WEIGHT_COPIES)
    )
    source = _latest_rows(facts, rows.size[wide] // 2, rows.start[wide])
    fits = (source >= 0) & (rows.end[source] > rows.start[wide]) & (rows.start[source] >= begin)
    wide, source = wide[fits], source[fits]
    narrower = _live_then(facts, 2 * facts.rows.size[wide], rows.start[wide]) > 0
    texts = operators(facts.trace)
    copying = [text for text in np.unique(texts).tolist() if operator_name(facts.trace, text) in _COPY_OPERATORS]
    likely = np.isin(texts[rows.stack[wide]], copying) & ~narrower
    return wide[likely], source[likely]


def _live_then(facts: Facts, size: Ints8, event: Ints8) -> Ints8:
    """Number of live blocks of each size before each event."""
    rows = facts.rows
    order = np.argsort(rows.size, kind="stable")
    sorted_sizes, live = rows.size[order], np.zeros(len(size), dtype=np.int64)
    for wanted in np.unique(size).tolist():
        first, past = np.searchsorted(sorted_sizes, [wanted, wanted + 1])
        of_size, of_events = order[first:past], np.flatnonzero(size == wanted)
        begun = np.searchsorted(rows.start[of_size], event[of_events])
        live[of_events] = begun - np.searchsorted(np.sort(rows.end[of_size]), event[of_events], side="right")
    return live


def _latest_rows(facts: Facts, size: Ints8, before: Ints8) -> Ints8:
    """Return for each size the row that began last before an event, or -1."""
    rows = facts.rows
    sizes, code = np.unique(rows.size, return_inverse=True)
    wanted = np.searchsorted(sizes, size)
    has_size = wanted < len(sizes)
    has_size[has_size] = sizes[wanted[has_size]] == size[has_size]
    width = facts.count + 2
    order = np.lexsort((rows.start, code))
    place = np.searchsorted((code * width + rows.start + 1)[order], wanted * width + before + 1) - 1
    row = order[np.maximum(place, 0)] if len(order) else place
    return np.where(has_size & (place >= 0) & (rows.size[row] == size), row, -1)
