"""Purposes of a trace without stacks: sizes and order are all there is.

Live bytes of what is freed again make hills: a forward climbs, its backward comes down. What is there before and
never freed are weights. What has a weight's size and is made on the way down is a gradient; what is made on the
way up and freed on the way down was kept for the backward.
"""

from __future__ import annotations

import numpy as np

from memviz.analysis.purpose.evidence import Evidence
from memviz.analysis.purpose.findings import Findings
from memviz.analysis.purpose.hills import Hills, hills
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.model import Category, DeviceTrace, Ints8

_MOST = 0.5
"""Of the weights' bytes: so many must return as gradients for a trace to be of training."""


def say_by_order(found: Findings, evidence: Evidence, device: DeviceTrace) -> None:
    rows = np.flatnonzero(found.open & evidence.no_stack & evidence.begun)
    if evidence.sees_work or not len(rows) or not len(device.events):
        return
    kept, freed = evidence.never_freed[rows], ~evidence.never_freed[rows]
    seen = hills(evidence.start[rows[freed]], evidence.end[rows[freed]], evidence.size[rows[freed]], len(device.events))
    first = rows[kept & (evidence.start[rows] < seen.first_climb)]
    _say(found, first, Category.PARAMETER, Reason.ORDER_FIRST)
    old = np.flatnonzero(~evidence.begun & evidence.never_freed)
    weights = np.unique(evidence.size[np.concatenate([first, old])])
    late = np.isin(evidence.size[rows], weights) & (evidence.start[rows] >= seen.first_climb)
    down = seen.is_down(evidence.start[rows])
    outlasting = kept | (seen.bottom_after(evidence.start[rows]) <= evidence.end[rows])
    gradient = late & down & outlasting
    weight_bytes = int(evidence.size[np.concatenate([first, old])].sum())
    is_training = int(evidence.size[rows[gradient]].sum()) > _MOST * weight_bytes > 0
    if is_training:
        _say(found, rows[gradient], Category.GRADIENT, Reason.ORDER_GRADIENT)
        _say(found, rows[late & kept & ~gradient], Category.OPTIMIZER_STATE, Reason.ORDER_STATE)
    _say_passing(found, evidence, seen, rows[freed], is_training)


def _say_passing(found: Findings, evidence: Evidence, seen: Hills, rows: Ints8, is_training: bool) -> None:
    rows = rows[found.open[rows]]
    start, end = evidence.start[rows], evidence.end[rows]
    over_top = seen.top_after(start) <= end
    at_once = end < evidence.next_alloc[rows]
    on_the_way_down = seen.is_down(start)
    _say(found, rows[over_top & ~on_the_way_down], Category.ACTIVATION, Reason.ORDER_KEPT)
    temporary = ~over_top & (at_once | on_the_way_down & is_training)
    _say(found, rows[temporary], Category.TEMPORARY, Reason.ORDER_FREED)
    rest = found.open[rows]
    _say(found, rows[rest], Category.ACTIVATION, Reason.ORDER_HANDED_ON)


def _say(found: Findings, rows: Ints8, category: Category, reason: Reason) -> None:
    found.say(rows, category, reason, Certainty.PROBABLE)
