"""Proposals for a finding: gradient checkpointing, autocast, half precision or an earlier free, as edited requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.actions.edit import Again, Earlier, Edit, apply_edit
from memviz.analysis.actions.layers import Layer, LayeredStep, layered_steps
from memviz.analysis.callstacks.sites import operator_name, operators
from memviz.analysis.findings.copies import wider_copies
from memviz.analysis.findings.finding import Facts, Finding, FindingKind
from memviz.analysis.lifetimes import BEFORE
from memviz.analysis.purpose.activity import Activity, call_over, python_stacks
from memviz.analysis.purpose.phases import PhaseSpan
from memviz.errors import UsageError
from memviz.trace.model import Bools, Category, DeviceTrace, Ints8, Trace
from memviz.units import bytes_text, count_text


class ActionKind(StrEnum):
    FREE_EARLIER = "free_earlier"
    CHECKPOINT = "checkpoint"
    HALF_PRECISION = "half_precision"
    AUTOCAST = "autocast"
    EXPANDABLE_SEGMENTS = "expandable_segments"


@dataclass(frozen=True, eq=False)
class Proposal:
    """Edited requests or settings of an estimate; its figures come from a replay."""

    kind: ActionKind
    name: str
    """Label of its button, such as 'checkpoint 24 layers'."""
    assumptions: tuple[str, ...]
    trace: Trace | None
    """The edited requests, of one device; None where only the allocator's settings are others."""


FREE_EARLIER_ASSUMPTIONS = ("Nothing reads it after the next forward begins.",)


def free_earlier(facts: Facts, rows: Ints8) -> Proposal | None:
    """Each of these rows ends where the first forward behind its beginning does; None where none lives so long."""
    following = np.searchsorted(facts.forward_begins, facts.rows.start[rows], side="right")
    ends = np.append(facts.forward_begins, facts.count)[following]
    late = (facts.rows.start[rows] >= 0) & (facts.rows.end[rows] > ends) & (facts.rows.end[rows] < facts.count)
    if not late.any():
        return None
    trace = apply_edit(facts.trace, facts.device, Edit(earlier=Earlier(rows[late], ends[late])))
    return Proposal(ActionKind.FREE_EARLIER, "free it before the next forward", FREE_EARLIER_ASSUMPTIONS, trace)


# Gradient checkpointing on a recorded trace: each layer keeps its input and recomputes the rest in the backward.

CHECKPOINT_ASSUMPTIONS = (
    "Within a layer's forward, saved tensors live until the function that made them returns, or until the layer does.",
    "In the backward each layer's forward runs again, with its temporaries, before the layer's own backward: about "
    "30 % more compute.",
    "Only consecutive layers from the same lines are checkpointed, and only where the trace shows their forward.",
)


def checkpoint(facts: Facts) -> Proposal | None:
    steps = layered_steps(facts)
    if not steps:
        return None
    count = max(len(step.layers) for step in steps)
    trace = apply_edit(facts.trace, facts.device, checkpoint_edit(facts, steps))
    return Proposal(ActionKind.CHECKPOINT, f"checkpoint {count_text(count)} layers", CHECKPOINT_ASSUMPTIONS, trace)


def checkpoint_edit(facts: Facts, steps: tuple[LayeredStep, ...]) -> Edit:
    earlier, again = [], [Again.empty()]
    for step in steps:
        earlier += [Earlier(layer.kept, _release_events(facts, layer)) for layer in step.layers]
        if step.backward is not None:
            begins = _recompute_events(facts, step, step.backward)
            pairs = zip(step.layers, begins, strict=True)
            again += [_recomputed(facts, layer, begin) for layer, begin in pairs if begin < facts.count]
    return Edit(Earlier.concatenated(earlier), Again.concatenated(again))


def _release_events(facts: Facts, layer: Layer) -> Ints8:
    """Event before which each saved tensor of a layer is freed if nothing is saved for backward: when later stacks show
    that the function holding it has returned. A tensor that the function returns stays until the end of the layer."""
    rows, allocated = facts.rows, layer.made
    depths = python_stacks(facts.trace).code_depth
    over = call_over(facts.trace, rows.start[allocated], rows.stack[allocated], layer.past, depths)
    is_handed_on = over == np.append(rows.start[allocated][1:], layer.past)
    return np.where(is_handed_on, layer.past, over)[np.searchsorted(allocated, layer.kept)]


