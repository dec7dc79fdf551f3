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
    TAKEN_OVER = "its purpose in the recording that this is estimated from"
    METADATA = "stated by the program's own metadata"
    ANNOTATED = "made within a range that the program labels so"
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
    RECOMPUTED = "made by a forward inside a backward: recomputed by gradient checkpointing"
    ACCUMULATED = "autograd stored it as the gradient of a leaf"
    BACKWARD_KEPT = "made in a backward, and alive after it"
    BACKWARD_FREED = "made in a backward, and freed within it"
    SILENT_BACKWARD_KEPT = "made without a stack right after a call of backward, and alive after it"
    SILENT_BACKWARD_FREED = "made without a stack right after a call of backward, and freed within it"
    CALL_FREED = "freed within the call that made it"
    NAMED = "a function or file in its stack is named after it"
    GRAPH = "in a private pool, as of a CUDA graph"
    OUTLIVES_BACKWARD = "made in a forward and not freed by its backward, unlike most"
    FORWARD_OUTPUT = "the last allocation of a forward that outlives it"
    FORWARD_KEPT = "made in a forward, and alive when its backward began"
    HANDED_ON = "made in a forward, passed on by the layer that made it, and freed before the forward ends"
    AUTOCAST_KEPT = "cast by autocast, and half the size of a weight from before the forward"
    KEPT_BETWEEN = "made in a forward, and replaced by something larger in later forwards"
    FORWARD_KEPT_LONGER = "made in a forward, and kept over more than one backward"
    FORWARD_ONLY_KEPT = "made in a forward and kept after it, as if for a backward that is not recorded"
    BACKWARD_USED = "alive when a backward began, and freed during it"
    WEIGHTS_AGAIN = "made outside of the model before a forward, with the sizes of its weights in their order"
    GIVEN = "made outside of the model before a forward, and alive when it began"
    LOOSE_RESULT = "result of an operator outside any module, used by what follows"
    KEPT_RESULT = "result of an operator outside any module, alive to the end of the trace"
    SAME_STACK = "the trace ends before its use shows, but all others with the same stack have this purpose"
    REPLACED = "made in an optimizer step, and freed where later steps freed the first parameters"
    BACKWARD_CUT_OFF = "made in a backward that continues after the end of the trace"
    STEP_CUT_OFF = "made in an optimizer step at the end of the trace, and never freed"
    FROM_THE_START = "allocated from before the first forward to the end, like weights"
    BEFORE_ONLY_WEIGHTS = "allocated during the whole recording, and no other weights are"
    BEFORE_LIKE_GRADIENTS = "allocated during the whole recording, with the size of a gradient"
    BEFORE_MORE_OF_IT = "allocated during the whole recording, and more of its size than there are weights"
    BEFORE_GRADIENT = "allocated before recording started, with the size of a weight, and freed between steps"
    BEFORE_STEP_FREED = "allocated before recording started, and freed by an optimizer step that allocates as much"
    BEFORE_USED = "allocated before recording started, and freed by the first computation"
    ORDER_FIRST = "among the first allocations, and never freed"
    ORDER_STATE = "with the size of a weight, made after a backward and never freed"
    ORDER_GRADIENT = "with the size of a weight, made while memory fell, and alive until the next step"
    ORDER_KEPT = "made while memory grew, and freed in reverse order as it fell"
    ORDER_OUTPUT = "made while memory grew, and still there when it had fallen"
    ORDER_FREED = "freed before the next allocation"
    ORDER_HANDED_ON = "freed on the way up, after others were made"
    NO_STACK = "no stack was recorded"
    CUT_OFF = "the trace ends before its use shows"
    UNMARKED = "its stack does not show its purpose"


REASON_TEXTS = tuple(reason.text for reason in Reason)
"""Text per number of a Reason."""
