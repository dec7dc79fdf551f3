from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.lifetimes import lifetimes
from memviz.trace.reserved import CUBLAS_WORKSPACE_BYTES
from tests.analysis.findings.steps import Loop, MiB, of_kind
from tests.analysis.training import CALL, LOSS, MAIN, NATIVE, STEP
from tests.facts import missing
from tests.traces import alloc, frame, trace_of

KEPT = 60


def test_what_each_step_adds_is_told_by_its_line_and_how_much_a_step():
    loop = Loop()
    for step in range(4):
        loop.forward().make(KEPT + step, 5, LOSS).backward().step().without_gradient()
    trace = loop.trace()
    (finding,) = of_kind(trace, FindingKind.GROWING)
    assert finding.bytes == 15 * MiB
    assert finding.site == "train.py:30 loss"
    assert missing(finding.sentence, "train.py:30 loss", "grows by 5.00 MiB per step", "15.0 MiB in 3 steps") == []
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [KEPT, KEPT + 1, KEPT + 2]


def test_unequal_steps_are_told_from_the_least_to_the_most():
    loop = Loop()
    for step in range(3):
        loop.forward().make(KEPT + step, 5 + step, LOSS).backward().step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.GROWING)
    assert finding.bytes == 11 * MiB
    assert missing(finding.sentence, "5.00 MiB", "6.00 MiB") == []


def test_optimizer_state_that_comes_with_the_first_step_does_not_grow():
    loop = Loop().forward().backward().make(KEPT, 200, STEP).step().without_gradient()
    loop.whole().whole().whole()
    assert of_kind(loop.trace(), FindingKind.GROWING) == []


def test_a_workspace_beside_a_number_that_is_kept_does_not_grow():
    loop = Loop()
    for step in range(4):
        loop.events.append(alloc(KEPT + step, 4, frames=LOSS))
        if step == 1:
            loop.events.append(alloc(KEPT + 9, CUBLAS_WORKSPACE_BYTES, frames=LOSS))
        loop.whole()
    assert of_kind(loop.trace(), FindingKind.GROWING) == []


def test_what_is_let_go_every_other_step_does_not_grow():
    loop = Loop()
    for step in range(5):
        loop.forward().make(KEPT, 5, LOSS).backward().step().without_gradient()
        if step % 2:
            loop.end(KEPT, 5).end(KEPT + 1, 5)
        else:
            loop.end(KEPT, 5).make(KEPT, 5, LOSS).end(KEPT, 5).make(KEPT + 1, 5, LOSS)
    assert of_kind(loop.trace(), FindingKind.GROWING) == []


def test_two_steps_are_too_few_to_say():
    loop = Loop()
    for step in range(2):
        loop.forward().make(KEPT + step, 5, LOSS).backward().step().without_gradient()
    assert of_kind(loop.trace(), FindingKind.GROWING) == []


def test_what_takes_the_place_of_what_was_there_before_the_recording_does_not_grow():
    """Buffers that every step makes anew: the old ones have no stack, since their allocs were not recorded."""
    loop = Loop()
    for step in range(4):
        loop.forward()
        for number in range(4):
            # One more of them is made anew in each step.
            if number <= step:
                loop.end(KEPT + number, 5).make(KEPT + number, 5, LOSS)
        loop.backward().step().without_gradient()
    assert of_kind(loop.trace(), FindingKind.GROWING) == []


def test_a_step_that_ended_before_the_first_event_is_no_moment_between_steps():
    """The recording begins in the middle of the next one."""
    loop = Loop(has_weight=False)
    for step in range(2):
        loop.make(KEPT + 2 * step, 5, LOSS, time_us=20 + 100 * step).make(
            1 + KEPT + 2 * step, 1, STEP, time_us=90 + 100 * step
        )
    ends = [10, 100, 200]
    marks = [
        {"name": f"ProfilerStep#{number}", "stage": stage, "time_us": time, "device": 0}
        for number, end in enumerate(ends)
        for stage, time in (("START", end - 9 if number == 0 else ends[number - 1] + 1), ("END", end))
    ]
    trace = trace_of(loop.events, external_annotations=marks)
    assert of_kind(trace, FindingKind.GROWING) == []


def test_graphs_that_a_list_of_losses_keeps_are_one_finding():
    loop, places = Loop(), range(6)
    layers = [[NATIVE, frame("forward", "/p/model.py", 20 + place), CALL, MAIN] for place in places]
    for step in range(4):
        loop.forward()
        for place in places:
            loop.make(1000 * (step + 1) + place, 5 + place, layers[place])
        loop.make(1000 * (step + 1) + 500, 3, LOSS).backward().step().without_gradient()
    found = of_kind(loop.trace(), FindingKind.GROWING)
    assert [finding.bytes for finding in found] == [3 * sum(5 + place for place in places) * MiB, 3 * 3 * MiB]
    assert missing(found[0].sentence, "model.py:25", "6 places") == []
