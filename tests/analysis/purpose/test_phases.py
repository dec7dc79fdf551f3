"""In which phase each allocation was made."""

from __future__ import annotations

from memviz.analysis.purpose.phases import phases
from memviz.trace.model import Phase
from tests.analysis import training as t
from tests.analysis.training import Recording
from tests.traces import trace_of


def phases_of(recording: Recording) -> list[Phase]:
    trace = trace_of(recording.events)
    return [Phase(phase) for phase in phases(trace, trace.devices[0])]


def test_the_stack_says_the_phase():
    made = Recording().alloc(1, t.FORWARD).alloc(2, t.BACKWARD).alloc(3, t.STEP).alloc(4, t.LOSS).alloc(5, None)
    assert phases_of(made) == [Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.UNKNOWN, Phase.UNKNOWN]


def test_with_python_frames_alone_empty_stacks_after_a_call_of_backward_belong_to_it():
    forward = t.python_only(t.FORWARD)
    made = Recording().alloc(1, None).alloc(2, forward).alloc(3, None).alloc(4, t.CALL_BACKWARD).alloc(5, None)
    made.alloc(6, None).alloc(7, forward).alloc(8, None)
    unknown, backward = Phase.UNKNOWN, Phase.BACKWARD
    assert phases_of(made) == [unknown, Phase.FORWARD, unknown, backward, backward, backward, Phase.FORWARD, unknown]


def test_with_cpp_frames_an_empty_stack_says_nothing():
    made = Recording().alloc(1, t.BACKWARD).alloc(2, None)
    assert phases_of(made) == [Phase.BACKWARD, Phase.UNKNOWN]
