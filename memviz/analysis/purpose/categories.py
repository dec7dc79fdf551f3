"""What each allocation is for: as our own runs recorded it, else inferred, with the reason, else unknown.

`RULES` is the whole inference. It looks at what the program was doing when the memory was taken, and at what it
had turned to when the memory was given back (`analysis.evidence`). The first rule that holds wins; an
allocation that none fits stays unknown, and the last rules say why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum, auto

import numpy as np

from memviz.analysis.cache import kept
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.activity import Doing
from memviz.analysis.purpose.evidence import Evidence
from memviz.analysis.purpose.phases import label_of_rows
from memviz.analysis.purpose.replacements import agreed, freed_like
from memviz.trace.model import Bools, Bytes1, Category, Columns, DeviceTrace, Ints4, Ints8, Trace

CUBLAS_WORKSPACE_BYTES = 8_519_680
"""What PyTorch asks for on NVIDIA GPUs before Hopper (:4096:2:16:8), and hardly anything else does."""


class Reason(IntEnum):
    NONE = 0
    RECORDED = auto()
    WORKSPACE = auto()
    WORKSPACE_SIZE = auto()
    BUILD_KEPT = auto()
    BUILD_FREED = auto()
    OPTIMIZER_BUILD_KEPT = auto()
    OPTIMIZER_BUILD_FREED = auto()
    STEP_KEPT = auto()
    STEP_FREED = auto()
    RECOMPUTED = auto()
    ACCUMULATED = auto()
    BACKWARD_KEPT = auto()
    BACKWARD_FREED = auto()
    SILENT_BACKWARD_KEPT = auto()
    SILENT_BACKWARD_FREED = auto()
    FORWARD_KEPT = auto()
    FORWARD_FREED = auto()
    FORWARD_ONLY_FREED = auto()
    BACKWARD_USED = auto()
    IN_BETWEEN = auto()
    SAME_STACK = auto()
    REPLACED = auto()
    NO_STACK = auto()
    TOO_LONG = auto()
    FORWARD_ONLY_KEPT = auto()
    CUT_OFF = auto()
    UNMARKED = auto()


@dataclass(frozen=True)
class Rule:
    reason: Reason
    category: Category
    text: str
    holds: Callable[[Evidence], Bools]


RULES = (
    Rule(
        Reason.WORKSPACE,
        Category.WORKSPACE,
        "cuBLAS took it as its workspace",
        lambda e: e.workspace,
    ),
    Rule(
        Reason.WORKSPACE_SIZE,
        Category.WORKSPACE,
        "has exactly the size of a cuBLAS workspace, and is never freed",
        lambda e: (e.size == CUBLAS_WORKSPACE_BYTES) & e.never_freed,
    ),
    Rule(
        Reason.BUILD_KEPT,
        Category.PARAMETER,
        "made while a module was built, moved or loaded, and alive when it was used",
        lambda e: e.during(Doing.BUILD) & (e.outlives(e.next_work) | e.never_freed),
    ),
    Rule(
        Reason.BUILD_FREED,
        Category.TEMPORARY,
        "made while a module was built, moved or loaded, and freed before it was used",
        lambda e: e.during(Doing.BUILD),
    ),
    Rule(
        Reason.OPTIMIZER_BUILD_KEPT,
        Category.OPTIMIZER_STATE,
        "made while an optimizer was set up or loaded, and alive when the model was used",
        lambda e: e.during(Doing.BUILD_OPTIMIZER) & (e.outlives(e.next_work) | e.never_freed),
    ),
    Rule(
        Reason.OPTIMIZER_BUILD_FREED,
        Category.TEMPORARY,
        "made while an optimizer was set up or loaded, and freed before the model was used",
        lambda e: e.during(Doing.BUILD_OPTIMIZER),
    ),
    Rule(
        Reason.STEP_KEPT,
        Category.OPTIMIZER_STATE,
        "made in an optimizer step, and alive after it",
        lambda e: e.during(Doing.STEP) & e.outlives(e.step_over),
    ),
    Rule(
        Reason.STEP_FREED,
        Category.TEMPORARY,
        "made in an optimizer step, and freed within it",
        lambda e: e.during(Doing.STEP) & e.freed_before(e.step_over),
    ),
    Rule(
        Reason.RECOMPUTED,
        Category.ACTIVATION,
        "made by a forward inside a backward: activation checkpointing makes again what it had let go",
        lambda e: e.recomputed,
    ),
    Rule(
        Reason.ACCUMULATED,
        Category.GRADIENT,
        "autograd stored it as the gradient of a leaf",
        lambda e: e.accumulated & (e.outlives(e.backward_over) | e.never_freed),
    ),
    Rule(
        Reason.BACKWARD_KEPT,
        Category.GRADIENT,
        "made in a backward, and alive when it was over",
        lambda e: e.during(Doing.BACKWARD) & ~e.no_stack & e.outlives(e.backward_over),
    ),
    Rule(
        Reason.BACKWARD_FREED,
        Category.TEMPORARY,
        "made in a backward, and freed within it",
        lambda e: e.during(Doing.BACKWARD) & ~e.no_stack & e.freed_before(e.backward_over),
    ),
    Rule(
        Reason.SILENT_BACKWARD_KEPT,
        Category.GRADIENT,
        "made without a Python stack right after a call of backward, and alive when it was over",
        lambda e: e.during(Doing.BACKWARD) & e.no_stack & e.outlives(e.backward_over),
    ),
    Rule(
        Reason.SILENT_BACKWARD_FREED,
        Category.TEMPORARY,
        "made without a Python stack right after a call of backward, and freed within it",
        lambda e: e.during(Doing.BACKWARD) & e.no_stack & e.freed_before(e.backward_over),
    ),
    Rule(
        Reason.FORWARD_KEPT,
        Category.ACTIVATION,
        "made in a forward, and alive when its backward began",
        lambda e: e.during(Doing.FORWARD) & e.begun & e.outlives(e.next_backward) & (e.backwards == 1),
    ),
    Rule(
        Reason.FORWARD_FREED,
        Category.TEMPORARY,
        "made in a forward, and freed before any backward began",
        lambda e: e.during(Doing.FORWARD) & e.comes(e.next_backward) & e.freed_before(e.next_backward),
    ),
    Rule(
        Reason.FORWARD_ONLY_FREED,
        Category.TEMPORARY,
        "made in a forward that no backward follows, and freed while it went on",
        lambda e: e.during(Doing.FORWARD) & ~e.comes(e.next_backward) & e.freed_before(e.last_of_forward),
    ),
    Rule(
        Reason.BACKWARD_USED,
        Category.ACTIVATION,
        "alive when a backward began, and freed during it",
        lambda e: e.during(Doing.NOTHING) & ~e.no_stack & (e.backwards == 1) & e.freed_before(e.next_backward_over),
    ),
    Rule(
        Reason.IN_BETWEEN,
        Category.TEMPORARY,
        "made after one forward, backward or step, and freed before the next",
        lambda e: (
            e.during(Doing.NOTHING) & ~e.no_stack & e.after_work & e.comes(e.next_work) & e.freed_before(e.next_work)
        ),
    ),
    Rule(
        Reason.NO_STACK,
        Category.UNKNOWN,
        "no stack was recorded",
        lambda e: e.no_stack & e.during(Doing.NOTHING),
    ),
    Rule(
        Reason.TOO_LONG,
        Category.UNKNOWN,
        "made in a forward, and kept over more than one backward",
        lambda e: e.during(Doing.FORWARD) & e.begun & (e.backwards > 1),
    ),
    Rule(
        Reason.FORWARD_ONLY_KEPT,
        Category.UNKNOWN,
        "made in a forward that no backward follows, and freed only when it was over",
        lambda e: e.during(Doing.FORWARD) & ~e.comes(e.next_backward) & ~e.never_freed,
    ),
    Rule(
        Reason.CUT_OFF,
        Category.UNKNOWN,
        "the trace ends before its use shows",
        lambda e: e.never_freed & e.begun,
    ),
    Rule(
        Reason.UNMARKED,
        Category.UNKNOWN,
        "nothing in its stack says what it is for",
        lambda e: np.ones(len(e.size), dtype=np.bool_),
    ),
)

REASON_TEXTS: dict[Reason, str] = {
    Reason.RECORDED: "recorded by the run itself",
    Reason.REPLACED: "made in an optimizer step, and freed where later steps freed the first parameters",
    Reason.SAME_STACK: "the trace ends before its use shows, but all others of the same stack were this",
    **{rule.reason: rule.text for rule in RULES},
}


@dataclass(frozen=True, eq=False)
class Categories(Columns):
    """One row per row of `lifetimes`."""

    category: Bytes1
    reason: Bytes1


def categories(trace: Trace, device: DeviceTrace) -> Categories:
    return kept(trace, (categories, device), lambda: _categorised(trace, device))


def _categorised(trace: Trace, device: DeviceTrace) -> Categories:
    evidence = Evidence(trace, device)
    category = np.full(len(evidence.size), Category.UNKNOWN, dtype=np.uint8)
    reason = np.full(len(evidence.size), Reason.NONE, dtype=np.uint8)
    recorded = label_of_rows(device, "category")
    if recorded is not None:
        reason[recorded != Category.UNKNOWN] = Reason.RECORDED
        category[:] = recorded
    for rule in RULES:
        hit = (reason == Reason.NONE) & rule.holds(evidence)
        category[hit], reason[hit] = rule.category, rule.reason
    _follow_same_stack(category, reason, lifetimes(device).stack)
    _follow_free(category, reason, device)
    return Categories(category, reason)


def _follow_same_stack(category: Bytes1, reason: Bytes1, stack: Ints4) -> None:
    """What the end of the trace cut off is what all others of its stack were, if they agree."""
    rows = np.flatnonzero(reason == Reason.CUT_OFF)
    like = agreed(stack, category, stack[rows])
    _set(category, reason, rows, like=like, why=Reason.SAME_STACK)


def _follow_free(category: Bytes1, reason: Bytes1, device: DeviceTrace) -> None:
    """What a step leaves behind is a parameter if it is freed where the first parameters were."""
    first = np.flatnonzero((reason == Reason.BUILD_KEPT) | (reason == Reason.OPTIMIZER_BUILD_KEPT))
    rows = np.flatnonzero(reason == Reason.STEP_KEPT)
    like = freed_like(device, category, first, rows)
    like[like != Category.PARAMETER] = Category.UNKNOWN
    _set(category, reason, rows, like=like, why=Reason.REPLACED)


def _set(category: Bytes1, reason: Bytes1, rows: Ints8, *, like: Bytes1, why: Reason) -> None:
    known = like != Category.UNKNOWN
    category[rows[known]], reason[rows[known]] = like[known], why
