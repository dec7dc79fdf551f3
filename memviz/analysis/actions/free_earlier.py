"""What outlives its step let go when the next one begins."""

from __future__ import annotations

import numpy as np

from memviz.analysis.actions.action import ActionKind, Proposal
from memviz.analysis.actions.edit import Earlier, Edit, edited
from memviz.analysis.findings.facts import Facts
from memviz.trace.model import Ints8

ASSUMPTIONS = ("Nothing reads it any more once the next forward begins.",)


def free_earlier(facts: Facts, rows: Ints8) -> Proposal | None:
    """Each of these rows ends where the first forward behind its beginning does; None where none lives so long."""
    begins = np.array([span.first for span in facts.forwards], dtype=np.int64)
    following = np.searchsorted(begins, facts.rows.start[rows], side="right")
    ends = np.append(begins, facts.count)[following]
    late = (facts.rows.start[rows] >= 0) & (facts.rows.end[rows] > ends) & (facts.rows.end[rows] < facts.count)
    if not late.any():
        return None
    trace = edited(facts.trace, facts.device, Edit(earlier=Earlier(rows[late], ends[late])))
    return Proposal(ActionKind.FREE_EARLIER, "free it before the next forward", ASSUMPTIONS, trace)
