"""The activity of a program, read from a stack."""

import pytest

from memviz.analysis.purpose.activity import Activity, StackSigns, stack_signs
from memviz.trace.model import NO_STACK
from tests.analysis import training as t
from tests.traces import alloc, frame, trace_of


def signs(*stacks) -> StackSigns:
    return stack_signs(trace_of([alloc(i, 1, frames=list(stack)) for i, stack in enumerate(stacks)]))


INIT = [frame("__init__", "/p/model.py", 5), t.MAIN]
OWN_STEP = [
    frame("step", "/p/optimizer.py", 5),
    frame("decorate_context", f"{t.SITE}/torch/utils/_contextlib.py"),
    t.WRAPPER,
]


@pytest.mark.parametrize(
    ("stacks", "doing"),
    [
        ([t.FORWARD], Activity.FORWARD),
        ([t.BACKWARD], Activity.BACKWARD),
        ([t.ACCUMULATE], Activity.BACKWARD),
        ([t.CALL_BACKWARD], Activity.BACKWARD),
        ([t.RECOMPUTE], Activity.BACKWARD),
        ([t.STEP], Activity.STEP),
        ([t.BUILD], Activity.BUILD),
        ([t.MOVE], Activity.BUILD),
        ([t.LOSS], Activity.NOTHING),
        ([[frame("forward", "/p/model.py"), t.MAIN]], Activity.FORWARD),
        ([[frame("load_state_dict", t.OPTIMIZER), t.MAIN]], Activity.BUILD_OPTIMIZER),
        # An __init__ builds what torch calls in its file.
        ([INIT, t.FORWARD], Activity.BUILD),
        ([INIT, t.STEP], Activity.NOTHING),
        ([[frame("__init__", "/p/optimizer.py", 5), t.MAIN], OWN_STEP], Activity.BUILD_OPTIMIZER),
        (
            [
                [frame("__init__", "/p/x.py")],
                [frame("forward", "/p/x.py"), t.CALL],
                [frame("step", "/p/x.py"), t.WRAPPER],
            ],
            Activity.NOTHING,
        ),
        ([[frame("__init__", "/p/model.py", 5), *t.FORWARD]], Activity.FORWARD),
        # The last frame of one stack does not call the first of the next.
        ([[frame("__init__", "/p/x.py", 9)], [frame("forward", "/p/x.py")], [t.CALL]], Activity.NOTHING),
    ],
)
def test_a_stack_says_what_was_done(stacks, doing):
    assert signs(*stacks).doing[0] == doing


def test_the_innermost_sign_counts_and_no_stack_has_none():
    found = signs([*t.FORWARD, *t.STEP])
    assert (found.doing[0], found.doing[NO_STACK]) == (Activity.FORWARD, Activity.NOTHING)


def test_a_forward_inside_a_backward_recomputes():
    found = signs(t.RECOMPUTE, t.BACKWARD, t.FORWARD)
    assert found.recomputes.tolist() == [True, False, False, False]


def test_compiled_code_that_bears_the_name_of_a_forward_recomputes_nothing():
    compiled = [t.NATIVE, frame("forward", "/p/model.py", 41), t.NODE, t.ENGINE]
    found = signs(compiled)
    assert (found.doing[0], bool(found.recomputes[0])) == (Activity.BACKWARD, False)


def test_the_engine_is_seen_where_cpp_frames_are():
    assert signs(t.BACKWARD).sees_engine
    assert not signs(t.python_only(t.FORWARD), t.CALL_BACKWARD).sees_engine
