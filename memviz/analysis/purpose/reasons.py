"""Why an allocation is held to be for something, and how sure that is."""

from __future__ import annotations

from enum import IntEnum


class Certainty(IntEnum):
    OPEN = 0
    """No purpose inferred."""
    PROBABLE = 1
    """Sizes, order or names speak for it; another program could look the same."""
    SURE = 2
    """The activity of the program shows it."""
    STATED = 3
    """The program labelled it."""

    @property
    def word(self) -> str:
        return ("open", "probable", "sure", "stated")[self]


class Reason(IntEnum):
    """Numbered in this order, from 0. The text is read by people."""

    text: str

    def __new__(cls, text: str) -> Reason:
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = len(cls.__members__)
        member.text = text
        return member

    NONE = ""
    RECORDED = "recorded by the run itself"
    TAKEN_OVER = "what it was in the recording that this is estimated from"
    METADATA = "the program's own metadata says so"
    ANNOTATED = "made within a range that the program calls so"
    HOST = "pinned memory of the host"
    WORKSPACE = "cuBLAS took it as its workspace"
    WORKSPACE_SIZE = "has exactly the size of a cuBLAS workspace"
    ZERO_GRAD = "freed by zero_grad"
    BUILD_KEPT = "made while a module was built, moved or loaded, and alive when it was used"
    BUILD_FREED = "made while a module was built, moved or loaded, and freed before it was used"
    OPTIMIZER_BUILD_KEPT = "made while an optimizer was set up or loaded, and alive when the model was used"
    OPTIMIZER_BUILD_FREED = "made while an optimizer was set up or loaded, and freed before the model was used"
    STEP_KEPT = "made in an optimizer step, and alive after it"
    STEP_FREED = "made in an optimizer step, and freed within it"
    RECOMPUTED = "made by a forward inside a backward: activation checkpointing makes again what it had let go"
    ACCUMULATED = "autograd stored it as the gradient of a leaf"
    BACKWARD_KEPT = "made in a backward, and alive when it was over"
    BACKWARD_FREED = "made in a backward, and freed within it"
    SILENT_BACKWARD_KEPT = "made without a stack right after a call of backward, and alive when it was over"
    SILENT_BACKWARD_FREED = "made without a stack right after a call of backward, and freed within it"
    CALL_FREED = "freed within the call that made it"
    NAMED = "a function or file in its stack is named after it"
    GRAPH = "in a pool of its own, as a CUDA graph keeps one"
    OUTLIVES_BACKWARD = "one of the few that a forward made and its backward did not let go"
    FORWARD_OUTPUT = "the last that a forward made and left behind"
    FORWARD_KEPT = "made in a forward, and alive when its backward began"
    HANDED_ON = "made in a forward, handed on beyond the layer that made it, and freed before its end"
    AUTOCAST_KEPT = "cast by autocast, and half the size of a weight that was there before the forward"
    KEPT_BETWEEN = "made in a forward, and later forwards replace it by something larger at the same place"
    FORWARD_KEPT_LONGER = "made in a forward, and kept over more than one backward"
    FORWARD_ONLY_KEPT = "made in a forward and kept beyond it, as for a backward that does not come here"
    BACKWARD_USED = "alive when a backward began, and freed during it"
    WEIGHTS_AGAIN = "made outside of the model before a forward, with the sizes of its weights in their order"
    GIVEN = "made outside of the model before a forward, and alive when it began"
    LOOSE_RESULT = "the result of an operator outside of any module, handed on to what came next"
    KEPT_RESULT = "the result of an operator outside of any module, alive to the end of the trace"
    SAME_STACK = "the trace ends before its use shows, but all others of the same stack were this"
    REPLACED = "made in an optimizer step, and freed where later steps freed the first parameters"
    BACKWARD_CUT_OFF = "made in a backward that the trace does not see the end of"
    STEP_CUT_OFF = "made in an optimizer step at the end of the trace, and never freed"
    FROM_THE_START = "there before the first forward and to the end, as weights are"
    BEFORE_ONLY_WEIGHTS = "there from before the recording to its end, and no other weights are"
    BEFORE_LIKE_GRADIENTS = "there from before the recording to its end, and its size returns as a gradient"
    BEFORE_MORE_OF_IT = "there from before the recording to its end, and more of its size than weights are"
    BEFORE_GRADIENT = "there before the recording, with the size of a weight, and freed between the steps"
    BEFORE_STEP_FREED = "there before the recording, and freed by an optimizer step that makes as much anew"
    BEFORE_USED = "there before the recording, and freed by what was computed first"
    ORDER_FIRST = "among the first allocations, and never freed"
    ORDER_STATE = "with the size of a weight, made after a backward and never freed"
    ORDER_GRADIENT = "with the size of a weight, made as memory fell, and alive until the next step"
    ORDER_KEPT = "made while memory grew, and freed as it fell, the last one first"
    ORDER_OUTPUT = "made while memory grew, and still there when it had fallen"
    ORDER_FREED = "freed soon, before another was made"
    ORDER_HANDED_ON = "freed on the way up, after others were made"
    NO_STACK = "no stack was recorded"
    CUT_OFF = "the trace ends before its use shows"
    UNMARKED = "nothing in its stack says what it is for"


REASON_TEXTS = tuple(reason.text for reason in Reason)
"""Text per number of a Reason."""
