"""What is there before the first forward and stays: weights, copies of them, or what the model is given."""

from __future__ import annotations

import numpy as np

from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.before_recording import FEWEST_WEIGHTS
from memviz.analysis.purpose.evidence import Evidence
from memviz.analysis.purpose.findings import Findings
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.distinct import is_among
from memviz.trace.model import Category

_FEWEST_COPIED = 2
"""Weights. One tensor of the size of another is no copy of it."""
_MOST_TRIED = 64
"""Places where a copy may begin: each is compared whole, and a file may hold millions of one size."""


def say_weight_copies(findings: Findings, evidence: Evidence) -> None:
    """Tell copies of all weights, as an average or a teacher, that user code makes before the first forward."""
    early = evidence.begun & evidence.never_freed & (evidence.start < evidence.first_work) & evidence.sees_work
    weights = evidence.size[early & (findings.category == Category.PARAMETER)]
    # A prediction takes for an input whatever comes from the host outside of a model.
    is_guess = (findings.category == Category.INPUT) & (findings.reason == Reason.RECORDED)
    rows = np.flatnonzero(early & (findings.open | is_guess) & evidence.during(Doing.NOTHING))
    count = len(weights)
    if count < _FEWEST_COPIED or (weights == weights[0]).all():
        return
    for place in np.flatnonzero(evidence.size[rows] == weights[0])[:_MOST_TRIED].tolist():
        copies = rows[place : place + count]
        if np.array_equal(evidence.size[copies], weights):
            findings.say(copies, Category.WEIGHT_COPIES, Reason.WEIGHTS_AGAIN, Certainty.PROBABLE)


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
