"""The purpose of each allocation, rule by rule. The allocation in question has address 1."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.purpose.activity import Activity, StackSigns, stack_signs
from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.evidence import freed_like
from memviz.analysis.purpose.phases import phase_spans, phases
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.analysis.purpose.rules import CUBLAS_WORKSPACE_BYTES, LAST_RULES, RULES
from memviz.analysis.timeline import timeline
from memviz.trace.model import NO_STACK, Category, Labels, Phase, Trace
from memviz.trace.reserved import HOPPER_WORKSPACE_BYTES
from tests.analysis import training as t
from tests.analysis.training import Recording
from tests.real import FOLDER, read_once, requires_real
from tests.traces import alloc, block, frame, free, ranges, segment, trace_of


def judged(trace: Trace, address: int = 1) -> tuple[Category, Reason]:
    """Return category and reason of the first allocation at this address."""
    device = trace.devices[0]
    row = int(np.flatnonzero(lifetimes(device).address == address)[0])
    found = categories(trace, device)
    return Category(found.category[row]), Reason(found.reason[row])


def of(recording: Recording, **more) -> tuple[Category, Reason]:
    return judged(trace_of(recording.events, **more))


def made(stack, size: int = 100) -> Recording:
    return Recording().alloc(1, stack, size)


CACHE = [t.NATIVE, frame("update", "/p/site-packages/transformers/cache_utils.py", 9), *t.FORWARD[1:]]
STATES = [t.NATIVE, frame("_init_state", "/p/optimizers/lion.py", 9), t.MAIN]
BATCH = [t.NATIVE, frame("get_batch", "/p/data.py", 9), t.MAIN]
WEIGHTS = [t.NATIVE, frame("load_weights", "/p/engine.py", 9), t.MAIN]
GATHER = [t.NATIVE, frame("all_gather_into_tensor", f"{t.SITE}/torch/distributed/distributed_c10d.py", 9), t.MAIN]
INNER = [t.NATIVE, frame("forward", "/p/inner.py", 5), t.CALL, frame("forward", "/p/model.py", 14), t.CALL, t.MAIN]
AFTER = [t.NATIVE, frame("forward", "/p/model.py", 15), t.CALL, t.MAIN]

CAST = [t.NATIVE, frame("at::autocast::cached_cast(c10::ScalarType, at::Tensor const&, c10::DeviceType)", "??", 0)]
CAST += t.FORWARD[1:]

CASES = {
    Reason.WORKSPACE: made(t.WORKSPACE),
    Reason.WORKSPACE_SIZE: made(t.LOSS, CUBLAS_WORKSPACE_BYTES),
    Reason.AUTOCAST_KEPT: Recording().alloc(9, t.MOVE, 200).alloc(1, CAST).alloc(2, AFTER).alloc(3, t.BACKWARD).free(1),
    Reason.ZERO_GRAD: made(t.BACKWARD).free(1, [frame("zero_grad", t.OPTIMIZER, 900), t.MAIN]).alloc(2, t.FORWARD),
    Reason.BUILD_KEPT: made(t.MOVE).alloc(2, t.FORWARD),
    Reason.BUILD_FREED: made(t.MOVE).free(1).alloc(2, t.FORWARD),
    Reason.OPTIMIZER_BUILD_KEPT: made([frame("load_state_dict", t.OPTIMIZER)]).alloc(2, t.STEP),
    Reason.OPTIMIZER_BUILD_FREED: made([frame("load_state_dict", t.OPTIMIZER)]).free(1).alloc(2, t.STEP),
    Reason.STEP_KEPT: made(t.STEP).alloc(2, t.FORWARD),
    Reason.STEP_FREED: made(t.STEP).free(1).alloc(2, t.FORWARD),
    Reason.STEP_CUT_OFF: made(t.STEP),
    Reason.RECOMPUTED: made(t.RECOMPUTE).alloc(2, t.BACKWARD).free(1),
    Reason.ACCUMULATED: made(t.ACCUMULATE),
    Reason.BACKWARD_KEPT: made(t.BACKWARD).alloc(2, t.STEP),
    Reason.BACKWARD_FREED: made(t.BACKWARD).free(1).alloc(2, t.STEP),
    Reason.BACKWARD_CUT_OFF: made(t.BACKWARD),
    Reason.CALL_FREED: made(t.FORWARD).free(1).alloc(2, AFTER),
    Reason.OUTLIVES_BACKWARD: made(t.FORWARD).alloc(2, t.BACKWARD).alloc(3, t.STEP).free(1),
    Reason.FORWARD_OUTPUT: made(t.FORWARD).alloc(2, t.LOSS).free(1),
    Reason.FORWARD_KEPT: made(t.FORWARD).alloc(2, t.BACKWARD).free(1),
    Reason.HANDED_ON: made(INNER)
    .alloc(2, AFTER)
    .free(1)
    .alloc(3, [*AFTER[:1], frame("forward", "/p/model.py", 16), *AFTER[2:]]),
    Reason.FORWARD_ONLY_KEPT: made(t.FORWARD).alloc(2, AFTER).alloc(3, t.LOSS).free(1).free(2),
    Reason.BACKWARD_USED: made(t.LOSS).alloc(2, t.BACKWARD).free(1).alloc(3, t.STEP),
    Reason.GIVEN: made(t.LOSS).alloc(2, t.FORWARD).free(1).alloc(3, t.FORWARD),
    Reason.LOOSE_RESULT: made(t.LOSS).alloc(2, t.STEP).free(1),
    Reason.KEPT_RESULT: Recording().alloc(2, t.FORWARD).alloc(1, t.LOSS),
    Reason.NO_STACK: Recording().alloc(2, t.FORWARD).alloc(1, None),
}
"""A recording for each reason, which applies to the allocation at address 1."""


@pytest.mark.parametrize("reason", CASES, ids=lambda reason: reason.name)
def test_each_rule_has_its_case(reason):
    expected = next(rule.category for rule in (*RULES, *LAST_RULES) if rule.reason is reason)
    assert of(CASES[reason]) == (expected, reason)


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        (CACHE, Category.KV_CACHE),
        (STATES, Category.OPTIMIZER_STATE),
        (BATCH, Category.INPUT),
        (WEIGHTS, Category.PARAMETER),
        (GATHER, Category.COLLECTIVE),
        ([t.NATIVE, frame("c10d::Reducer::initialize_buckets(int)", "??", 0), t.MAIN], Category.COLLECTIVE),
    ],
)
def test_a_name_in_the_stack_tells_where_nothing_else_does(stack, category):
    recording = made(stack).alloc(2, t.OTHER_FORWARD).alloc(3, t.LOSS)
    assert of(recording) == (category, Reason.NAMED)


FORWARD = t.python_only(t.FORWARD)


def test_with_python_frames_alone_empty_stacks_are_told_by_what_follows():
    kept = Recording().alloc(9, t.CALL_BACKWARD).alloc(1, None).alloc(2, FORWARD)
    freed = Recording().alloc(9, t.CALL_BACKWARD).alloc(1, None).free(1).alloc(2, FORWARD)
    assert of(kept) == (Category.GRADIENT, Reason.SILENT_BACKWARD_KEPT)
    assert of(freed) == (Category.TEMPORARY, Reason.SILENT_BACKWARD_FREED)


def test_every_rule_has_a_test_here():
    elsewhere = {
        Reason.SILENT_BACKWARD_KEPT,
        Reason.SILENT_BACKWARD_FREED,
        Reason.NAMED,
        Reason.GRAPH,
        Reason.FORWARD_KEPT_LONGER,
        Reason.KEPT_BETWEEN,
        Reason.CUT_OFF,
        Reason.UNMARKED,
    }
    assert {rule.reason for rule in (*RULES, *LAST_RULES)} == set(CASES) | elsewhere


def test_what_the_end_cut_off_follows_others_of_its_stack_but_is_no_temporary():
    earlier = Recording().alloc(9, t.FORWARD).alloc(8, t.BACKWARD).free(9).alloc(7, t.STEP)
    assert of(earlier.alloc(1, t.FORWARD)) == (Category.ACTIVATION, Reason.SAME_STACK)
    earlier = Recording().alloc(9, t.BACKWARD).free(9).alloc(7, t.STEP)
    assert of(earlier.alloc(1, t.BACKWARD)) == (Category.GRADIENT, Reason.BACKWARD_CUT_OFF)


def hand_written_optimizer() -> Recording:
    """`p.data = ...` lets the parameter go, `m = ...` the state; both make new ones every step."""

    def line(number: int) -> list:
        return [t.NATIVE, frame("step", "/p/optimizer.py", number), t.WRAPPER, t.MAIN]

    made_by = [frame("__init__", "/p/model.py", 5), t.MAIN], [frame("__init__", "/p/optimizer.py", 6), t.MAIN]
    events = Recording().alloc(20, made_by[0]).alloc(21, made_by[1]).alloc(9, t.FORWARD)
    events.alloc(1, line(7)).free(20, line(7)).alloc(2, line(8)).free(21, line(8)).alloc(10, t.FORWARD)
    return events.alloc(3, line(7)).free(1, line(7)).alloc(4, line(8)).free(2, line(8)).alloc(11, t.FORWARD)


def test_blocks_are_what_those_freed_at_the_same_place_were():
    trace = trace_of(hand_written_optimizer().events)
    assert judged(trace, 1) == judged(trace, 3) == (Category.PARAMETER, Reason.REPLACED)
    assert judged(trace, 2) == judged(trace, 4) == (Category.OPTIMIZER_STATE, Reason.STEP_KEPT)


def test_a_recorded_end_or_start_of_a_step_tells_what_is_over():
    rows = [
        {"name": "Optimizer.step#Adam.step", "stage": s, "device": 0, "time_us": at}
        for s, at in (("START", 5), ("END", 99))
    ]
    assert of(made(t.STEP), external_annotations=rows) == (Category.OPTIMIZER_STATE, Reason.STEP_KEPT)
    assert of(made(t.STEP)) == (Category.OPTIMIZER_STATE, Reason.STEP_CUT_OFF)
    rows = [{"name": "Optimizer.step#Adam.step", "stage": "START", "device": 0, "time_us": 99}]
    assert of(made(t.BACKWARD), external_annotations=rows) == (Category.GRADIENT, Reason.BACKWARD_KEPT)


def in_model(line: int, inner: int) -> list:
    """A module that a model calls at this line."""
    called = [frame("forward", "/p/layer.py", inner), t.CALL, frame("forward", "/p/model.py", line)]
    return [t.NATIVE, *called, t.CALL, t.MAIN]


def test_a_temporary_dies_within_the_call_that_made_it_and_what_is_handed_on_does_not():
    events = Recording().alloc(1, in_model(8, 5)).free(1).alloc(2, in_model(8, 6)).alloc(3, in_model(9, 5)).free(2)
    events.alloc(4, in_model(10, 5)).free(3, in_model(10, 5))
    trace = trace_of(events.alloc(5, t.LOSS).free(4).events)
    assert [judged(trace, address)[1] for address in (1, 2, 3)] == [
        Reason.CALL_FREED,
        Reason.HANDED_ON,
        Reason.HANDED_ON,
    ]


def test_the_same_layer_called_again_is_another_call():
    events = Recording().alloc(1, in_model(8, 5)).alloc(2, in_model(8, 6)).alloc(3, in_model(8, 5)).free(1)
    trace = trace_of(events.alloc(4, in_model(8, 6)).alloc(5, in_model(9, 1)).free(2).events)
    assert judged(trace, 1) == (Category.ACTIVATION, Reason.HANDED_ON)


def test_forwards_one_after_the_other_are_told_apart_where_the_model_begins_anew():
    events = Recording().alloc(1, in_model(8, 5)).alloc(2, in_model(9, 5)).free(1).alloc(3, in_model(8, 5)).free(2)
    trace = trace_of(events.alloc(4, in_model(9, 5)).free(3).free(4).alloc(5, t.LOSS).events)
    assert [judged(trace, address)[1] for address in (2, 4)] == [Reason.FORWARD_OUTPUT, Reason.FORWARD_OUTPUT]


def decoded(tokens: int) -> Recording:
    """Record decoding: each forward makes the keys of two layers a token longer and frees the old ones."""
    events = Recording()
    for token in range(tokens):
        for layer in (8, 9):
            events.alloc(2 * token + layer, in_model(layer, 5), size=100 * (token + 1))
            events.alloc(999, in_model(layer, 6)).free(999, in_model(layer, 6))
            if token:
                events.free(2 * token - 2 + layer, in_model(layer, 7))
        events.alloc(990, in_model(10, 5)).alloc(991, t.LOSS).free(991).free(990)
    return events


def test_what_is_replaced_by_something_longer_in_each_forward_is_a_cache():
    trace = trace_of(decoded(5).events)
    assert judged(trace, 10) == judged(trace, 13) == (Category.KV_CACHE, Reason.KEPT_BETWEEN)


def test_what_each_forward_leaves_behind_is_no_cache_without_growth():
    """A list of hidden states, one a layer, of batches that differ in length."""
    events = Recording()
    for batch, size in enumerate((300, 200, 400, 100)):
        for layer in (8, 9):
            events.alloc(2 * batch + layer, in_model(layer, 5), size=size)
            events.alloc(999, in_model(layer, 6)).free(999, in_model(layer, 6))
            if batch:
                events.free(2 * batch - 2 + layer, in_model(layer, 7))
        events.alloc(990, in_model(10, 5)).alloc(991, t.LOSS).free(991).free(990)
    trace = trace_of(events.events)
    assert not (categories(trace, trace.devices[0]).category == Category.KV_CACHE).any()


def test_casts_of_what_is_no_weight_are_activations():
    # More casts than there are weights of twice their size.
    events = Recording().alloc(9, t.MOVE, 200).alloc(1, CAST).alloc(2, CAST).alloc(3, AFTER).alloc(4, t.BACKWARD)
    trace = trace_of(events.free(1).free(2).events)
    assert judged(trace, 1) == judged(trace, 2) == (Category.ACTIVATION, Reason.FORWARD_KEPT)
    # A cast of what the forward made itself.
    events = Recording().alloc(9, t.FORWARD, 200).alloc(1, CAST).alloc(2, AFTER).alloc(3, t.BACKWARD).free(1).free(9)
    assert of(events) == (Category.ACTIVATION, Reason.FORWARD_KEPT)


@pytest.mark.parametrize(
    ("count", "category"), [(1, Category.WORKSPACE), (2, Category.WORKSPACE), (8, Category.PARAMETER)]
)
def test_few_blocks_of_the_size_of_hoppers_workspace_are_no_weights(count, category):
    size = HOPPER_WORKSPACE_BYTES
    blocks = [block(size * place, size, size) for place in range(count)]
    blocks += [block(size * count + 512 * place, 512, 500) for place in range(12)]
    trace = trace_of(Recording().alloc(1 << 40, t.python_only(t.FORWARD)).events, [segment(0, 10 * size, blocks)])
    assert [judged(trace, size * place)[0] for place in range(count)] == count * [category]
    assert judged(trace, size * count) == (Category.PARAMETER, Reason.BEFORE_ONLY_WEIGHTS)


COPY = [t.NATIVE, frame("average", "/p/train.py", 20), t.MAIN]


def weights_and(*sizes: int) -> Trace:
    events = Recording()
    for address, size in enumerate((500, 20, 300)):
        events.alloc(address, t.MOVE, size)
    for address, size in enumerate(sizes):
        events.alloc(10 + address, COPY, size)
    return trace_of(events.alloc(90, t.FORWARD).alloc(91, t.BACKWARD).free(90).alloc(92, t.STEP).events)


def test_a_second_copy_of_all_weights_is_neither_input_nor_parameter():
    trace, inputs = weights_and(500, 20, 300), weights_and(500, 20, 301)
    assert [judged(trace, 10 + place) for place in range(3)] == 3 * [(Category.WEIGHT_COPIES, Reason.WEIGHTS_AGAIN)]
    assert judged(trace, 0) == (Category.PARAMETER, Reason.BUILD_KEPT)
    assert [judged(inputs, 10 + place)[0] for place in range(3)] == 3 * [Category.INPUT]


def test_as_many_weights_as_gradients_and_the_rest_is_the_optimizers():
    """Three of each size from before the recording; the backward makes one gradient of each."""
    sizes = [401 + i for i in range(4)]
    blocks = [block(512 * place, 512, sizes[place % 4]) for place in range(12)]
    events = Recording().alloc(90_000, t.FORWARD).alloc(90_001, t.BACKWARD).free(90_000)
    for i, size in enumerate(sizes):
        events.alloc(91_000 + i, t.BACKWARD, size)
    events.alloc(92_000, t.STEP).free(92_000)
    for i in range(4):
        events.free(91_000 + i, [frame("zero_grad", t.OPTIMIZER, 900), t.MAIN])
    trace = trace_of(events.alloc(93_000, t.FORWARD).events, [segment(0, 6144, blocks)])
    found = Counter(judged(trace, 512 * place) for place in range(12))
    assert found == {
        (Category.PARAMETER, Reason.BEFORE_LIKE_GRADIENTS): 4,
        (Category.OPTIMIZER_STATE, Reason.BEFORE_MORE_OF_IT): 8,
    }


def test_a_forward_alone_makes_what_was_there_before_and_stays_its_weights():
    blocks = [block(512 * place, 512, 500) for place in range(12)]
    trace = trace_of(Recording().alloc(99_999, t.FORWARD).events, [segment(0, 6144, blocks)])
    assert judged(trace, 512) == (Category.PARAMETER, Reason.BEFORE_ONLY_WEIGHTS)


def test_metadata_of_the_program_comes_first():
    events = made(t.FORWARD).alloc(2, t.BACKWARD).free(1).events
    events[0]["user_metadata"] = "kv_cache layer 3"
    trace = trace_of(events)
    assert judged(trace) == (Category.KV_CACHE, Reason.METADATA)
    assert categories(trace, trace.devices[0]).certainty[0] == Certainty.STATED


def test_a_range_that_a_program_names_tells_of_what_nothing_else_does():
    events = made(t.LOSS).alloc(2, t.FORWARD).events
    trace = trace_of(events, external_annotations=ranges(("kv cache setup", 5, 15)))
    assert judged(trace) == (Category.KV_CACHE, Reason.ANNOTATED)
    assert categories(trace, trace.devices[0]).certainty[0] == Certainty.PROBABLE


def without_stacks_at_all(steps: int) -> Recording:
    """Eight weights; each step climbs by eight activations, comes down, and leaves eight gradients until the next."""
    events = Recording()
    for i in range(8):
        events.alloc(i + 1, None, 1000 + i)
    for step in range(steps):
        for i in range(8):
            events.alloc(100 + i, None, 50_000)
        for i in reversed(range(8)):
            events.alloc(300, None, 70).free(300).alloc(200 + i, None, 1000 + i).free(100 + i)
        if not step:
            for i in range(16):
                events.alloc(400 + i, None, 1000 + i // 2)
        for i in range(8):
            events.free(200 + i)
    return events


def test_without_stacks_sizes_and_order_tell():
    trace = trace_of(without_stacks_at_all(3).events)
    assert [judged(trace, address)[0] for address in (1, 8, 100, 107, 200, 207, 300, 400, 415)] == [
        *[Category.PARAMETER] * 2,
        *[Category.ACTIVATION] * 2,
        *[Category.GRADIENT] * 2,
        Category.TEMPORARY,
        *[Category.OPTIMIZER_STATE] * 2,
    ]
    assert not categories(trace, trace.devices[0]).sure.any()


def test_a_block_in_the_final_state_may_be_told_by_its_stack_alone():
    trace = trace_of([], [segment(0, 512, [block(1, 100, 100, frames=t.MOVE), block(200, 100, 100, frames=t.FORWARD)])])
    assert judged(trace, 1) == (Category.PARAMETER, Reason.BUILD_KEPT)
    assert judged(trace, 200) == (Category.ACTIVATION, Reason.FORWARD_ONLY_KEPT)


def labels(count: int, category: Category) -> Labels:
    return Labels(np.full(count, category, np.uint8), np.zeros(count, np.int32), np.zeros(count, np.uint8))


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (Category.OUTPUT, (Category.OUTPUT, Reason.RECORDED)),
        (Category.UNKNOWN, (Category.ACTIVATION, Reason.FORWARD_KEPT)),
    ],
)
def test_recorded_labels_come_before_what_is_inferred(label, expected):
    trace = trace_of(CASES[Reason.FORWARD_KEPT].events)
    device = replace(trace.devices[0], event_labels=labels(len(trace.devices[0].events), label))
    assert judged(replace(trace, devices=(device,))) == expected


def peak_of_real(name: str) -> Counter[str]:
    trace = read_once(FOLDER / name)
    device = trace.devices[0]
    rows, found = live_rows(device, timeline(device).peak_event), Counter[str]()
    for category, size in zip(categories(trace, device).category[rows], lifetimes(device).size[rows], strict=True):
        found[Category(category).label] += int(size)
    return found


@requires_real
def test_a_real_training_peak_is_parameters_twice_their_bytes_in_adams_state_and_activations():
    """The hand-written Adam there allocates all of its tensors in every step."""
    found = peak_of_real("train-complete.pickle")
    assert found["optimizer state"] == 2 * found["parameter"] == 2 * 90_785_792
    assert found["workspace"] == 2 * CUBLAS_WORKSPACE_BYTES
    assert found["unknown"] < 0.001 * found.total()


@requires_real
def test_a_real_late_start_has_as_much_state_twice_as_weights():
    """Its hand-written AdamW makes both states anew in each step; they were there before the recording."""
    found = peak_of_real("train-late-start.pickle")
    assert found["unknown"] == 0
    assert found["optimizer state"] == pytest.approx(2 * found["parameter"], rel=0.02)
    assert found["activation"] / found.total() == pytest.approx(0.50, abs=0.01)


@requires_real
@pytest.mark.parametrize(
    ("name", "layers", "of_layer", "head"),
    [
        ("forward-bf16.pickle", 12, (4 * [1_179_648], 3 * [4_718_592]), 15_360_000),
        ("forward-many-segments.pickle", 48, (4 * [5_120_000], 3 * [20_480_000]), 32_000_000),
        ("train-late-start.pickle", 24, (4 * [2_097_152], 3 * [8_388_608]), 20_480_000),
        ("train-mixed-precision.pickle", 4, (4 * [524_288], 3 * [1_376_256]), 10_240_000),
    ],
)
def test_every_weight_of_a_real_transformer_has_one_autocast_copy_at_the_peak(name, layers, of_layer, head):
    """Four attention matrices and three of the feed-forward in each layer, and the head."""
    trace = read_once(FOLDER / name)
    device = trace.devices[0]
    rows = live_rows(device, timeline(device).peak_event)
    is_copy = categories(trace, device).category[rows] == Category.AUTOCAST_WEIGHT_COPIES
    copies = lifetimes(device).size[rows[is_copy]]
    assert sorted(copies.tolist()) == sorted([*layers * sum(of_layer, []), head])


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
    rows = ranges(("Optimizer.step#SGD.step", 25, 26))
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


FIRST, NEW, GONE, ELSEWHERE = (frame(name) for name in ("first", "new", "gone", "elsewhere"))
P, S, U = Category.PARAMETER, Category.OPTIMIZER_STATE, Category.UNKNOWN


@pytest.mark.parametrize(
    ("first", "new", "category"),
    [(GONE, GONE, P), (GONE, ELSEWHERE, U), (FIRST, NEW, U), (NEW, NEW, P)],
    ids=["same place", "another place", "frees repeat their allocs", "line of the alloc"],
)
def test_blocks_freed_where_the_first_were_are_alike(first, new, category):
    events = [alloc(1, 5, frames=[FIRST]), alloc(2, 5, frames=[NEW]), free(1, 5, frames=[first])]
    device = trace_of([*events, free(2, 5, frames=[new])]).devices[0]
    rows = np.array([0]), np.array([1])
    assert Category(freed_like(device, np.array([P, S], dtype=np.uint8), *rows)[0]) is category
