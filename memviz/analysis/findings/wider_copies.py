"""Blocks twice as large as what was made just before and is live beside them: half precision turned to single.

A trace does not say what an operator read. What speaks for a copy is the operator where C++ frames name it, or that
one line made both in a row; and that there is a source of half the size for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memviz.analysis.callstacks.operators import NO_OPERATOR, operator_name, operators
from memviz.analysis.callstacks.sites import sites
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
            f"{bytes_text(most)}{made_by(site)} are probably copies in twice the precision: each time a block of "
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
    wide = np.flatnonzero(is_wide & ~facts.has_purpose(Category.PARAMETER, Category.INPUT))
    source = _latest(facts, rows.size[wide] // 2, rows.start[wide])
    fits = (source >= 0) & (rows.end[source] > rows.start[wide]) & (rows.start[source] >= begin)
    wide, source = wide[fits], source[fits]
    says, copies = _operators(facts)
    stack = rows.stack[wide]
    of_stack = sites(facts.trace).of_stack
    # Rows stand in the order of their allocs.
    in_a_row = (source + 1 == wide) & (of_stack[rows.stack[source]] == of_stack[stack])
    likely = copies[stack] | (~says[stack] & in_a_row)
    return wide[likely], source[likely]


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


def _operators(facts: Facts) -> tuple[Bools, Bools]:
    """Per stack, and one more for none: whether an operator is known, and whether it copies."""
    texts = operators(facts.trace)
    copying = [text for text in np.unique(texts).tolist() if operator_name(facts.trace, text) in _COPIES]
    return np.asarray(texts != NO_OPERATOR), np.isin(texts, copying)
