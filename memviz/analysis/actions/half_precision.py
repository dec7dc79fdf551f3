"""The whole model in half the precision: everything that is computed with takes half of its bytes."""

from __future__ import annotations

import numpy as np

from memviz.analysis.actions.action import ActionKind, Proposal
from memviz.analysis.actions.autocast import is_mixed
from memviz.analysis.actions.edit import Edit, edited
from memviz.analysis.findings.facts import Facts
from memviz.analysis.lifetimes import BEFORE
from memviz.trace.model import Category

ASSUMPTIONS = (
    "Everything is in float32 now: a trace does not say in which precision anything is.",
    "Weights, gradients, the optimizer's state, activations and temporaries are halved, inputs and workspaces are not, "
    "as after model.bfloat16(). Under autocast weights and some results stay as they are, and it saves less.",
)
_HALVED = (
    Category.PARAMETER,
    Category.WEIGHT_COPIES,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
    Category.ACTIVATION,
    Category.OUTPUT,
    Category.TEMPORARY,
    Category.KV_CACHE,
)


def half_precision(facts: Facts) -> Proposal | None:
    """None where something was there before the recording, whose size was decided then, or is half already."""
    halved = np.flatnonzero(facts.has_purpose(*_HALVED) & (facts.rows.start > BEFORE))
    if not len(halved) or (facts.rows.start == BEFORE).any() or is_mixed(facts):
        return None
    trace = edited(facts.trace, facts.device, Edit(halved=halved))
    return Proposal(ActionKind.HALF_PRECISION, "the model in half the precision", ASSUMPTIONS, trace)
