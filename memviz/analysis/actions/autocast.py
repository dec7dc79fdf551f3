"""Autocast to bfloat16 on a recorded trace: which results it halves, by the operators that make them.

It halves what matrix products, convolutions and attention make, and what follows from them element by element. Weights
stay, and are copied in half the size for the products that use them, until their backward is done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.actions.action import ActionKind, Proposal
from memviz.analysis.actions.edit import Again, Edit, edited
from memviz.analysis.callstacks.operators import operator_name, operators
from memviz.analysis.findings.facts import Facts
from memviz.analysis.findings.wider_copies import wider_copies
from memviz.analysis.lifetimes import BEFORE
from memviz.analysis.purpose.activity import Doing
from memviz.trace.model import Bools, Category, Ints8

Names = npt.NDArray[Any]
"""Texts, one for each distinct stack."""

ASSUMPTIONS = (
    "Everything is in float32 now: a trace does not say in which precision anything is.",
    "Results of products, convolutions and attention are halved, and so are norms that feed them and what follows from "
    "them element by element; sums, losses, weights, gradients and the optimizer's state are not.",
    "Each weight that a product uses has a copy of half its size from the forward to its backward.",
)
_FEW = 0.05
"""Of the bytes of all activations: so few copies are a mask's or an index's."""
_HALF_ALONE = ("flash_attention", "cudnn_attention")
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addmv", "einsum")
_PRODUCTS_OF = ("convolution", "attention")
_FOLLOW = (
    *("gelu", "relu", "silu", "silu_", "relu_", "native_dropout", "dropout", "mul", "clamp", "leaky_relu", "hardswish"),
    *("native_layer_norm", "_fused_rms_norm", "native_group_norm", "rms_norm", "clone", "cat", "_unsafe_view"),
    *("gelu_backward", "silu_backward", "threshold_backward", "native_dropout_backward", "hardswish_backward"),
)
"""Norms stay in float32, but what is kept of them is the copy that the next product takes."""


def autocast(facts: Facts) -> Proposal | None:
    """None where C++ frames do not say which operator made what, or where precisions are mixed already."""
    names = _names(facts)
    rows = facts.rows
    if (rows.start == BEFORE).any() or is_mixed(facts):
        return None
    computed = facts.has_purpose(Category.ACTIVATION, Category.OUTPUT, Category.TEMPORARY)
    halved = np.flatnonzero(computed & (_is_product(names) | np.isin(names, _FOLLOW))[_place(facts)])
    if not len(halved):
        return None
    copies = Edit(halved=halved, again=_copies_of_weights(facts, names), again_as=Category.AUTOCAST_WEIGHT_COPIES)
    trace = edited(facts.trace, facts.device, copies)
    return Proposal(ActionKind.AUTOCAST, "autocast to bfloat16", ASSUMPTIONS, trace)


def is_mixed(facts: Facts) -> bool:
    """Whether something is in half precision already: forwards keep copies in another precision, something is copied
    into twice its size, or an attention runs that knows half precision alone."""
    if facts.has_purpose(Category.AUTOCAST_WEIGHT_COPIES).any():
        return True
    names = _names(facts)
    activations = facts.has_purpose(Category.ACTIVATION)
    copies = activations & (names == "_to_copy")[_place(facts)]
    size = facts.rows.size
    if int(size[copies].sum()) > _FEW * int(size[activations].sum()):
        return True
    return any(word in name for name in set(names.tolist()) for word in _HALF_ALONE) or any(wider_copies(facts))


def _copies_of_weights(facts: Facts, names: Names) -> Again:
    """As many bytes as half the gradients that products make, from their step's forward until each is made."""
    rows, spans = facts.rows, facts.phases.spans
    forwards = np.array([span.first for span in spans if span.doing == Doing.FORWARD], dtype=np.int64)
    is_gradient = facts.has_purpose(Category.GRADIENT) & _is_product(names)[_place(facts)]
    gradients = np.flatnonzero(is_gradient & (rows.start >= forwards.min(initial=facts.count)))
    begin = forwards[np.searchsorted(forwards, rows.start[gradients], side="right") - 1]
    order = rows.start[gradients]
    return Again(gradients, begin, order, order, order, np.full(len(gradients), 2))


def _names(facts: Facts) -> Names:
    """Of each distinct stack its operator's name; the last one is of no stack."""
    texts = operators(facts.trace)
    known, place = np.unique(texts, return_inverse=True)
    return np.array([operator_name(facts.trace, text) for text in known.tolist()])[place]


def _place(facts: Facts) -> Ints8:
    return np.asarray(facts.rows.stack, dtype=np.int64)


def _is_product(names: Names) -> Bools:
    is_product = np.isin(names, _PRODUCTS)
    for word in _PRODUCTS_OF:
        is_product |= np.char.find(names, word) >= 0
    return np.asarray(is_product)
