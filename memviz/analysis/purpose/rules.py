"""Rules for the purpose of an allocation, by the program's activity at its alloc and at its free.

The first rule that holds wins. Rows without a rule are left to sizes and order (`analysis.purpose.categories`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.evidence import Evidence
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.model import Bools, Category
from memviz.trace.reserved import CUBLAS_WORKSPACE_BYTES


@dataclass(frozen=True)
class Rule:
    reason: Reason
    category: Category
    holds: Callable[[Evidence], Bools]
    certainty: Certainty = Certainty.SURE


def _outlives_next_work(e: Evidence) -> Bools:
    return e.outlives(e.next_work) | e.never_freed


def _left_by_backward(e: Evidence) -> Bools:
    return e.outlives(e.backward_over) | e.freed_outside_backward


def _may_be_temporary(e: Evidence) -> Bools:
    during = e.during(Activity.FORWARD) | e.outside | e.recomputed
    return during & ~e.no_stack & e.freed_within_call


def _named_outliving(category: Category, *doing: Activity) -> Callable[[Evidence], Bools]:
    def holds(e: Evidence) -> Bools:
        during = np.logical_or.reduce([e.during(kind) for kind in doing])
        return np.asarray(during & (e.name == category) & _outlives_next_work(e))

    return holds


_PROBABLE = Certainty.PROBABLE

RULES = (
    Rule(Reason.WORKSPACE, Category.WORKSPACE, lambda e: e.workspace),
    Rule(
        Reason.WORKSPACE_SIZE,
        Category.WORKSPACE,
        lambda e: (e.size == CUBLAS_WORKSPACE_BYTES) & (e.never_freed | ~e.begun | e.during(Activity.BUILD)),
    ),
    Rule(Reason.WORKSPACE_SIZE, Category.WORKSPACE, lambda e: e.hopper_workspace, _PROBABLE),
    Rule(Reason.ZERO_GRAD, Category.GRADIENT, lambda e: e.freed_by_zero_grad & ~e.during(Activity.FORWARD)),
    Rule(Reason.BUILD_KEPT, Category.PARAMETER, lambda e: e.during(Activity.BUILD) & _outlives_next_work(e)),
    Rule(Reason.BUILD_FREED, Category.TEMPORARY, lambda e: e.during(Activity.BUILD)),
    Rule(
        Reason.OPTIMIZER_BUILD_KEPT,
        Category.OPTIMIZER_STATE,
        lambda e: e.during(Activity.BUILD_OPTIMIZER) & _outlives_next_work(e),
    ),
    Rule(Reason.OPTIMIZER_BUILD_FREED, Category.TEMPORARY, lambda e: e.during(Activity.BUILD_OPTIMIZER)),
    Rule(Reason.STEP_KEPT, Category.OPTIMIZER_STATE, lambda e: e.during(Activity.STEP) & e.outlives(e.step_over)),
    Rule(Reason.STEP_FREED, Category.TEMPORARY, lambda e: e.during(Activity.STEP) & e.freed_before(e.step_over)),
    Rule(
        Reason.STEP_CUT_OFF,
        Category.OPTIMIZER_STATE,
        lambda e: e.during(Activity.STEP) & e.never_freed & e.begun,
        _PROBABLE,
    ),
    Rule(Reason.CALL_FREED, Category.TEMPORARY, lambda e: _may_be_temporary(e) & ~e.recomputed & e.call_goes_on),
    Rule(Reason.CALL_FREED, Category.TEMPORARY, _may_be_temporary, _PROBABLE),
    Rule(Reason.AUTOCAST_KEPT, Category.AUTOCAST_WEIGHT_COPIES, lambda e: e.autocast_weight_copy, _PROBABLE),
    Rule(Reason.RECOMPUTED, Category.ACTIVATION, lambda e: e.recomputed),
    Rule(
        Reason.ACCUMULATED, Category.GRADIENT, lambda e: e.accumulated & (e.outlives(e.backward_over) | e.never_freed)
    ),
    Rule(Reason.BACKWARD_KEPT, Category.GRADIENT, lambda e: e.in_backward & ~e.no_stack & _left_by_backward(e)),
    Rule(
        Reason.BACKWARD_FREED,
        Category.TEMPORARY,
        lambda e: e.in_backward & ~e.no_stack & e.freed_before(e.backward_over),
    ),
    Rule(Reason.SILENT_BACKWARD_KEPT, Category.GRADIENT, lambda e: e.in_backward & e.no_stack & _left_by_backward(e)),
    Rule(
        Reason.SILENT_BACKWARD_FREED,
        Category.TEMPORARY,
        lambda e: e.in_backward & e.no_stack & e.freed_before(e.backward_over),
    ),
    Rule(Reason.BACKWARD_CUT_OFF, Category.GRADIENT, lambda e: e.in_backward & e.never_freed & e.begun, _PROBABLE),
    Rule(Reason.GRAPH, Category.GRAPH_POOL, lambda e: e.in_private_pool & (e.name == Category.UNKNOWN), _PROBABLE),
    *(
        Rule(Reason.NAMED, category, _named_outliving(category, Activity.NOTHING, Activity.FORWARD), _PROBABLE)
        for category in (Category.KV_CACHE, Category.GRAPH_POOL, Category.COLLECTIVE)
    ),
    Rule(Reason.OUTLIVES_BACKWARD, Category.OUTPUT, lambda e: e.in_forward & e.outlives_backward, _PROBABLE),
    Rule(
        Reason.FORWARD_OUTPUT,
        Category.OUTPUT,
        lambda e: e.in_forward & e.is_last_of_pass & ~e.comes(e.next_backward),
        _PROBABLE,
    ),
    Rule(
        Reason.FORWARD_KEPT,
        Category.ACTIVATION,
        lambda e: e.in_forward & e.outlives(e.next_backward) & (e.backwards == 1),
    ),
    Rule(
        Reason.HANDED_ON, Category.ACTIVATION, lambda e: e.in_forward & (e.pass_of >= 0) & ~e.outlives_pass, _PROBABLE
    ),
    Rule(Reason.FORWARD_KEPT_LONGER, Category.ACTIVATION, lambda e: e.in_forward & (e.backwards > 1), _PROBABLE),
    Rule(Reason.KEPT_BETWEEN, Category.KV_CACHE, lambda e: e.in_forward & e.retained_between_passes, _PROBABLE),
    Rule(Reason.FORWARD_ONLY_KEPT, Category.ACTIVATION, lambda e: e.during(Activity.FORWARD), _PROBABLE),
    Rule(
        Reason.BACKWARD_USED,
        Category.ACTIVATION,
        lambda e: e.outside & ~e.no_stack & (e.backwards == 1) & e.freed_before(e.next_backward_over),
    ),
    *(
        Rule(Reason.NAMED, category, _named_outliving(category, Activity.NOTHING), _PROBABLE)
        for category in (Category.OPTIMIZER_STATE, Category.GRADIENT, Category.INPUT, Category.PARAMETER)
    ),
)
"""Rules for allocations with a stack, or without one after a stack that shows an activity."""

LAST_RULES = (
    Rule(Reason.GIVEN, Category.INPUT, lambda e: e.outside & e.begun & e.outlives(e.next_forward), _PROBABLE),
    Rule(
        Reason.LOOSE_RESULT,
        Category.ACTIVATION,
        lambda e: e.outside & e.begun & ~e.no_stack & ~e.never_freed,
        _PROBABLE,
    ),
    Rule(
        Reason.KEPT_RESULT,
        Category.OUTPUT,
        lambda e: e.outside & e.begun & ~e.no_stack & e.never_freed & e.sees_work,
        _PROBABLE,
    ),
    Rule(Reason.NO_STACK, Category.UNKNOWN, lambda e: e.no_stack, Certainty.OPEN),
    Rule(Reason.CUT_OFF, Category.UNKNOWN, lambda e: e.never_freed & e.begun, Certainty.OPEN),
    Rule(Reason.UNMARKED, Category.UNKNOWN, lambda e: e.size >= 0, Certainty.OPEN),
)
"""Rules for allocations that sizes and order leave open too; the last ones only give the reason."""