def _recompute_events(facts: Facts, step: LayeredStep, backward: PhaseSpan) -> list[int]:
    """Event before which the backward reaches each layer: when the layer above has freed all that it saved. The number
    of events if the trace ends before."""
    rows, begins = facts.rows, []
    for number, layer in enumerate(step.layers):
        first_freed = int(rows.end[layer.kept].min(initial=facts.count))
        if first_freed == facts.count:
            begins.append(facts.count)
            continue
        if number + 1 < len(step.layers):
            above = np.append(step.layers[number + 1].kept, layer.output)
        else:
            # After the last layer: the head and the loss.
            behind = np.arange(layer.made[-1] + 1, len(rows))
            above = np.append(behind[rows.start[behind] < backward.first], layer.output)
        ends = rows.end[above]
        ends = ends[(ends >= backward.first) & (ends < first_freed)]
        begins.append(int(ends.max()) + 1 if len(ends) else min(backward.first, first_freed))
    return begins


def _recomputed(facts: Facts, layer: Layer, begin: int) -> Again:
    """Allocations of a layer up to the last that its backward needs; the rest is not recomputed."""
    rows = facts.rows
    needed = layer.made[layer.made <= layer.kept.max(initial=-1)]
    # An allocation that outlives the layer without being saved for backward, as its output, is not recomputed.
    needed = needed[np.isin(needed, layer.kept) | (rows.end[needed] <= layer.past)]
    is_saved = np.isin(needed, layer.kept)
    end = np.where(is_saved, np.maximum(rows.end[needed], begin), begin)
    begins, whole = np.full(len(needed), begin), np.ones(len(needed), np.int64)
    return Again(needed, begins, end, rows.start[needed], rows.end[needed], whole)


# Autocast to bfloat16 halves the results of matrix products, convolutions and attention, and of elementwise operators
# that follow them. Weights stay, and are copied in half their size for the products that use them, until their
# backward is done.

OperatorNames = npt.NDArray[Any]
"""Texts, one for each distinct stack."""

AUTOCAST_ASSUMPTIONS = (
    "Everything is assumed to be in float32: a trace does not record dtypes.",
    "Results of products, convolutions and attention are halved, and so are norms that feed them and what follows from "
    "them element by element; sums, losses, weights, gradients and the optimizer's state are not.",
    "Each weight that a product uses has a copy of half its size from the forward to its backward.",
)
_FEW_COPIES = 0.05
"""Share of the bytes of all activations: fewer copies are a mask's or an index's."""
_HALF_ALONE = ("flash_attention", "cudnn_attention")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "einsum")
_PRODUCTS_OF = ("convolution", "attention")
_ELEMENTWISE = (
    *("gelu", "relu", "silu", "silu_", "relu_", "native_dropout", "dropout", "mul", "clamp", "leaky_relu", "hardswish"),
    *("native_layer_norm", "_fused_rms_norm", "native_group_norm", "rms_norm", "clone", "cat", "_unsafe_view"),
    *("gelu_backward", "silu_backward", "threshold_backward", "native_dropout_backward", "hardswish_backward"),
    "_log_softmax_backward_data",
)
"""Norms stay in float32, but the saved tensor is the half-precision copy for the next product. `cross_entropy` computes
in half precision beside a float32 copy, which together are not smaller; its gradient is."""


def autocast(facts: Facts) -> Proposal | None:
    """None without C++ frames that name each operator, or where precisions are mixed already."""
    names = _operator_names(facts)
    rows = facts.rows
    if (rows.start == BEFORE).any() or is_mixed(facts):
        return None
    computed = facts.has_purpose(Category.ACTIVATION, Category.OUTPUT, Category.TEMPORARY)
    halved = np.flatnonzero(computed & (_is_product(names) | np.isin(names, _ELEMENTWISE))[facts.rows.stack])
    if not len(halved):
        return None
    copies = Edit(halved=halved, again=_copies_of_weights(facts, names), again_as=Category.AUTOCAST_WEIGHT_COPIES)
    trace = apply_edit(facts.trace, facts.device, copies)
    return Proposal(ActionKind.AUTOCAST, "autocast to bfloat16", AUTOCAST_ASSUMPTIONS, trace)


def is_mixed(facts: Facts) -> bool:
    """Return whether half precision is in use already: weight copies by autocast, many casts among activations, copies
    into twice the size, or an attention kernel for half precision alone."""
    if facts.has_purpose(Category.AUTOCAST_WEIGHT_COPIES).any():
        return True
    names = _operator_names(facts)
    activations = facts.has_purpose(Category.ACTIVATION)
    copies = activations & (names == "_to_copy")[facts.rows.stack]
    size = facts.rows.size
    if int(size[copies].sum()) > _FEW_COPIES * int(size[activations].sum()):
        return True
    return any(word in name for name in set(names.tolist()) for word in _HALF_ALONE) or any(wider_copies(facts))


