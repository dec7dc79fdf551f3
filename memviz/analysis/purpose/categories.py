"""Category of each allocation: as recorded by memviz or the program, else inferred, with reason and certainty.

Labels of memviz's runs and metadata of the program come first. Then the program's activity (`rules.RULES`), then
sizes and order, each for rows that are still open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.annotations import annotated, annotation_of_events
from memviz.analysis.cache import cached
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.analysis.purpose.activity import Activity, stack_signs
from memviz.analysis.purpose.evidence import Evidence, agreed, freed_like
from memviz.analysis.purpose.phases import inherited_purposes, label_of_rows
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.analysis.purpose.rules import LAST_RULES, RULES, Rule
from memviz.analysis.sums import sum_by
from memviz.trace.intern import distinct, is_among
from memviz.trace.model import (
    EMPTY_TEXT,
    NO_STACK,
    Bools,
    Bytes1,
    Category,
    Columns,
    DeviceTrace,
    Ints4,
    Ints8,
    Phase,
    Trace,
)


class Inference:
    """Columns in the making, one row per row of `lifetimes`."""

    def __init__(self, count: int) -> None:
        self.category = np.full(count, Category.UNKNOWN, dtype=np.uint8)
        self.reason = np.full(count, Reason.NONE, dtype=np.uint8)
        self.certainty = np.full(count, Certainty.OPEN, dtype=np.uint8)

    @property
    def unassigned(self) -> Bools:
        """Rows without a reason so far."""
        return np.asarray(self.reason == Reason.NONE)

    def assign(
        self, rows: npt.NDArray[Any], category: Any, reason: Reason, certainty: Any = Certainty.PROBABLE
    ) -> None:
        """`rows` are numbers or a mask; `category` and `certainty` are one for all, or one each."""
        self.category[rows] = category
        self.reason[rows] = reason
        self.certainty[rows] = certainty


# Stated by the program: metadata that torch keeps with an allocation, or the annotation around it.

_WORDS = (
    (Category.KV_CACHE, r"kv.?cache|key.?value.?cache|past.?key"),
    (Category.OPTIMIZER_STATE, r"optimi[sz]er.?state|exp_avg|momentum"),
    (Category.GRADIENT, r"\bgrad(ient)?s?\b"),
    (Category.ACTIVATION, r"\bactivations?\b"),
    (Category.COLLECTIVE, r"all.?gather|all.?reduce|reduce.?scatter|all.?to.?all|\bnccl\b"),
    (Category.WORKSPACE, r"\bworkspace\b"),
    (Category.INPUT, r"\b(inputs?|batch)\b"),
    (Category.OUTPUT, r"\b(outputs?|logits)\b"),
    (Category.PARAMETER, r"\b(weights?|param(eter)?s?)\b"),
)
_PATTERNS = tuple((category, re.compile(words, re.IGNORECASE)) for category, words in _WORDS)


def assign_metadata(inference: Inference, trace: Trace, device: DeviceTrace) -> None:
    # Allocations from before the first event, at -1, have none.
    texts = np.append(device.events.metadata, np.int32(EMPTY_TEXT))[lifetimes(device).start]
    _assign_texts(inference, trace, texts, Reason.METADATA, Certainty.STATED)


def assign_annotations(inference: Inference, trace: Trace, device: DeviceTrace) -> None:
    """An annotation names the running code, not the purpose of its allocations: at most probable."""
    start, intervals = lifetimes(device).start, annotated(device)
    begun = np.flatnonzero(start >= 0)
    if not len(intervals) or not len(begun):
        return
    texts = np.full(len(start), EMPTY_TEXT, dtype=np.int32)
    texts[begun] = np.append(intervals.name, EMPTY_TEXT)[annotation_of_events(device, start[begun])]
    _assign_texts(inference, trace, texts, Reason.ANNOTATED, Certainty.PROBABLE)


def _assign_texts(inference: Inference, trace: Trace, texts: Ints4, reason: Reason, certainty: Certainty) -> None:
    is_open = inference.unassigned
    for code in distinct(texts[texts != EMPTY_TEXT]).tolist():
        for category, pattern in _PATTERNS:
            if pattern.search(trace.strings[code]):
                inference.assign(is_open & (texts == code), category, reason, certainty)
                break


# Allocations from before the recording, without a stack. Blocks that stay to the end are weights, unless the events
# show how many weights of a size there are: each has one gradient. More blocks of that size belong to the optimizer,
# or are gradients that accumulate.

FEWEST_WEIGHTS = 8
"""Fewer tensors than this are hardly a model's."""
_SOME, _MOST = 0.1, 0.5
"""Shares of the bytes that must fit before sizes are believed."""


