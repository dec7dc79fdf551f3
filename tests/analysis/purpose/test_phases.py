"""The phase of each allocation, and numbered spans of forwards, backwards and optimizer steps."""

import pytest

from memviz.analysis.purpose.phases import phase_spans, phases
from memviz.trace.model import Phase
from tests.analysis import training as t
from tests.analysis.training import Recording
from tests.real import FOLDER, read_once, requires_real
from tests.traces import frame, trace_of


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


def named(recording: Recording, **more) -> list[tuple[str, int, int]]:
    trace = trace_of(recording.events, **more)
    found = phase_spans(trace, trace.devices[0])
    return [(found.name(span), span.first, span.last) for span in found.spans]


def test_a_step_ends_with_its_optimizer_step():
    events = Recording()
    for _ in range(2):
        events.alloc(1, t.FORWARD).alloc(2, t.BACKWARD).free(1).alloc(3, t.STEP).free(2).free(3)
    assert named(events) == [
        ("forward of step 1", 0, 0),
        ("backward of step 1", 1, 3),
        ("optimizer step of step 1", 4, 8),
        ("forward of step 2", 9, 9),
        ("backward of step 2", 10, 12),
        ("optimizer step of step 2", 13, 17),
    ]


def test_an_optimizer_that_allocates_nothing_is_known_by_torchs_note():
    rows = [
        {"name": "Optimizer.step#SGD.step", "stage": stage, "device": 0, "time_us": at}
        for stage, at in (("START", 25), ("END", 26))
    ]
    events = Recording().alloc(1, t.FORWARD).alloc(2, t.BACKWARD).alloc(3, t.LOSS).alloc(4, t.FORWARD)
    assert [name for name, _, _ in named(events, external_annotations=rows)] == [
        "forward of step 1",
        "backward of step 1",
        "optimizer step of step 1",
        "forward of step 2",
    ]


def test_forwards_alone_are_numbered():
    events = Recording().alloc(1, t.FORWARD).alloc(2, t.LOSS).alloc(3, t.FORWARD)
    assert named(events) == [("forward 1", 0, 1), ("forward 2", 2, 2)]


STACKS = {"F": t.FORWARD, "B": t.BACKWARD, "S": t.STEP, "L": t.LOSS, "-": None}
STEP_1, STEP_2 = ([f"{kind} of step {number}" for kind in ("forward", "backward")] for number in (1, 2))


@pytest.mark.parametrize(
    ("stacks", "names"),
    [
        ("FBFBS", [*STEP_1, *STEP_1, "optimizer step of step 1"]),
        ("FBFB", [*STEP_1, *STEP_2]),
        ("FBBBBFBBBB", STEP_1),
        ("L-", []),
    ],
    ids=[
        *("micro-batches belong to one step", "without an optimizer each backward ends a step"),
        *("a hook within a backward is no forward", "nothing is said where no stack says it"),
    ],
)
def test_phases_follow_the_order_of_the_stacks(stacks, names):
    events = Recording()
    for address, each in enumerate(stacks, 1):
        events.alloc(address, STACKS[each])
    assert [name for name, _, _ in named(events)] == names


@requires_real
def test_a_real_training_has_three_steps_of_three_phases():
    trace = read_once(FOLDER / "train-complete.pickle")
    found = phase_spans(trace, trace.devices[0])
    kinds = ("forward", "backward", "optimizer step")
    assert [found.name(span) for span in found.spans] == [f"{kind} of step {n}" for n in (1, 2, 3) for kind in kinds]
    # The peak: the first allocations of the second backward.
    assert found.name(found.spans[found.around(4506)]) == "backward of step 2"


def directly_called(line: int) -> list:
    """`model.forward(x)`, which calls a layer at this line."""
    return [t.NATIVE, frame("forward", "/p/layer.py", 5), t.CALL, frame("forward", "/p/model.py", line), t.MAIN]


def test_layers_of_a_model_that_is_called_by_its_forward_are_no_forwards():
    events = Recording()
    for _ in range(2):
        for number, line in enumerate((8, 9, 10)):
            events.alloc(number, directly_called(line))
        events.alloc(5, t.LOSS).free(5)
        for number in range(3):
            events.free(number)
    assert [name for name, _, _ in named(events)] == ["forward 1", "forward 2"]


def test_a_criterion_that_is_called_by_itself_is_no_forward():
    inner = frame("forward", f"{t.SITE}/torch/nn/modules/loss.py", 1297)
    criterion = [t.NATIVE, inner, t.CALL, frame("main", "/p/train.py", 51)]
    events = Recording()
    for _ in range(2):
        events.alloc(1, t.FORWARD).alloc(2, criterion).free(2).free(1)
    assert [(name, first) for name, first, _ in named(events)] == [("forward 1", 0), ("forward 2", 6)]


@requires_real
@pytest.mark.parametrize("name", ["forward-bf16.pickle", "forward-fp32.pickle"])
def test_a_real_forward_that_is_called_directly_is_one(name):
    trace = read_once(FOLDER / name)
    assert [span.kind for span in phase_spans(trace, trace.devices[0]).spans] == ["forward"]


def test_a_model_whose_forward_is_decorated_begins_anew_where_its_lines_do():
    def decorated(line: int) -> list:
        wrapper = frame("wrapper", f"{t.SITE}/transformers/utils/generic.py", 1036)
        return [t.NATIVE, frame("forward", "/p/layer.py", 5), t.CALL, frame("forward", "/p/model.py", line), wrapper,
                t.CALL, t.MAIN]  # fmt: skip

    events = Recording()
    for _ in range(3):
        events.alloc(1, decorated(8)).alloc(2, decorated(9)).free(1).free(2)
    assert [name for name, _, _ in named(events)] == ["forward 1", "forward 2", "forward 3"]