def _copies_of_weights(facts: Facts, names: OperatorNames) -> Again:
    """Return weight copies: half the bytes of each gradient by a product, from the forward until the gradient."""
    rows, spans = facts.rows, facts.phases.spans
    forwards = np.array([span.first for span in spans if span.doing == Activity.FORWARD], dtype=np.int64)
    is_gradient = facts.has_purpose(Category.GRADIENT) & _is_product(names)[facts.rows.stack]
    gradients = np.flatnonzero(is_gradient & (rows.start >= forwards.min(initial=facts.count)))
    begin = forwards[np.searchsorted(forwards, rows.start[gradients], side="right") - 1]
    order = rows.start[gradients]
    return Again(gradients, begin, order, order, order, np.full(len(gradients), 2))


def _operator_names(facts: Facts) -> OperatorNames:
    """Return the operator name of each distinct stack; the last entry is for no stack."""
    texts = operators(facts.trace)
    distinct_texts, place = np.unique(texts, return_inverse=True)
    return np.array([operator_name(facts.trace, text) for text in distinct_texts.tolist()])[place]


def _is_product(names: OperatorNames) -> Bools:
    is_product = np.isin(names, _PRODUCTS)
    for word in _PRODUCTS_OF:
        is_product |= np.char.find(names, word) >= 0
    return np.asarray(is_product)


# Half precision of the whole model, as after `model.bfloat16()`.

HALF_PRECISION_ASSUMPTIONS = (
    "Everything is assumed to be in float32: a trace does not record dtypes.",
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
    """None if memory from before the recording was live, whose size is fixed, or precision is half already."""
    halved = np.flatnonzero(facts.has_purpose(*_HALVED) & (facts.rows.start > BEFORE))
    if not len(halved) or (facts.rows.start == BEFORE).any() or is_mixed(facts):
        return None
    trace = apply_edit(facts.trace, facts.device, Edit(halved=halved))
    return Proposal(ActionKind.HALF_PRECISION, "model in half precision", HALF_PRECISION_ASSUMPTIONS, trace)


_EXPANDABLE = Proposal(
    ActionKind.EXPANDABLE_SEGMENTS,
    "expandable segments",
    ("The same requests with expandable_segments:True, without a memory limit.",),
    None,
)
_OF_KIND: dict[FindingKind, tuple[ActionKind, ...]] = {
    FindingKind.ACTIVATIONS: (ActionKind.CHECKPOINT, ActionKind.AUTOCAST, ActionKind.HALF_PRECISION),
    FindingKind.KEPT_TOO_LONG: (ActionKind.FREE_EARLIER,),
    FindingKind.GRADIENTS_IN_FORWARD: (ActionKind.FREE_EARLIER,),
    FindingKind.PINNED_SEGMENTS: (ActionKind.EXPANDABLE_SEGMENTS,),
    FindingKind.SPIKE: (ActionKind.EXPANDABLE_SEGMENTS,),
}
_PROPOSE: dict[ActionKind, Callable[[Facts, Finding], Proposal | None]] = {
    ActionKind.CHECKPOINT: lambda facts, _: checkpoint(facts),
    ActionKind.AUTOCAST: lambda facts, _: autocast(facts),
    ActionKind.HALF_PRECISION: lambda facts, _: half_precision(facts),
    ActionKind.FREE_EARLIER: lambda facts, finding: free_earlier(facts, finding.rows),
    ActionKind.EXPANDABLE_SEGMENTS: lambda facts, _: _EXPANDABLE,
}


def kinds_of(finding: Finding) -> tuple[ActionKind, ...]:
    return _OF_KIND.get(finding.kind, ())


def proposal(trace: Trace, device: DeviceTrace, finding: Finding, kind: ActionKind) -> Proposal | None:
    """None if the trace lacks the necessary data."""
    if kind not in kinds_of(finding):
        raise UsageError(f"There is no {kind} for {finding.key}.")
    facts = Facts(trace, device)
    result = _PROPOSE[kind](facts, finding)
    limit = limit_of_start(facts)
    if result is None or result.trace is None or not limit:
        return result
    return replace(result, assumptions=(*result.assumptions, limit))


def limit_of_start(facts: Facts) -> str:
    """An edit changes only what was recorded. Empty where the recording is complete."""
    start = facts.line.start_bytes
    if not start:
        return ""
    return f"Recording started with {bytes_text(start)} allocated, which the estimate does not change."
