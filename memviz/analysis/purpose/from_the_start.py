"""What is there before the first forward and stays: weights, or what the model is given."""

from __future__ import annotations

import numpy as np

from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.before_recording import FEWEST_WEIGHTS
from memviz.analysis.purpose.evidence import Evidence
from memviz.analysis.purpose.findings import Findings
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.distinct import is_among
from memviz.trace.model import Category


def say_from_the_start(findings: Findings, evidence: Evidence) -> None:
    early = findings.open & evidence.never_freed & evidence.during(Doing.NOTHING)
    early &= ~evidence.begun | (evidence.start < evidence.first_work) & evidence.sees_work
    rows = np.flatnonzero(early & ~(evidence.no_stack & ~evidence.begun))
    if not len(rows):
        return
    size = evidence.size[rows]
    gradients = is_among(size, evidence.size[findings.category == Category.GRADIENT])
    weights = np.ones(len(rows), dtype=np.bool_)
    if 2 * size[gradients].sum() > size.sum():
        weights = gradients
    elif len(rows) < FEWEST_WEIGHTS:
        weights = ~evidence.begun[rows]
    else:
        # What the model is given is made last, at a place of its own.
        _, place, count = np.unique(evidence.stack[rows], return_inverse=True, return_counts=True)
        shared = np.flatnonzero(count[place] >= FEWEST_WEIGHTS)
        weights[shared[-1] + 1 if len(shared) else len(rows) :] = False
    findings.say(rows[weights], Category.PARAMETER, Reason.FROM_THE_START, Certainty.PROBABLE)
    findings.say(rows[~weights], Category.INPUT, Reason.GIVEN, Certainty.PROBABLE)