def assign_before_recording(inference: Inference, evidence: Evidence, device: DeviceTrace) -> None:
    before = inference.unassigned & ~evidence.begun & evidence.no_stack
    stays = np.flatnonzero(before & evidence.never_freed)
    goes = np.flatnonzero(before & ~evidence.never_freed)
    if len(goes):
        _assign_freed(inference, evidence, goes, weights=stays)
    if len(stays) >= FEWEST_WEIGHTS or len(stays) and evidence.sees_work:
        _assign_retained(inference, evidence, stays, len(device.events))


def _assign_freed(inference: Inference, evidence: Evidence, rows: Ints8, *, weights: Ints8) -> None:
    doing = evidence.doing_at_free[rows]
    step = rows[doing == Activity.STEP]
    like = agreed(evidence.free_stack, inference.category, evidence.free_stack[step])
    is_step_tensor = is_among(like, (Category.PARAMETER, Category.OPTIMIZER_STATE))
    inference.assign(step[is_step_tensor], like[is_step_tensor], Reason.BEFORE_STEP_FREED)
    inference.assign(step[~is_step_tensor], Category.OPTIMIZER_STATE, Reason.BEFORE_STEP_FREED)
    used = rows[is_among(doing, (Activity.BACKWARD, Activity.FORWARD))]
    inference.assign(used, Category.ACTIVATION, Reason.BEFORE_USED)
    rest = rows[doing == Activity.NOTHING]
    size = evidence.size
    sized = is_among(size[rest], np.append(size[weights], size[inference.category == Category.GRADIENT]))
    is_training = evidence.sees_training or bool((inference.category == Category.GRADIENT).any())
    gradients = sized & is_training
    inference.assign(rest[gradients], Category.GRADIENT, Reason.BEFORE_GRADIENT)
    inference.assign(rest[~gradients], Category.ACTIVATION, Reason.BEFORE_USED)


