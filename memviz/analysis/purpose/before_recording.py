"""What was there before the recording, without a stack: told by sizes, and by what the events do with it.

Blocks that stay to the end are weights, unless the events show how many weights of a size there are: each has one
gradient. What is there more often is the optimizer's, or a gradient that is added to and never let go.
"""

from __future__ import annotations

import numpy as np

from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.evidence import Evidence
from memviz.analysis.purpose.findings import Findings
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.analysis.purpose.replacements import agreed
from memviz.analysis.sums import sum_by
from memviz.trace.distinct import is_among
from memviz.trace.model import Bools, Category, DeviceTrace, Ints8

FEWEST_WEIGHTS = 8
"""Fewer tensors than this are hardly a model's."""
_SOME, _MOST = 0.1, 0.5
"""Of the bytes: so many must fit before sizes are believed."""


def say_before_recording(findings: Findings, evidence: Evidence, device: DeviceTrace) -> None:
    before = findings.open & ~evidence.begun & evidence.no_stack
    stays = np.flatnonzero(before & evidence.never_freed)
    goes = np.flatnonzero(before & ~evidence.never_freed)
    if len(goes):
        _say_freed(findings, evidence, goes, weights=stays)
    if len(stays) >= FEWEST_WEIGHTS or len(stays) and evidence.sees_work:
        _say_kept(findings, evidence, stays, len(device.events))


def _say_freed(findings: Findings, evidence: Evidence, rows: Ints8, *, weights: Ints8) -> None:
    doing = evidence.doing_at_free[rows]
    step = rows[doing == Doing.STEP]
    like = agreed(evidence.free_stack, findings.category, evidence.free_stack[step])
    known = is_among(like, (Category.PARAMETER, Category.OPTIMIZER_STATE))
    findings.say(step[known], like[known], Reason.BEFORE_STEP_FREED, Certainty.PROBABLE)
    findings.say(step[~known], Category.OPTIMIZER_STATE, Reason.BEFORE_STEP_FREED, Certainty.PROBABLE)
    used = rows[is_among(doing, (Doing.BACKWARD, Doing.FORWARD))]
    findings.say(used, Category.ACTIVATION, Reason.BEFORE_USED, Certainty.PROBABLE)
    rest = rows[doing == Doing.NOTHING]
    size = evidence.size
    sized = is_among(size[rest], np.append(size[weights], size[findings.category == Category.GRADIENT]))
    is_training = evidence.sees_training or bool((findings.category == Category.GRADIENT).any())
    gradients = sized & is_training
    findings.say(rest[gradients], Category.GRADIENT, Reason.BEFORE_GRADIENT, Certainty.PROBABLE)
    findings.say(rest[~gradients], Category.ACTIVATION, Reason.BEFORE_USED, Certainty.PROBABLE)


def _say_kept(findings: Findings, evidence: Evidence, rows: Ints8, count: int) -> None:
    size = evidence.size
    sizes, code = np.unique(size[rows], return_inverse=True)
    gradients = np.flatnonzero(findings.category == Category.GRADIENT)
    at_once = _at_once(sizes, size[gradients], evidence.start[gradients], evidence.end[gradients], count)
    there = np.bincount(code, minlength=len(sizes))
    rank = _rank(code, evidence.address[rows])
    total = int(size[rows].sum())
    if int((sizes * np.minimum(at_once, there)).sum()) > _SOME * total:
        like = at_once[code] > 0
        weight = ~like | (rank < at_once[code])
        findings.say(rows[like & weight], Category.PARAMETER, Reason.BEFORE_LIKE_GRADIENTS, Certainty.PROBABLE)
        findings.say(rows[~like], Category.PARAMETER, Reason.BEFORE_ONLY_WEIGHTS, Certainty.PROBABLE)
        findings.say(rows[~weight], Category.OPTIMIZER_STATE, Reason.BEFORE_MORE_OF_IT, Certainty.PROBABLE)
        return
    second = (rank >= (there[code] + 1) // 2) & _added_to(findings, evidence, sizes, rows, code)
    findings.say(rows, Category.PARAMETER, Reason.BEFORE_ONLY_WEIGHTS, Certainty.PROBABLE)
    findings.say(rows[second], Category.GRADIENT, Reason.BEFORE_MORE_OF_IT, Certainty.PROBABLE)


def _added_to(findings: Findings, evidence: Evidence, sizes: Ints8, rows: Ints8, code: Ints8) -> Bools:
    """Backward makes something of this size and lets it go at once: it is added to a gradient that was there.

    That says nothing unless it holds for most bytes.
    """
    backward = evidence.during(Doing.BACKWARD) | (findings.reason == Reason.ORDER_FREED)
    made = backward & (findings.category == Category.TEMPORARY)
    returns = is_among(sizes, evidence.size[made])[code]
    size = evidence.size[rows]
    return np.asarray(returns & bool(size[returns].sum() > _MOST * size.sum()))


def _at_once(sizes: Ints8, size: Ints8, start: Ints8, end: Ints8, count: int) -> Ints8:
    """How many of each size are live when most of their bytes are."""
    if not len(size):
        return np.zeros(len(sizes), dtype=np.int64)
    change = sum_by(np.maximum(start, 0), size, count + 2) - sum_by(end, size, count + 2)
    moment = int(np.argmax(np.cumsum(change)))
    live = size[(start <= moment) & (end > moment)]
    known, counts = np.unique(live, return_counts=True)
    place = np.searchsorted(known, sizes)
    hit = (place < len(known)) & (np.append(known, -1)[place] == sizes)
    return np.where(hit, np.append(counts, 0)[place], 0)


def _rank(code: Ints8, address: Ints8) -> Ints8:
    """The how many-th of its size each is, by address: what was built first tends to lie below."""
    order = np.lexsort((address, code))
    sorted_code = code[order]
    first = np.searchsorted(sorted_code, sorted_code)
    rank = np.empty(len(code), dtype=np.int64)
    rank[order] = np.arange(len(code)) - first
    return rank
