"""Why an allocation is held to be for something, and how sure that is."""

from __future__ import annotations

from enum import IntEnum, auto


class Certainty(IntEnum):
    OPEN = 0
    """No purpose was found."""
    PROBABLE = 1
    """Sizes, order or names speak for it; another program could look the same."""
    SURE = 2
    """The activity of the program shows it."""
    STATED = 3
    """The program said it."""

    @property
    def word(self) -> str:
        return ("open", "probable", "sure", "stated")[self]


class Reason(IntEnum):
    NONE = 0
    RECORDED = auto()
    TAKEN_OVER = auto()
    METADATA = auto()
    ANNOTATED = auto()
    HOST = auto()
    WORKSPACE = auto()
    WORKSPACE_SIZE = auto()
    ZERO_GRAD = auto()
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
    CALL_FREED = auto()
    NAMED = auto()
    GRAPH = auto()
    OUTLIVES_BACKWARD = auto()
    FORWARD_OUTPUT = auto()
    FORWARD_KEPT = auto()
    HANDED_ON = auto()
    AUTOCAST_KEPT = auto()
    KEPT_BETWEEN = auto()
    FORWARD_KEPT_LONGER = auto()
    FORWARD_ONLY_KEPT = auto()
    BACKWARD_USED = auto()
    WEIGHTS_AGAIN = auto()
    GIVEN = auto()
    LOOSE_RESULT = auto()
    KEPT_RESULT = auto()
    SAME_STACK = auto()
    REPLACED = auto()
    BACKWARD_CUT_OFF = auto()
    STEP_CUT_OFF = auto()
    FROM_THE_START = auto()
    BEFORE_ONLY_WEIGHTS = auto()
    BEFORE_LIKE_GRADIENTS = auto()
    BEFORE_MORE_OF_IT = auto()
    BEFORE_GRADIENT = auto()
    BEFORE_STEP_FREED = auto()
    BEFORE_USED = auto()
    BEFORE_SAME_SIZE = auto()
    ORDER_FIRST = auto()
    ORDER_STATE = auto()
    ORDER_GRADIENT = auto()
    ORDER_KEPT = auto()
    ORDER_OUTPUT = auto()
    ORDER_FREED = auto()
    ORDER_HANDED_ON = auto()
    NO_STACK = auto()
    CUT_OFF = auto()
    UNMARKED = auto()


REASON_TEXTS: dict[Reason, str] = {
    Reason.RECORDED: "recorded by the run itself",
    Reason.TAKEN_OVER: "what it was in the recording that this is estimated from",
    Reason.METADATA: "the program's own metadata says so",
    Reason.ANNOTATED: "made within a range that the program calls so",
    Reason.HOST: "pinned memory of the host",
    Reason.WORKSPACE: "cuBLAS took it as its workspace",
    Reason.WORKSPACE_SIZE: "has exactly the size of a cuBLAS workspace",
    Reason.ZERO_GRAD: "freed by zero_grad",
    Reason.BUILD_KEPT: "made while a module was built, moved or loaded, and alive when it was used",
    Reason.BUILD_FREED: "made while a module was built, moved or loaded, and freed before it was used",
    Reason.OPTIMIZER_BUILD_KEPT: "made while an optimizer was set up or loaded, and alive when the model was used",
    Reason.OPTIMIZER_BUILD_FREED: "made while an optimizer was set up or loaded, and freed before the model was used",
    Reason.STEP_KEPT: "made in an optimizer step, and alive after it",
    Reason.STEP_FREED: "made in an optimizer step, and freed within it",
    Reason.RECOMPUTED: "made by a forward inside a backward: activation checkpointing makes again what it had let go",
    Reason.ACCUMULATED: "autograd stored it as the gradient of a leaf",
    Reason.BACKWARD_KEPT: "made in a backward, and alive when it was over",
    Reason.BACKWARD_FREED: "made in a backward, and freed within it",
    Reason.SILENT_BACKWARD_KEPT: "made without a stack right after a call of backward, and alive when it was over",
    Reason.SILENT_BACKWARD_FREED: "made without a stack right after a call of backward, and freed within it",
    Reason.CALL_FREED: "freed within the call that made it",
    Reason.NAMED: "a function or file in its stack is named after it",
    Reason.GRAPH: "in a pool of its own, as a CUDA graph keeps one",
    Reason.FORWARD_OUTPUT: "the last that a forward made and left behind",
    Reason.OUTLIVES_BACKWARD: "one of the few that a forward made and its backward did not let go",
    Reason.FORWARD_KEPT: "made in a forward, and alive when its backward began",
    Reason.HANDED_ON: "made in a forward, handed on beyond the layer that made it, and freed before its end",
    Reason.AUTOCAST_KEPT: "cast by autocast, and half the size of a weight that was there before the forward",
    Reason.KEPT_BETWEEN: "made in a forward, and later forwards replace it by something larger at the same place",
    Reason.FORWARD_KEPT_LONGER: "made in a forward, and kept over more than one backward",
    Reason.FORWARD_ONLY_KEPT: "made in a forward and kept beyond it, as for a backward that does not come here",
    Reason.BACKWARD_USED: "alive when a backward began, and freed during it",
    Reason.WEIGHTS_AGAIN: "made outside of the model before a forward, with the sizes of its weights in their order",
    Reason.GIVEN: "made outside of the model before a forward, and alive when it began",
    Reason.LOOSE_RESULT: "the result of an operator outside of any module, handed on to what came next",
    Reason.KEPT_RESULT: "the result of an operator outside of any module, alive to the end of the trace",
    Reason.SAME_STACK: "the trace ends before its use shows, but all others of the same stack were this",
    Reason.REPLACED: "made in an optimizer step, and freed where later steps freed the first parameters",
    Reason.BACKWARD_CUT_OFF: "made in a backward that the trace does not see the end of",
    Reason.STEP_CUT_OFF: "made in an optimizer step at the end of the trace, and never freed",
    Reason.FROM_THE_START: "there before the first forward and to the end, as weights are",
    Reason.BEFORE_ONLY_WEIGHTS: "there from before the recording to its end, and no other weights are",
    Reason.BEFORE_LIKE_GRADIENTS: "there from before the recording to its end, and its size returns as a gradient",
    Reason.BEFORE_MORE_OF_IT: "there from before the recording to its end, and more of its size than weights are",
    Reason.BEFORE_GRADIENT: "there before the recording, with the size of a weight, and freed between the steps",
    Reason.BEFORE_STEP_FREED: "there before the recording, and freed by an optimizer step that makes as much anew",
    Reason.BEFORE_USED: "there before the recording, and freed by what was computed first",
    Reason.BEFORE_SAME_SIZE: "there before the recording, and nearly all of its size later are this",
    Reason.ORDER_FIRST: "among the first allocations, and never freed",
    Reason.ORDER_STATE: "with the size of a weight, made after a backward and never freed",
    Reason.ORDER_GRADIENT: "with the size of a weight, made as memory fell, and alive until the next step",
    Reason.ORDER_KEPT: "made while memory grew, and freed as it fell, the last one first",
    Reason.ORDER_OUTPUT: "made while memory grew, and still there when it had fallen",
    Reason.ORDER_FREED: "freed soon, before another was made",
    Reason.ORDER_HANDED_ON: "freed on the way up, after others were made",
    Reason.NO_STACK: "no stack was recorded",
    Reason.CUT_OFF: "the trace ends before its use shows",
    Reason.UNMARKED: "nothing in its stack says what it is for",
}
