"""What each allocation is for, rule by rule. The allocation in question has address 1."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.live import live_rows
from memviz.analysis.purpose.categories import CUBLAS_WORKSPACE_BYTES, REASON_TEXTS, RULES, Reason, categories
from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.trace.model import Category, Labels, Trace
from tests.analysis import training as t
from tests.analysis.training import Recording
from tests.real import FOLDER, requires_real
from tests.traces import block, frame, segment, trace_of


def judged(trace: Trace, address: int = 1) -> tuple[Category, Reason]:
    """Of the first allocation at this address."""
    device = trace.devices[0]
    row = int(np.flatnonzero(lifetimes(device).address == address)[0])
    found = categories(trace, device)
    return Category(found.category[row]), Reason(found.reason[row])


def of(recording: Recording, **more) -> tuple[Category, Reason]:
    return judged(trace_of(recording.events, **more))


def made(stack, size: int = 100) -> Recording:
    return Recording().alloc(1, stack, size)


CASES = {
    Reason.WORKSPACE: made(t.WORKSPACE),
    Reason.WORKSPACE_SIZE: made(t.LOSS, CUBLAS_WORKSPACE_BYTES),
    Reason.BUILD_KEPT: made(t.MOVE).alloc(2, t.FORWARD),
    Reason.BUILD_FREED: made(t.MOVE).free(1).alloc(2, t.FORWARD),
    Reason.OPTIMIZER_BUILD_KEPT: made([frame("load_state_dict", t.OPTIMIZER)]).alloc(2, t.STEP),
    Reason.OPTIMIZER_BUILD_FREED: made([frame("load_state_dict", t.OPTIMIZER)]).free(1).alloc(2, t.STEP),
    Reason.STEP_KEPT: made(t.STEP).alloc(2, t.FORWARD),
    Reason.STEP_FREED: made(t.STEP).free(1).alloc(2, t.FORWARD),
    Reason.RECOMPUTED: made(t.RECOMPUTE).free(1),
    Reason.ACCUMULATED: made(t.ACCUMULATE),
    Reason.BACKWARD_KEPT: made(t.BACKWARD).alloc(2, t.STEP),
    Reason.BACKWARD_FREED: made(t.BACKWARD).free(1).alloc(2, t.STEP),
    Reason.FORWARD_KEPT: made(t.FORWARD).alloc(2, t.BACKWARD).free(1),
    Reason.FORWARD_FREED: made(t.FORWARD).free(1).alloc(2, t.BACKWARD),
    Reason.FORWARD_ONLY_FREED: made(t.FORWARD).free(1).alloc(2, t.OTHER_FORWARD),
    Reason.BACKWARD_USED: made(t.LOSS).alloc(2, t.BACKWARD).free(1).alloc(3, t.STEP),
    Reason.NO_STACK: made(None).alloc(2, t.FORWARD),
    Reason.TOO_LONG: made(t.FORWARD).alloc(2, t.BACKWARD).alloc(3, t.FORWARD).alloc(4, t.BACKWARD),
    Reason.FORWARD_ONLY_KEPT: made(t.FORWARD).alloc(2, t.OTHER_FORWARD).free(1),
    Reason.CUT_OFF: made(t.BACKWARD),
    Reason.UNMARKED: made(t.LOSS).free(1),
}


@pytest.mark.parametrize("reason", CASES, ids=lambda reason: reason.name)
def test_each_rule_has_its_case(reason):
    expected = next(rule.category for rule in RULES if rule.reason is reason)
    assert of(CASES[reason]) == (expected, reason)


def test_what_lies_between_two_pieces_of_work_is_temporary():
    events = Recording().alloc(9, t.FORWARD).alloc(1, t.LOSS).free(1).alloc(2, t.BACKWARD)
    assert of(events) == (Category.TEMPORARY, Reason.IN_BETWEEN)


FORWARD = t.python_only(t.FORWARD)


def test_with_python_frames_alone_empty_stacks_are_told_by_what_follows():
    kept = Recording().alloc(9, t.CALL_BACKWARD).alloc(1, None).alloc(2, FORWARD)
    freed = Recording().alloc(9, t.CALL_BACKWARD).alloc(1, None).free(1).alloc(2, FORWARD)
    assert of(kept) == (Category.GRADIENT, Reason.SILENT_BACKWARD_KEPT)
    assert of(freed) == (Category.TEMPORARY, Reason.SILENT_BACKWARD_FREED)


def test_every_rule_has_a_test_here():
    elsewhere = {Reason.IN_BETWEEN, Reason.SILENT_BACKWARD_KEPT, Reason.SILENT_BACKWARD_FREED}
    assert {rule.reason for rule in RULES} == set(CASES) | elsewhere


def test_every_reason_has_words():
    assert set(REASON_TEXTS) == set(Reason) - {Reason.NONE}


def test_what_the_end_cut_off_follows_others_of_its_stack():
    earlier = Recording().alloc(9, t.FORWARD).alloc(8, t.BACKWARD).free(9).alloc(7, t.STEP)
    assert of(earlier.alloc(1, t.FORWARD)) == (Category.ACTIVATION, Reason.SAME_STACK)


def test_what_the_end_cut_off_stays_unknown_where_others_disagree():
    earlier = Recording().alloc(9, t.FORWARD).alloc(6, t.FORWARD).free(6).alloc(8, t.BACKWARD).free(9)
    assert of(earlier.alloc(1, t.FORWARD)) == (Category.UNKNOWN, Reason.CUT_OFF)


def hand_written_optimizer() -> Recording:
    """`p.data = ...` lets the parameter go, `m = ...` the state; both make new ones every step."""

    def line(number: int) -> list:
        return [t.NATIVE, frame("step", "/p/optimizer.py", number), t.WRAPPER, t.MAIN]

    made_by = [frame("__init__", "/p/model.py", 5), t.MAIN], [frame("__init__", "/p/optimizer.py", 6), t.MAIN]
    events = Recording().alloc(20, made_by[0]).alloc(21, made_by[1]).alloc(9, t.FORWARD)
    events.alloc(1, line(7)).free(20, line(7)).alloc(2, line(8)).free(21, line(8)).alloc(10, t.FORWARD)
    return events.alloc(3, line(7)).free(1, line(7)).alloc(4, line(8)).free(2, line(8)).alloc(11, t.FORWARD)


@pytest.mark.parametrize("address", [1, 3])
def test_a_new_parameter_is_freed_where_the_first_ones_were(address):
    trace = trace_of(hand_written_optimizer().events)
    assert judged(trace, address) == (Category.PARAMETER, Reason.REPLACED)


@pytest.mark.parametrize("address", [2, 4])
def test_new_state_stays_state(address):
    assert judged(trace_of(hand_written_optimizer().events), address) == (Category.OPTIMIZER_STATE, Reason.STEP_KEPT)


def test_a_recorded_end_of_a_step_tells_that_it_is_over():
    rows = [
        {"name": "Optimizer.step#Adam.step", "stage": s, "device": 0, "time_us": at}
        for s, at in (("START", 5), ("END", 99))
    ]
    assert of(made(t.STEP), external_annotations=rows) == (Category.OPTIMIZER_STATE, Reason.STEP_KEPT)
    assert of(made(t.STEP)) == (Category.UNKNOWN, Reason.CUT_OFF)


def test_a_recorded_start_of_a_step_tells_that_the_backward_is_over():
    rows = [{"name": "Optimizer.step#Adam.step", "stage": "START", "device": 0, "time_us": 99}]
    assert of(made(t.BACKWARD), external_annotations=rows) == (Category.GRADIENT, Reason.BACKWARD_KEPT)


def test_a_forward_without_a_backward_is_cut_into_passes_by_its_first_stack():
    two = (
        Recording()
        .alloc(9, t.OTHER_FORWARD)
        .alloc(1, t.FORWARD)
        .alloc(8, t.FORWARD)
        .free(8)
        .alloc(7, t.OTHER_FORWARD)
        .free(1)
    )
    assert of(two.alloc(6, t.FORWARD)) == (Category.UNKNOWN, Reason.FORWARD_ONLY_KEPT)


def test_a_block_in_the_final_state_may_be_told_by_its_stack_alone():
    trace = trace_of([], [segment(0, 512, [block(1, 100, 100, frames=t.MOVE), block(200, 100, 100, frames=t.FORWARD)])])
    assert judged(trace, 1) == (Category.PARAMETER, Reason.BUILD_KEPT)
    assert judged(trace, 200) == (Category.UNKNOWN, Reason.UNMARKED)


def labels(count: int, category: Category) -> Labels:
    return Labels(np.full(count, category, np.uint8), np.zeros(count, np.int32), np.zeros(count, np.uint8))


def test_what_the_run_recorded_is_never_inferred():
    trace = trace_of(CASES[Reason.FORWARD_KEPT].events)
    device = replace(trace.devices[0], event_labels=labels(len(trace.devices[0].events), Category.OUTPUT))
    assert judged(replace(trace, devices=(device,))) == (Category.OUTPUT, Reason.RECORDED)


def test_where_the_run_recorded_nothing_it_is_inferred():
    trace = trace_of(CASES[Reason.FORWARD_KEPT].events)
    device = replace(trace.devices[0], event_labels=labels(len(trace.devices[0].events), Category.UNKNOWN))
    assert judged(replace(trace, devices=(device,))) == (Category.ACTIVATION, Reason.FORWARD_KEPT)


def peak_of_real(name: str) -> Counter[str]:
    trace = load_trace(FOLDER / name)
    device = trace.devices[0]
    rows, found = live_rows(device, timeline(device).peak_event), Counter[str]()
    for category, size in zip(categories(trace, device).category[rows], lifetimes(device).size[rows], strict=True):
        found[Category(category).label] += int(size)
    return found


@requires_real
def test_a_real_training_peak_is_parameters_twice_their_bytes_in_adams_state_and_activations():
    """The hand-written Adam there makes all of its tensors anew every step."""
    found = peak_of_real("train-complete.pickle")
    assert found["optimizer state"] == 2 * found["parameter"] == 2 * 90_785_792
    assert found["workspace"] == 2 * CUBLAS_WORKSPACE_BYTES
    assert found["unknown"] < 0.001 * found.total()


@requires_real
def test_a_real_late_start_leaves_what_has_no_stack_unknown():
    found = peak_of_real("train-late-start.pickle")
    assert found["unknown"] / found.total() == pytest.approx(0.41, abs=0.01)
    assert found["activation"] / found.total() == pytest.approx(0.57, abs=0.01)
