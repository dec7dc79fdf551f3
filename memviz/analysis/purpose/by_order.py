"""Purposes of a trace without stacks: sizes and order are all there is.

Live bytes of what is freed again make hills: a forward climbs, its backward comes down. What is there before and
never freed are weights. What has a weight's size and is made on the way down is a gradient; what is made on the
way up and freed on the way down was kept for the backward.
"""

from __future__ import annotations

import numpy as np

from memviz.analysis.purpose.before_recording import FEWEST_WEIGHTS
from memviz.analysis.purpose.evidence import Evidence
from memviz.analysis.purpose.findings import Findings
from memviz.analysis.purpose.hills import Hills, hills
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.distinct import is_among
from memviz.trace.model import Category, DeviceTrace, Ints8

_MOST_OUTPUTS = 4
"""Of one hill."""
_MOST_COPIES = 5
"""Of each weight that a training may hold, itself included."""


def say_by_order(findings: Findings, evidence: Evidence, device: DeviceTrace) -> None:
    rows = np.flatnonzero(findings.open & evidence.no_stack & evidence.begun)
    if evidence.sees_work or not len(rows) or not len(device.events):
        return
    start, size, kept = evidence.start[rows], evidence.size[rows], evidence.never_freed[rows]
    freed = rows[~kept]
    climb = int(evidence.start[freed[0]]) if len(freed) else len(device.events)
    first = rows[kept & (start < climb)]
    weights = evidence.size[np.append(first, np.flatnonzero(~evidence.begun & evidence.never_freed))]
    if len(weights) < FEWEST_WEIGHTS:
        return
    _say(findings, first, Category.PARAMETER, Reason.ORDER_FIRST)
    like_weight = is_among(size, weights)
    passing = rows[~kept & ~like_weight]
    seen = hills(evidence.start[passing], evidence.end[passing], evidence.size[passing], len(device.events))
    outlasting = kept | (seen.bottom_after(start) <= evidence.end[rows])
    gradients = like_weight & (start >= climb) & seen.is_down(start) & outlasting
    # What was there before the recording counts several times: weights, and the optimizer's states of them.
    is_training = _MOST_COPIES * int(size[gradients].sum()) > int(weights.sum()) > 0
    if is_training:
        _say_weights_again(findings, rows[gradients], rows[like_weight & kept & (start >= climb)], evidence, weights)
    _say_passing(findings, evidence, seen, freed, is_training)


def _say_weights_again(findings: Findings, gradients: Ints8, kept: Ints8, evidence: Evidence, weights: Ints8) -> None:
    """What is never freed is the optimizer's; the first of each size is a gradient where no others are."""
    passing = gradients[~evidence.never_freed[gradients]]
    _say(findings, passing, Category.GRADIENT, Reason.ORDER_GRADIENT)
    _say(findings, kept, Category.OPTIMIZER_STATE, Reason.ORDER_STATE)
    if 2 * int(evidence.size[passing].sum()) > int(weights.sum()) or not len(kept):
        return
    sizes, code = np.unique(evidence.size[kept], return_inverse=True)
    there = np.bincount(np.searchsorted(sizes, weights[is_among(weights, sizes)]), minlength=len(sizes))
    order = np.argsort(code, kind="stable")
    rank = np.empty(len(kept), dtype=np.int64)
    rank[order] = np.arange(len(kept)) - np.searchsorted(code[order], code[order])
    _say(findings, kept[rank < there[code]], Category.GRADIENT, Reason.ORDER_GRADIENT)


def _say_passing(findings: Findings, evidence: Evidence, seen: Hills, rows: Ints8, is_training: bool) -> None:
    rows = rows[findings.open[rows]]
    start, end = evidence.start[rows], evidence.end[rows]
    over_top = seen.top_after(start) <= end
    at_once = end < evidence.next_alloc[rows]
    on_the_way_down = seen.is_down(start)
    stays = over_top & ~on_the_way_down & ~(at_once & is_training)
    _say(findings, rows[stays], Category.ACTIVATION, Reason.ORDER_KEPT)
    # As many as a forward may hand back, and its backward does not let go.
    left = stays & (seen.bottom_after(start) + is_training <= end)
    hill = np.searchsorted(seen.tops, start)
    left &= np.bincount(hill[left], minlength=len(seen.tops) + 1)[hill] <= _MOST_OUTPUTS
    _say(findings, rows[left], Category.OUTPUT, Reason.ORDER_OUTPUT)
    temporary = ~stays & (at_once | ~over_top & on_the_way_down & is_training)
    _say(findings, rows[temporary], Category.TEMPORARY, Reason.ORDER_FREED)
    rest = findings.open[rows]
    _say(findings, rows[rest], Category.ACTIVATION, Reason.ORDER_HANDED_ON)


def _say(findings: Findings, rows: Ints8, category: Category, reason: Reason) -> None:
    findings.say(rows, category, reason, Certainty.PROBABLE)
