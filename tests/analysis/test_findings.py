"""Copies of weights, gradients in forwards, wider copies and large temporaries: what shows in what tensors are for."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.actions.proposals import kinds_of, proposal
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.findings.ranking import finding_by_key, findings
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.reasons import Certainty
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import Action, Trace
from memviz.trace.reserved import CUBLAS_WORKSPACE_BYTES
from tests.analysis.replays import sound_traces
from tests.analysis.training import (
    ACCUMULATE,
    BACKWARD,
    BUILD,
    CALL,
    FORWARD,
    GRADIENT,
    HIDDEN,
    LOGITS,
    LOSS,
    MAIN,
    MOVE,
    NATIVE,
    OTHER,
    OTHER_FORWARD,
    RECOMPUTE,
    STEP,
    Loop,
    logits_held_through_the_next_forward,
    of_kind,
)
from tests.facts import missing
from tests.results.made import COUNT, made
from tests.traces import MiB, alloc, block, event, frame, free, ranges, segment, trace_of

CAST = [frame("at::_ops::_to_copy::call(at::Tensor const&)", "??", 0), frame("forward", "/p/model.py", 20), CALL, MAIN]
COPIED = [NATIVE, frame("deepcopy", "/p/average.py", 5), MAIN]
WEIGHT_SIZES = (64, 30, 10, 30, 10)


def _weights(*stacks: list[dict], sizes: tuple[int, ...] = WEIGHT_SIZES) -> Loop:
    loop = Loop(has_weight=False)
    for number, stack in enumerate(stacks):
        for place, size in enumerate(sizes):
            loop.make(1000 * (number + 1) + place, size, stack)
    return loop.whole().whole()


def test_a_second_copy_of_the_weights_is_told_as_probable():
    trace = _weights(MOVE, COPIED).trace()
    (finding,) = of_kind(trace, FindingKind.DUPLICATED_WEIGHTS)
    assert finding.bytes == sum(WEIGHT_SIZES) * MiB
    assert f"allocations of {sum(WEIGHT_SIZES)} MiB together made by average.py:5 deepcopy" in finding.sentence
    assert finding.site == "average.py:5 deepcopy"
    assert finding.certainty is Certainty.PROBABLE
    assert len(finding.rows) == 2 * len(WEIGHT_SIZES)


def test_layers_of_one_network_that_are_alike_are_no_copy():
    assert of_kind(_weights(MOVE, sizes=(30, 10, 20, 30, 10, 20)).trace(), FindingKind.DUPLICATED_WEIGHTS) == []
    assert of_kind(_weights(MOVE, BUILD, sizes=(30, 10)).trace(), FindingKind.DUPLICATED_WEIGHTS) == []
    assert of_kind(_weights(MOVE, BUILD, sizes=(30, 10, 30, 10)).trace(), FindingKind.DUPLICATED_WEIGHTS) == []


def test_gradients_that_outlive_the_step_are_told():
    loop = Loop().whole().forward().backward().step().forward().without_gradient().backward().step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.GRADIENTS_IN_FORWARD)
    assert finding.bytes == 100 * MiB
    assert finding.sentence.startswith("100 MiB of gradients are live during the forward of step 3")


def test_gradients_that_are_added_up_over_forwards_or_let_go_before_are_not_told():
    loop = Loop().whole().forward().backward()
    loop.forward().make(70, 1, BACKWARD).end(70, 1).end(OTHER, 20).end(HIDDEN, 20).step().without_gradient().whole()
    assert of_kind(loop.trace(), FindingKind.GRADIENTS_IN_FORWARD) == []
    assert of_kind(Loop().whole().whole().trace(), FindingKind.GRADIENTS_IN_FORWARD) == []


def _cast(copy_mib: int, stack: list[dict]) -> Loop:
    loop = Loop().forward().make(70, 15, FORWARD).make(71, copy_mib, stack)
    return loop.end(70, 15).end(71, copy_mib).backward().step().without_gradient()


def test_a_copy_in_twice_the_precision_is_told_with_its_source():
    trace = _cast(30, CAST).trace()
    (finding,) = of_kind(trace, FindingKind.WIDER_COPIES)
    assert finding.bytes == 30 * MiB
    assert finding.site == "model.py:20 forward"
    assert finding.certainty is Certainty.PROBABLE
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [70, 71]


def test_what_is_no_wider_copy():
    # Another operator, and another size.
    assert of_kind(_cast(30, FORWARD).trace(), FindingKind.WIDER_COPIES) == []
    assert of_kind(_cast(31, CAST).trace(), FindingKind.WIDER_COPIES) == []
    # A softmax in single precision, and its copy for a product; a block of a quarter is live, too.
    loop = Loop().forward().make(70, 15, FORWARD).make(72, 60, FORWARD).make(71, 30, CAST)
    loop.end(70, 15).end(72, 60).end(71, 30).backward().step().without_gradient()
    assert of_kind(loop.trace(), FindingKind.WIDER_COPIES) == []
    # Without operators: an exp after a cast, or a cat.
    line = [frame("forward", "/p/model.py", 20), CALL, MAIN]
    loop = Loop().forward().make(70, 15, line).make(71, 30, line).end(70, 15).end(71, 30).backward().step()
    assert of_kind(loop.trace(), FindingKind.WIDER_COPIES) == []


def test_a_temporary_that_makes_the_peak_is_told_by_how_much_it_does():
    loop = Loop().forward().make(70, 300, BACKWARD).end(70, 300).backward().step().without_gradient().whole()
    (finding,) = of_kind(loop.trace(), FindingKind.LARGE_TEMPORARY)
    # With it 440 MiB are live; without it the gradient makes 240.
    assert finding.bytes == 200 * MiB
    assert missing(finding.sentence, "temporary of 300 MiB", "MmBackward0 (backward)", "200 MiB lower") == []


def test_of_several_temporaries_the_sentence_names_the_one_that_is_live_at_the_peak():
    loop = Loop().make(70, 300, BACKWARD).end(70, 300).make(71, 300, FORWARD).make(70, 200, BACKWARD).end(70, 200)
    (finding,) = of_kind(loop.trace(), FindingKind.LARGE_TEMPORARY)
    assert finding.sentence.startswith("A temporary of 200 MiB made by MmBackward0 (backward) causes the peak")


def test_what_lives_long_or_makes_no_peak_is_no_large_temporary():
    small = Loop().forward().backward().make(70, 80, BACKWARD).end(70, 80).step().without_gradient().whole()
    assert [finding.bytes for finding in of_kind(small.trace(), FindingKind.LARGE_TEMPORARY)] == [40 * MiB]
    long = Loop().make(70, 300, FORWARD).whole().whole().end(70, 300)
    assert of_kind(long.trace(), FindingKind.LARGE_TEMPORARY) == []


KEPT = 60


def _keeping(*sizes: int) -> Loop:
    """One more block stays after each step."""
    loop = Loop()
    for step, size in enumerate(sizes):
        loop.forward().make(KEPT + step, size, LOSS).backward().step().without_gradient()
    return loop


def test_what_each_step_adds_is_told_by_its_line_and_how_much_a_step():
    trace = _keeping(5, 5, 5, 5).trace()
    (finding,) = of_kind(trace, FindingKind.GROWING)
    assert finding.bytes == 15 * MiB
    assert finding.site == "train.py:30 loss"
    assert missing(finding.sentence, "train.py:30 loss", "grows by 5.00 MiB per step", "15.0 MiB in 3 steps") == []
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [KEPT, KEPT + 1, KEPT + 2]


def test_unequal_steps_are_told_from_the_least_to_the_most_and_two_are_too_few():
    (finding,) = of_kind(_keeping(5, 6, 7).trace(), FindingKind.GROWING)
    assert finding.bytes == 11 * MiB
    assert missing(finding.sentence, "5.00 MiB", "6.00 MiB") == []
    assert of_kind(_keeping(5, 5).trace(), FindingKind.GROWING) == []


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
        loop.make(KEPT + 2 * step, 5, LOSS, time_us=20 + 100 * step)
        loop.make(1 + KEPT + 2 * step, 1, STEP, time_us=90 + 100 * step)
    marks = ranges(("ProfilerStep#0", 1, 10), ("ProfilerStep#1", 11, 100), ("ProfilerStep#2", 101, 200))
    assert of_kind(trace_of(loop.events, external_annotations=marks), FindingKind.GROWING) == []


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


def test_logits_that_the_next_forward_finds_live_are_told_with_their_line():
    trace = logits_held_through_the_next_forward().trace()
    (finding,) = of_kind(trace, FindingKind.KEPT_TOO_LONG)
    rows = lifetimes(trace.devices[0])
    assert finding.bytes == 30 * MiB
    assert finding.site == "train.py:30 loss"
    assert rows.address[finding.rows].tolist() == [LOGITS, LOGITS + 1]
    assert missing(finding.sentence, "30.0 MiB", "step 1", "train.py:30 loss", "next step’s forward") == []


def test_what_ends_with_its_step_or_at_the_start_of_the_next_is_not_kept_too_long():
    loop = Loop().whole()
    loop.forward().make(LOGITS, 30, LOSS).backward().step().without_gradient()
    # Let go after the first allocation of the next forward.
    loop.make(HIDDEN, 20, LOSS).end(LOGITS, 30).end(HIDDEN, 20).whole()
    assert of_kind(loop.trace(), FindingKind.KEPT_TOO_LONG) == []


def test_what_lives_on_for_several_steps_is_no_result_of_the_step_before():
    loop = Loop().forward().make(LOGITS, 30, LOSS).backward().step().without_gradient()
    loop.whole().whole().end(LOGITS, 30)
    assert of_kind(loop.trace(), FindingKind.KEPT_TOO_LONG) == []


@pytest.mark.parametrize("stack", [BACKWARD, ACCUMULATE])
def test_gradients_have_a_finding_of_their_own(stack):
    loop = Loop().whole().forward().backward(stack).step()
    loop.make(HIDDEN, 20, LOSS).make(OTHER, 20, LOSS).without_gradient().end(HIDDEN, 20).end(OTHER, 20).whole()
    assert of_kind(loop.trace(), FindingKind.KEPT_TOO_LONG) == []


def test_a_graph_that_one_name_holds_is_one_finding():
    """Logits keep all activations of their step until the next one makes new logits."""
    loop, places = Loop(), range(8)
    layers = [[NATIVE, frame("forward", "/p/model.py", 20 + place), CALL, MAIN] for place in places]
    for step in range(3):
        for place in places:
            loop.make(1000 * step + place, 10 + place, layers[place])
        loop.make(1000 * step + 500, 30, LOSS)
        if step:
            loop.end(1000 * step - 500, 30)
            for place in places:
                loop.end(1000 * (step - 1) + place, 10 + place)
        loop.make(GRADIENT, 100, ACCUMULATE).step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.KEPT_TOO_LONG)
    assert finding.bytes == (sum(10 + place for place in places) + 30) * MiB
    assert len(finding.rows) == 2 * (len(places) + 1)
    assert missing(finding.sentence, "train.py:30", "9 places") == []


LARGE, AGAIN = 12, 13
TO_COPY = [frame("at::_ops::_to_copy::call(at::Tensor const&)", "??", 0), *FORWARD[1:]]


def test_what_a_backward_lets_go_waits_for_it():
    loop = Loop()
    for _ in range(2):
        loop.forward().make(LARGE, 60, FORWARD).make(GRADIENT, 100, BACKWARD).end(LARGE, 60)
        loop.end(OTHER, 20).end(HIDDEN, 20).step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.ACTIVATIONS)
    assert finding.sentence.endswith("are activations saved for backward.")
    assert finding.bytes == 100 * MiB


def test_a_recording_that_ends_before_its_backward_says_that_it_does_not_reach_it():
    loop = Loop().forward()
    for metadata in loop.events[-2:]:
        metadata["user_metadata"] = "activation"
    trace = loop.trace()
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    assert finding.bytes == 40 * MiB
    assert "backward" in finding.sentence and "recording" in finding.sentence
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [HIDDEN, OTHER]
    # What the forward itself lets go waits for nothing.
    assert of_kind(loop.end(HIDDEN, 20).end(OTHER, 20).trace(), FindingKind.ACTIVATIONS) == []


def trained(forward_and_backward: Callable[[Loop], None]) -> Finding:
    loop = Loop()
    for _ in range(2):
        loop.forward()
        forward_and_backward(loop)
        loop.end(OTHER, 20).end(HIDDEN, 20).step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.ACTIVATIONS)
    return finding


def test_who_checkpoints_already_is_not_told_to():
    def checkpointed(loop: Loop) -> None:
        loop.make(LARGE, 60, FORWARD).make(AGAIN, 5, RECOMPUTE).make(GRADIENT, 100, BACKWARD)
        loop.end(AGAIN, 5).end(LARGE, 60)

    def plain(loop: Loop) -> None:
        loop.make(LARGE, 60, FORWARD).make(GRADIENT, 100, BACKWARD).end(LARGE, 60)

    assert trained(checkpointed).remedy == "Use half precision."
    assert trained(plain).remedy.startswith("Use gradient checkpointing")


def test_who_mixes_precisions_already_is_not_told_to():
    def mixed(loop: Loop) -> None:
        loop.make(LARGE, 60, TO_COPY).make(GRADIENT, 100, BACKWARD).end(LARGE, 60)

    assert trained(mixed).remedy == "Use gradient checkpointing."


COPY = 900


def _spike(steps: int, spike_mib: int) -> Loop:
    """Weights are read twice over before the first step; and what that took serves the steps."""
    loop = Loop(has_weight=False)
    loop.ask("segment_alloc", 1, 100).make(1, 100, BUILD).ask("segment_alloc", COPY * MiB, spike_mib)
    loop.make(COPY * MiB, spike_mib, MOVE).end(COPY * MiB, spike_mib)
    for _ in range(steps):
        loop.whole()
    return loop


def test_a_spike_whose_memory_nothing_uses_later_is_told_with_what_is_unused():
    final = [segment(1, 100 * MiB, [block(1, 100 * MiB)]), segment(COPY * MiB, 500 * MiB, [])]
    trace = _spike(2, 500).trace(final)
    (finding,) = of_kind(trace, FindingKind.SPIKE)
    # Reserved are 600 MiB, and the steps have 240 MiB live at most.
    assert finding.bytes == 360 * MiB
    assert finding.event == 3
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [COPY * MiB]
    assert "360 MiB not used afterwards" in finding.sentence


def test_a_spike_at_the_end_and_steps_of_one_height_are_no_finding():
    loop = Loop().ask("segment_alloc", 1, 900).whole().whole().forward().make(COPY, 500, LOSS).end(COPY, 500).backward()
    assert of_kind(loop.trace(), FindingKind.SPIKE) == []
    assert of_kind(Loop().whole().whole().whole().trace(), FindingKind.SPIKE) == []


def _pinned(pin_lives: bool) -> Loop:
    """A large segment is left with one small block while another large one is used."""
    loop = Loop(has_weight=False)
    loop.ask("segment_alloc", 0, 100).make(0, 10, LOSS).make(10 * MiB, 90, FORWARD).end(10 * MiB, 90)
    if not pin_lives:
        loop.end(0, 10)
    return loop.ask("segment_alloc", 200 * MiB, 120).make(200 * MiB, 120, FORWARD)


def test_a_block_that_pins_a_segment_is_told_with_its_line():
    final = [segment(0, 100 * MiB, [block(0, 10 * MiB)]), segment(200 * MiB, 120 * MiB, [block(200 * MiB, 120 * MiB)])]
    trace = _pinned(True).trace(final)
    (finding,) = of_kind(trace, FindingKind.PINNED_SEGMENTS)
    assert finding.bytes == 90 * MiB
    assert finding.site == "train.py:30 loss"
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [0]
    assert missing(finding.sentence, "90.0 MiB", "1 segment") == []


def test_the_sizes_of_several_pins_are_told_as_their_sum():
    loop = Loop(has_weight=False)
    for place in (0, 200):
        loop.ask("segment_alloc", place * MiB, 100).make(place * MiB, 10, LOSS)
        loop.make((place + 10) * MiB, 90, FORWARD)
    loop.end(10 * MiB, 90).end(210 * MiB, 90)
    loop.ask("segment_alloc", 400 * MiB, 120).make(400 * MiB, 120, FORWARD)
    held = [(0, 100, 10), (200, 100, 10), (400, 120, 120)]
    final = [segment(at * MiB, size * MiB, [block(at * MiB, used * MiB)]) for at, size, used in held]
    (finding,) = of_kind(loop.trace(final), FindingKind.PINNED_SEGMENTS)
    assert missing(finding.sentence, "train.py:30", "2 blocks", "20.0 MiB") == []


def test_a_segment_that_is_free_altogether_is_pinned_by_nothing():
    final = [segment(0, 100 * MiB, []), segment(200 * MiB, 120 * MiB, [block(200 * MiB, 120 * MiB)])]
    assert of_kind(_pinned(False).trace(final), FindingKind.PINNED_SEGMENTS) == []


def test_private_pools_are_told_by_what_they_reserve_and_hold():
    final = [
        segment(0, 100 * MiB, [block(0, 100 * MiB)]),
        segment(200 * MiB, 50 * MiB, [block(200 * MiB, 20 * MiB)], segment_pool_id=(0, 1)),
    ]
    events = Loop(has_weight=False)
    events.make(0, 100, BUILD).make(200 * MiB, 20, FORWARD)
    (finding,) = of_kind(events.trace(final), FindingKind.PRIVATE_POOLS)
    assert finding.bytes == 50 * MiB
    assert "50.0 MiB" in finding.sentence
    assert "20.0 MiB" in finding.sentence
    assert of_kind(trace_of([], final[:1]), FindingKind.PRIVATE_POOLS) == []


def _waiting(waits: bool) -> Loop:
    loop = Loop(has_weight=False)
    loop.make(1, 50, LOSS, time_us=1).ask("free_requested", 1, 50, time_us=2)
    if not waits:
        loop.ask("free_completed", 1, 50, time_us=3)
    loop.ask("segment_alloc", 500 * MiB, 40, time_us=4).make(500 * MiB, 40, FORWARD, time_us=5)
    if waits:
        loop.ask("free_completed", 1, 50, time_us=3002)
    return loop


def test_frees_that_wait_are_told_with_how_long_and_what_was_taken_meanwhile():
    (finding,) = of_kind(_waiting(True).trace(), FindingKind.WAITING_FREES)
    assert finding.bytes == 50 * MiB
    facts = ("train.py:30 loss", "longest 3.00 ms", "50.0 MiB at once", "reserved 40.0 MiB more")
    assert missing(finding.sentence, *facts) == []


def test_frees_that_complete_at_once_wait_for_nothing():
    assert of_kind(_waiting(False).trace(), FindingKind.WAITING_FREES) == []
    # A free is requested and completed in two events; in between it looks like a waiting free.
    loop = Loop(has_weight=False)
    loop.make(1, 50, LOSS).make(2, 800, LOSS).ask("free_requested", 1, 50)
    loop.end(2, 800).ask("free_completed", 1, 50)
    (finding,) = of_kind(loop.trace(), FindingKind.WAITING_FREES)
    assert finding.bytes == 50 * MiB
    assert missing(finding.sentence, "3 events", "50.0 MiB") == []


def test_a_free_that_waits_at_the_end_says_for_how_long():
    loop = Loop(has_weight=False)
    loop.make(1, 50, LOSS).ask("free_requested", 1, 50)
    (finding,) = of_kind(loop.trace(), FindingKind.WAITING_FREES)
    assert missing(finding.sentence, "waited", "another") == []
    (finding,) = of_kind(loop.make(2, 1, LOSS).trace(), FindingKind.WAITING_FREES)
    assert "1 event" in finding.sentence


ASKED = 60


def failed(reserved: int, device_free: int | None, loop: Loop | None = None) -> list:
    """100 MiB of weights and 40 MiB of a forward are live when 60 MiB are requested."""
    loop = Loop().forward() if loop is None else loop
    grown = event("segment_alloc", 0, reserved * MiB)
    more = {} if device_free is None else {"device_free": device_free * MiB}
    return [grown, *loop.events, event("oom", 0, ASKED * MiB, frames=LOSS, **more)]


def test_it_says_how_much_is_missing_and_what_most_is():
    (finding,) = of_kind(trace_of(failed(150, 20)), FindingKind.OUT_OF_MEMORY)
    assert finding.bytes == 30 * MiB
    asked = ("at event 4", "60.0 MiB requested by train.py:30 loss", "140 MiB live", "10.0 MiB reserved but unused")
    most = ("20.0 MiB free", "30.0 MiB less", "parameter, 100 MiB (71 % of live memory)", "train.py:50 main")
    assert missing(finding.sentence, *asked, *most) == []


@pytest.mark.parametrize(
    ("events", "words", "remedy"),
    [
        (failed(190, 20), "Enough memory is free, but not 60.0 MiB in one piece.", "Set expandable_segments:True"),
        (failed(150, None), "Up to 50.0 MiB less must be in use for this request to fit.", "Store the weights"),
        (
            [event("segment_alloc", 0, 2 * MiB), event("oom", 0, 90 * MiB, device_free=MiB)],
            "The request alone is 87.0 MiB larger than all memory the process can get.",
            "Use a smaller batch",
        ),
    ],
    ids=["fragmented", "driver unknown", "larger than the card"],
)
def test_the_missing_bytes_decide_sentence_and_remedy(events, words, remedy):
    (finding,) = of_kind(trace_of(events), FindingKind.OUT_OF_MEMORY)
    assert words in finding.sentence
    assert finding.remedy.startswith(remedy)


def test_activations_are_found_though_the_exception_lets_them_go():
    """The first forward fails, and unwinding it frees all activations."""
    events = [alloc(1, 10 * MiB, frames=BUILD), alloc(HIDDEN, 90 * MiB, frames=FORWARD, user_metadata="activation")]
    events += [alloc(OTHER, 90 * MiB, frames=FORWARD, user_metadata="activation"), event("oom", 0, 90 * MiB)]
    events += [*free(OTHER, 90 * MiB), *free(HIDDEN, 90 * MiB)]
    (finding,) = of_kind(trace_of(events), FindingKind.ACTIVATIONS)
    assert finding.bytes == 180 * MiB


@pytest.mark.parametrize("seed", range(0, COUNT, 4))
def test_every_made_history_with_a_failed_request_has_a_finding(seed):
    trace = made(seed)
    for device in trace.devices:
        kinds = [finding.kind for finding in findings(trace, device)]
        ran_out = bool((device.events.action == Action.OOM).any())
        assert (kinds[:1] == [FindingKind.OUT_OF_MEMORY]) == ran_out
        assert kinds.count(FindingKind.OUT_OF_MEMORY) == ran_out


SIZES = st.integers(1, 1 << 36)


@given(
    requests=st.lists(st.tuples(st.booleans(), SIZES, st.booleans()), max_size=12),
    asked=SIZES,
    device_free=st.none() | st.integers(0, 1 << 37),
    reserved=st.integers(0, 1 << 38),
)
def test_any_history_that_ends_in_a_failed_request_has_a_finding(requests, asked, device_free, reserved):
    events = [event("segment_alloc", 0, reserved)] if reserved else []
    for number, (has_stack, size, is_freed) in enumerate(requests):
        events.append(alloc(number + 1, size, frames=FORWARD if has_stack else []))
        events += free(number + 1, size) if is_freed else []
    more = {} if device_free is None else {"device_free": device_free}
    trace = trace_of([*events, event("oom", 0, asked, **more)])
    found = findings(trace, trace.devices[0])
    assert found[0].kind is FindingKind.OUT_OF_MEMORY
    assert found[0].bytes > 0
    assert found[0].sentence and found[0].remedy


STACKS = [ACCUMULATE, BACKWARD, BUILD, FORWARD, LOSS, OTHER_FORWARD, RECOMPUTE, STEP, []]
PLACES, MOST = 12, 120


def program(seed: int) -> Trace:
    """Allocs and frees of a dozen places under the stacks of a training loop, in any order."""
    random = Random(seed)
    events: list[Any] = []
    live: dict[int, int] = {}
    for _ in range(random.randint(1, MOST)):
        place, stack = random.randint(1, PLACES), random.choice(STACKS)
        if place in live:
            size = live.pop(place)
            waits = random.random() < 0.25
            events += [event("free_requested", place * MiB, size)] if waits else free(place * MiB, size, frames=stack)
        else:
            live[place] = random.choice([1, 2, 4, 512]) * 1024
            events.append(alloc(place * MiB, live[place], frames=stack))
    return trace_of(events)


programs = st.integers(0, 2**32).map(program)


@given(st.one_of(programs, sound_traces()))
def test_findings_name_allocations_that_are_there_and_stand_by_their_bytes(trace):
    device = trace.devices[0]
    ranked = findings(trace, device)
    count = len(lifetimes(device))
    assert [finding.bytes for finding in ranked] == sorted((finding.bytes for finding in ranked), reverse=True)
    assert len({finding.key for finding in ranked}) == len(ranked)
    for finding in ranked:
        assert finding.bytes > 0
        assert len(finding.rows) == len(np.unique(finding.rows))
        assert ((finding.rows >= 0) & (finding.rows < count)).all()
        assert -1 <= finding.event < max(len(device.events), 1)
        assert finding_by_key(trace, device, finding.key) is finding


@given(programs)
def test_every_action_leaves_a_history_in_which_nothing_is_freed_twice(trace):
    device = trace.devices[0]
    for finding in findings(trace, device):
        for kind in kinds_of(finding):
            made = proposal(trace, device, finding, kind)
            if made is None or made.trace is None:
                continue
            edited = made.trace.devices[0]
            assert timeline(edited).live.min() >= 0
            rows = lifetimes(edited)
            assert (rows.end >= rows.start).all()


def test_a_name_that_is_none_is_refused_in_words():
    trace = trace_of([alloc(MiB, 1)])
    with pytest.raises(UsageError, match="This trace has no finding 'leak-1'."):
        finding_by_key(trace, trace.devices[0], "leak-1")
