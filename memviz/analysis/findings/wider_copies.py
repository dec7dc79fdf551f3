"""Copies into twice the precision: half precision turned to single.

A trace does not say what an operator read. So C++ frames have to name an operator that copies, a block of half the size
has to be live beside each copy, and none of twice the size, of which it could be a copy into half the precision.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.callstacks.operators import operator_name, operators
from memviz.analysis.findings.facts import Facts, made_by, site_name
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.model import NO_STACK, Bools, Category, Ints8
from memviz.units import bytes_text

_COPIES = ("_to_copy", "to", "copy_", "_copy_from")
"""Operators that make the same values in another precision."""
_LEAST_SHARE = 4
"""A copy counts from so small a part of what is worth a sentence: one line often makes several."""


def wider_copies(facts: Facts) -> Iterator[Finding]:
    copies, sources = _copies(facts)
    for site, rows in facts.by_site(copies):
        mine = sources[np.searchsorted(copies, rows)]
        most, event = facts.most_together(rows)
        if most < facts.noticeable_bytes or len(np.unique(mine)) < len(rows):
            continue
        yield Finding(
            FindingKind.WIDER_COPIES,
            most,
            f"{bytes_text(most)}{made_by(site)} are probably copies into twice the precision: each time a block of "
            "half the size is live beside it.",
            "Keep to one precision there, or work in parts: what is computed from it may not need all of it at once.",
            np.unique(np.concatenate([rows, mine])),
            event,
            site_name(site),
            Certainty.PROBABLE,
        )


def _copies(facts: Facts) -> tuple[Ints8, Ints8]:
    """Rows from the first forward on, rising, and the latest row of half the size that is live beside each."""
    rows = facts.rows
    begin = facts.forwards[0].first if facts.forwards else facts.count
    is_wide = (rows.start >= begin) & (rows.size % 2 == 0) & (rows.stack != NO_STACK)
    is_wide &= rows.size * _LEAST_SHARE >= facts.noticeable_bytes
    # What comes from the host has no source here.
    wide = np.flatnonzero(
        is_wide & ~facts.has_purpose(Category.PARAMETER, Category.INPUT, Category.AUTOCAST_WEIGHT_COPIES)
    )
    source = _latest(facts, rows.size[wide] // 2, rows.start[wide])
    fits = (source >= 0) & (rows.end[source] > rows.start[wide]) & (rows.start[source] >= begin)
    wide, source = wide[fits], source[fits]
    narrower = _live_then(facts, 2 * facts.rows.size[wide], rows.start[wide]) > 0
    likely = _copying(facts)[rows.stack[wide]] & ~narrower
    return wide[likely], source[likely]


def _live_then(facts: Facts, size: Ints8, event: Ints8) -> Ints8:
    """How many blocks of each size are live before each event."""
    rows = facts.rows
    order = np.argsort(rows.size, kind="stable")
    sorted_sizes, live = rows.size[order], np.zeros(len(size), dtype=np.int64)
    for wanted in np.unique(size).tolist():
        first, past = np.searchsorted(sorted_sizes, [wanted, wanted + 1])
        of_size, asked = order[first:past], np.flatnonzero(size == wanted)
        begun = np.searchsorted(rows.start[of_size], event[asked])
        live[asked] = begun - np.searchsorted(np.sort(rows.end[of_size]), event[asked], side="right")
    return live


def _latest(facts: Facts, size: Ints8, before: Ints8) -> Ints8:
    """Of each size the row that began last before an event, or -1."""
    rows = facts.rows
    sizes, code = np.unique(rows.size, return_inverse=True)
    wanted = np.searchsorted(sizes, size)
    known = wanted < len(sizes)
    known[known] = sizes[wanted[known]] == size[known]
    width = facts.count + 2
    order = np.lexsort((rows.start, code))
    place = np.searchsorted((code * width + rows.start + 1)[order], wanted * width + before + 1) - 1
    row = order[np.maximum(place, 0)] if len(order) else place
    return np.where(known & (place >= 0) & (rows.size[row] == size), row, -1)


def _copying(facts: Facts) -> Bools:
    """Per stack, and one more for none: its operator makes the same values in another precision."""
    texts = operators(facts.trace)
    copying = [text for text in np.unique(texts).tolist() if operator_name(facts.trace, text) in _COPIES]
    return np.isin(texts, copying)