def _assign_retained(inference: Inference, evidence: Evidence, rows: Ints8, count: int) -> None:
    size = evidence.size
    sizes, code = np.unique(size[rows], return_inverse=True)
    gradients = np.flatnonzero(inference.category == Category.GRADIENT)
    at_once = _most_live_at_once(sizes, size[gradients], evidence.start[gradients], evidence.end[gradients], count)
    there = np.bincount(code, minlength=len(sizes))
    # Blocks built first tend to have lower addresses.
    rank = _rank_within_code(code, evidence.address[rows])
    total = int(size[rows].sum())
    if int((sizes * np.minimum(at_once, there)).sum()) > _SOME * total:
        like = at_once[code] > 0
        weight = ~like | (rank < at_once[code])
        inference.assign(rows[like & weight], Category.PARAMETER, Reason.BEFORE_LIKE_GRADIENTS)
        inference.assign(rows[~like], Category.PARAMETER, Reason.BEFORE_ONLY_WEIGHTS)
        inference.assign(rows[~weight], Category.OPTIMIZER_STATE, Reason.BEFORE_MORE_OF_IT)
        return
    second = (rank >= (there[code] + 1) // 2) & _added_to_gradients(inference, evidence, sizes, rows, code)
    inference.assign(rows, Category.PARAMETER, Reason.BEFORE_ONLY_WEIGHTS)
    inference.assign(rows[second], Category.GRADIENT, Reason.BEFORE_MORE_OF_IT)


def _added_to_gradients(inference: Inference, evidence: Evidence, sizes: Ints8, rows: Ints8, code: Ints8) -> Bools:
    """Rows whose size backward allocates as a temporary, which it adds to an existing gradient.

    None unless that holds for most bytes.
    """
    backward = evidence.during(Activity.BACKWARD) | (inference.reason == Reason.ORDER_FREED)
    temporary = backward & (inference.category == Category.TEMPORARY)
    returns = is_among(sizes, evidence.size[temporary])[code]
    size = evidence.size[rows]
    return np.asarray(returns & bool(size[returns].sum() > _MOST * size.sum()))


def _most_live_at_once(sizes: Ints8, size: Ints8, start: Ints8, end: Ints8, count: int) -> Ints8:
    """Number of live blocks of each size at their joint peak."""
    change = sum_by(np.maximum(start, 0), size, count + 2) - sum_by(end, size, count + 2)
    moment = int(np.argmax(np.cumsum(change)))
    live = size[(start <= moment) & (end > moment)]
    live = np.sort(live)
    return np.searchsorted(live, sizes, side="right") - np.searchsorted(live, sizes)


def _rank_within_code(code: Ints8, order_by: Ints8) -> Ints8:
    order = np.lexsort((order_by, code))
    rank = np.empty(len(code), dtype=np.int64)
    rank[order] = np.arange(len(code)) - np.searchsorted(code[order], code[order])
    return rank


# Hills of live bytes: where they rise to a top and have come down again.

_HIGH = 0.5
"""Share of the highest top above which live bytes form a hill."""
_LOW = 0.2
"""Share of the highest top below which a hill has ended."""


@dataclass(frozen=True, eq=False)
class Hills:
    tops: Ints8
    """Event at which each hill is highest."""
    bottoms: Ints8
    """Event at which it is lowest behind each top, before the next hill or the end."""
    count: int

    def is_down(self, events: Ints8) -> Bools:
        """Behind a top, and not yet at the bottom that follows it."""
        top = np.searchsorted(self.tops, events, side="left") - 1
        return np.asarray((top >= 0) & (events <= np.append(self.bottoms, -1)[top]))

    def top_after(self, events: Ints8) -> Ints8:
        return np.append(self.tops, self.count + 1)[np.searchsorted(self.tops, events, side="left")]

    def bottom_after(self, events: Ints8) -> Ints8:
        return np.append(self.bottoms, self.count + 1)[np.searchsorted(self.bottoms, events, side="left")]


def hills(start: Ints8, end: Ints8, size: Ints8, count: int) -> Hills:
    """Return the hills of live bytes, from rows that end within the trace."""
    if not len(start):
        none = np.zeros(0, dtype=np.int64)
        return Hills(none, none, count)
    change = sum_by(start, size, count + 1) - sum_by(end, size, count + 1)
    live = np.cumsum(change)[:count]
    high, low = live > _HIGH * live.max(), live < _LOW * live.max()
    marks = np.flatnonzero(high | low)
    turns = high[marks] != np.append(False, high[marks][:-1])
    climbs, falls = marks[turns & high[marks]], marks[turns & low[marks]]
    falls = np.append(falls, count)[: len(climbs)]
    following = np.append(climbs[1:], count)
    tops = np.array([a + int(np.argmax(live[a:b])) for a, b in zip(climbs, falls, strict=True)], dtype=np.int64)
    bottoms = np.array(
        [b + int(np.argmin(live[b:c])) if b < c else b for b, c in zip(falls, following, strict=True)], dtype=np.int64
    )
    return Hills(tops, bottoms, count)


# A trace without stacks has only sizes and order. Live bytes of freed blocks make hills: a forward climbs, its
# backward comes down. Blocks from before that are never freed are weights. A block of a weight's size, made on the way
# down, is a gradient; one made on the way up and freed on the way down was saved for the backward.

_MOST_OUTPUTS = 4
"""Outputs per hill."""
_MOST_COPIES = 5
"""Copies of each weight in a training, itself included."""


def assign_by_order(inference: Inference, evidence: Evidence, device: DeviceTrace) -> None:
    rows = np.flatnonzero(inference.unassigned & evidence.no_stack & evidence.begun)
    if evidence.sees_work or not len(rows) or not len(device.events):
        return
    start, size, is_retained = evidence.start[rows], evidence.size[rows], evidence.never_freed[rows]
    freed = rows[~is_retained]
    climb = int(evidence.start[freed[0]]) if len(freed) else len(device.events)
    first = rows[is_retained & (start < climb)]
    weights = evidence.size[np.append(first, np.flatnonzero(~evidence.begun & evidence.never_freed))]
    if len(weights) < FEWEST_WEIGHTS:
        return
    inference.assign(first, Category.PARAMETER, Reason.ORDER_FIRST)
    like_weight = is_among(size, weights)
    passing = rows[~is_retained & ~like_weight]
    seen = hills(evidence.start[passing], evidence.end[passing], evidence.size[passing], len(device.events))
    outlasting = is_retained | (seen.bottom_after(start) <= evidence.end[rows])
    gradients = like_weight & (start >= climb) & seen.is_down(start) & outlasting
    # What was there before the recording counts several times: weights, and the optimizer's states of them.
    is_training = _MOST_COPIES * int(size[gradients].sum()) > int(weights.sum()) > 0
    if is_training:
        _assign_weights_again(
            inference, rows[gradients], rows[like_weight & is_retained & (start >= climb)], evidence, weights
        )
    _assign_by_hills(inference, evidence, seen, freed, is_training)


def _assign_weights_again(
    inference: Inference, gradients: Ints8, retained: Ints8, evidence: Evidence, weights: Ints8
) -> None:
    """Assign blocks that are never freed: gradients where those are missing, else optimizer state."""
    passing = gradients[~evidence.never_freed[gradients]]
    inference.assign(passing, Category.GRADIENT, Reason.ORDER_GRADIENT)
    inference.assign(retained, Category.OPTIMIZER_STATE, Reason.ORDER_STATE)
    if 2 * int(evidence.size[passing].sum()) > int(weights.sum()) or not len(retained):
        return
    sizes, code = np.unique(evidence.size[retained], return_inverse=True)
    there = np.bincount(np.searchsorted(sizes, weights[is_among(weights, sizes)]), minlength=len(sizes))
    rank = _rank_within_code(code, np.arange(len(retained)))
    inference.assign(retained[rank < there[code]], Category.GRADIENT, Reason.ORDER_GRADIENT)


def _assign_by_hills(inference: Inference, evidence: Evidence, seen: Hills, rows: Ints8, is_training: bool) -> None:
    rows = rows[inference.unassigned[rows]]
    start, end = evidence.start[rows], evidence.end[rows]
    over_top = seen.top_after(start) <= end
    at_once = end < evidence.next_alloc[rows]
    is_falling = seen.is_down(start)
    stays = over_top & ~is_falling & ~(at_once & is_training)
    inference.assign(rows[stays], Category.ACTIVATION, Reason.ORDER_KEPT)
    # As many as a forward may hand back, and its backward does not let go.
    left = stays & (seen.bottom_after(start) + is_training <= end)
    hill = np.searchsorted(seen.tops, start)
    left &= np.bincount(hill[left], minlength=len(seen.tops) + 1)[hill] <= _MOST_OUTPUTS
    inference.assign(rows[left], Category.OUTPUT, Reason.ORDER_OUTPUT)
    temporary = ~stays & (at_once | ~over_top & is_falling & is_training)
    inference.assign(rows[temporary], Category.TEMPORARY, Reason.ORDER_FREED)
    rest = inference.unassigned[rows]
    inference.assign(rows[rest], Category.ACTIVATION, Reason.ORDER_HANDED_ON)


# Blocks from before the first forward that stay: weights, copies of them, or inputs of the model.

_FEWEST_COPIED = 2
"""Weights. One tensor of the size of another is no copy of it."""
_MOST_TRIED = 64
"""Positions at which a copy may begin: each comparison is complete, and a file may hold millions of one size."""


def assign_weight_copies(inference: Inference, evidence: Evidence) -> None:
    """Assign copies of all weights, as an average or a teacher, that user code makes before the first forward."""
    early = evidence.begun & evidence.never_freed & (evidence.start < evidence.first_work) & evidence.sees_work
    weights = evidence.size[early & (inference.category == Category.PARAMETER)]
    # A prediction labels everything copied from the host outside of a model as input.
    is_guess = (inference.category == Category.INPUT) & (inference.reason == Reason.RECORDED)
    rows = np.flatnonzero(early & (inference.unassigned | is_guess) & evidence.during(Activity.NOTHING))
    count = len(weights)
    if count < _FEWEST_COPIED or (weights == weights[0]).all():
        return
    for place in np.flatnonzero(evidence.size[rows] == weights[0])[:_MOST_TRIED].tolist():
        copies = rows[place : place + count]
        if np.array_equal(evidence.size[copies], weights):
            inference.assign(copies, Category.WEIGHT_COPIES, Reason.WEIGHTS_AGAIN)


def assign_from_the_start(inference: Inference, evidence: Evidence) -> None:
    early = inference.unassigned & evidence.never_freed & evidence.during(Activity.NOTHING)
    early &= ~evidence.begun | (evidence.start < evidence.first_work) & evidence.sees_work
    rows = np.flatnonzero(early & ~(evidence.no_stack & ~evidence.begun))
    if not len(rows):
        return
    size = evidence.size[rows]
    gradients = is_among(size, evidence.size[inference.category == Category.GRADIENT])
    weights = np.ones(len(rows), dtype=np.bool_)
    if 2 * size[gradients].sum() > size.sum():
        weights = gradients
    elif len(rows) < FEWEST_WEIGHTS:
        weights = ~evidence.begun[rows]
    else:
        # The inputs of the model are allocated last, at their own site.
        _, place, count = np.unique(evidence.stack[rows], return_inverse=True, return_counts=True)
        shared = np.flatnonzero(count[place] >= FEWEST_WEIGHTS)
        weights[shared[-1] + 1 if len(shared) else len(rows) :] = False
    inference.assign(rows[weights], Category.PARAMETER, Reason.FROM_THE_START)
    inference.assign(rows[~weights], Category.INPUT, Reason.GIVEN)


_CUT_OFF = (Reason.BACKWARD_CUT_OFF, Reason.STEP_CUT_OFF, Reason.FORWARD_ONLY_KEPT, Reason.FORWARD_OUTPUT)
"""Reasons of blocks whose end the trace may not show."""


@dataclass(frozen=True, eq=False)
class Categories(Columns):
    """One row per row of `lifetimes`."""

    category: Bytes1
    reason: Bytes1
    certainty: Bytes1

    @property
    def sure(self) -> Bools:
        return self.certainty >= Certainty.SURE


@cached
def categories(trace: Trace, device: DeviceTrace) -> Categories:
    evidence = Evidence(trace, device)
    inference = Inference(len(evidence.size))
    _assign_recorded(inference, trace, device)
    _assign_inherited(inference, trace, device)
    assign_metadata(inference, trace, device)
    if device.kind == "host":
        inference.assign(inference.unassigned, Category.HOST_COPY, Reason.HOST, Certainty.SURE)
    _apply(RULES, inference, evidence)
    _follow_free(inference, device)
    _follow_same_stack(inference, evidence)
    assign_annotations(inference, trace, device)
    assign_by_order(inference, evidence, device)
    assign_before_recording(inference, evidence, device)
    assign_weight_copies(inference, evidence)
    assign_from_the_start(inference, evidence)
    _apply(LAST_RULES, inference, evidence)
    return Categories(inference.category, inference.reason, inference.certainty)


def _assign_recorded(inference: Inference, trace: Trace, device: DeviceTrace) -> None:
    recorded = label_of_rows(device, "category")
    if recorded is not None:
        # A run labels all that a forward saves as activations, including autocast copies of weights.
        is_cast = (recorded == Category.ACTIVATION) & stack_signs(trace).casts[lifetimes(device).stack]
        labelled = np.flatnonzero((recorded != Category.UNKNOWN) & ~is_cast)
        inference.assign(labelled, recorded[labelled], Reason.RECORDED, Certainty.STATED)


def _assign_inherited(inference: Inference, trace: Trace, device: DeviceTrace) -> None:
    """Assign the purposes of the source trace; a row without one there gets none here."""
    inherited = inherited_purposes(device)
    if inherited is None:
        return
    is_forward = stack_signs(trace).doing[lifetimes(device).stack] == Activity.FORWARD
    is_again = is_forward & (inherited.phase == Phase.BACKWARD)
    for chosen, reason in ((is_again, Reason.RECOMPUTED), (~is_again, Reason.TAKEN_OVER)):
        rows = np.flatnonzero(inference.unassigned & inherited.is_known & chosen)
        inference.assign(rows, inherited.category[rows], reason, inherited.certainty[rows])


def _apply(rules: tuple[Rule, ...], inference: Inference, evidence: Evidence) -> None:
    for rule in rules:
        inference.assign(inference.unassigned & rule.holds(evidence), rule.category, rule.reason, rule.certainty)


def _follow_same_stack(inference: Inference, evidence: Evidence) -> None:
    """Give blocks cut off by the end of the trace the category of all others of their stack, if those agree."""
    cut_off = is_among(inference.reason, _CUT_OFF) & evidence.never_freed & evidence.begun
    rows = np.flatnonzero(cut_off)
    # One operator call casts a weight and an activation, so its stack does not distinguish them.
    tells_nothing = cut_off | (inference.reason == Reason.AUTOCAST_KEPT)
    others = np.where(tells_nothing, Category.UNKNOWN, inference.category).astype(np.uint8)
    like = agreed(evidence.stack, others, evidence.stack[rows])
    # A block that is never freed is no temporary, even if the others are.
    is_agreed = (like != Category.UNKNOWN) & (like != Category.TEMPORARY)
    inference.assign(rows[is_agreed], like[is_agreed], Reason.SAME_STACK, Certainty.SURE)


def _follow_free(inference: Inference, device: DeviceTrace) -> None:
    """Mark blocks that outlive a step as parameters if they are freed where the first parameters were."""
    first = np.flatnonzero(is_among(inference.reason, (Reason.BUILD_KEPT, Reason.OPTIMIZER_BUILD_KEPT)))
    rows = np.flatnonzero(inference.reason == Reason.STEP_KEPT)
    like = freed_like(device, inference.category, first, rows)
    inference.assign(rows[like == Category.PARAMETER], Category.PARAMETER, Reason.REPLACED, Certainty.SURE)


# A kind is a category, or *before recording* for blocks that were live at the first event without a stack: an earlier
# start of recording would show their category.

BEFORE_RECORDING = "before recording"
KINDS = (*(category.label for category in Category), BEFORE_RECORDING)
"""Labels of the codes that `kinds` returns."""
SAYS_NOTHING = (Category.UNKNOWN.label, BEFORE_RECORDING)
"""Kinds that explain nothing."""


def kinds(trace: Trace, device: DeviceTrace, rows: Ints8 | slice = slice(None)) -> Ints8:
    """Per row of `lifetimes`, or for these rows, an index into KINDS."""
    lives = lifetimes(device)
    kind_codes = categories(trace, device).category[rows].astype("int64")
    unseen = (lives.start[rows] == BEFORE) & (lives.stack[rows] == NO_STACK) & (kind_codes == Category.UNKNOWN)
    kind_codes[unseen] = KINDS.index(BEFORE_RECORDING)
    return kind_codes
