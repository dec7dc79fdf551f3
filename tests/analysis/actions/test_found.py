"""Estimates reuse the phases and purposes of the recording that they were made from."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memviz.allocator.replayer import Replayer
from memviz.analysis.actions.edit import Again, Edit, apply_edit
from memviz.analysis.actions.proposals import ActionKind, Proposal, autocast, kinds_of, proposal
from memviz.analysis.findings.finding import Facts
from memviz.analysis.findings.ranking import findings
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.categories import KINDS, categories, kinds
from memviz.analysis.purpose.phases import phase_spans, phases
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.trace.model import Action, Category, DeviceTrace, Labels, Phase, Trace
from tests.analysis.actions.test_checkpoint import LAYERS, SCRATCH, MiB, address, checkpointed, network, network_events
from tests.analysis.findings.steps import GRADIENT, Loop
from tests.analysis.training import BACKWARD, CALL, CALL_BACKWARD, ENGINE, MAIN, NATIVE, NODE, python_only
from tests.real import read_once, real_files, slow_if_large
from tests.replays import replay
from tests.traces import alloc, event, frame, trace_of

SAMPLES = sorted((Path(__file__).parents[3] / "sample_traces").glob("*.pickle.gz"))
PERMANENT = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)
HOOK = 5 << 30
HALVING = (ActionKind.HALF_PRECISION,)


def proposals(trace: Trace, device: DeviceTrace) -> Iterator[Proposal]:
    """Yield every proposal for the trace's findings."""
    for finding in findings(trace, device):
        for kind in kinds_of(finding):
            made = proposal(trace, device, finding, kind)
            if made is not None:
                yield made


def names(trace: Trace, device: DeviceTrace) -> list[str]:
    spans = phase_spans(trace, device)
    return [spans.name(span) for span in spans.spans]


def begin_with_allocs(trace: Trace, device: DeviceTrace) -> list[bool]:
    """Return for each phase if it begins with an allocation; a noted optimizer step may begin with a free."""
    firsts = [span.first for span in phase_spans(trace, device).spans]
    return (device.events.action[firsts] == Action.ALLOC).tolist()


def found_of(trace: Trace, device: DeviceTrace) -> np.ndarray:
    """Kind, certainty and phase of each row."""
    return np.stack([kinds(trace, device), categories(trace, device).certainty, phases(trace, device)])


def permanent_bytes(trace: Trace, device: DeviceTrace) -> list[int]:
    category, size = categories(trace, device).category, lifetimes(device).size
    return [int(size[category == one].sum()) for one in PERMANENT]


def expect_taken_over(trace: Trace, device: DeviceTrace, made: Proposal) -> None:
    source = Replayer(trace, device)
    estimate = source.estimated_trace(made.trace, made.name, made.assumptions, expandable=made.trace is None)
    after = estimate.devices[0]
    assert names(estimate, after) == names(trace, device)
    assert begin_with_allocs(estimate, after) == begin_with_allocs(trace, device)
    known = found_of(estimate, after)
    if made.trace is not None:
        requests = made.trace.devices[0]
        asked = found_of(made.trace, requests)
        # What is made again has an address of its own.
        recorded = np.isin(lifetimes(requests).address, lifetimes(device).address)
        assert (asked[:, recorded] == found_of(trace, device)).all()
        assert (asked[0, ~recorded] != KINDS.index("unknown")).all()
        expect_same(lifetimes(requests).start, asked, after, known)
    if made.kind not in HALVING:
        assert permanent_bytes(estimate, after) == permanent_bytes(trace, device)
    unknown = KINDS.index("unknown")
    assert (known[0] == unknown).sum() <= (kinds(trace, device) == unknown).sum()


def expect_same(start: np.ndarray, asked: np.ndarray, after: DeviceTrace, known: np.ndarray) -> None:
    """Compare rows of equal requests; a request refused when recorded and served here is an extra row."""
    assert after.taken_over is not None
    begun = lifetimes(after).start
    served = (begun >= 0) & after.taken_over.events.is_known[begun]
    assert (known[:, served] == asked[:, start >= 0]).all()
    # Blocks from before the first event have other addresses here, and so another order.
    assert np.array_equal(np.sort(known[:, begun < 0]), np.sort(asked[:, start < 0]))


@pytest.mark.parametrize("path", slow_if_large([*SAMPLES, *real_files()], "name"))
def test_phases_and_purposes_are_those_of_the_recording(path: Path):
    trace = read_once(path)
    for device in trace.devices:
        for made in proposals(trace, device) if device.kind == "gpu" else ():
            expect_taken_over(trace, device, made)


def made_again(trace: Trace, made: Trace) -> np.ndarray:
    return np.flatnonzero(~np.isin(lifetimes(made.devices[0]).address, lifetimes(trace.devices[0]).address))


def test_what_is_made_again_is_what_it_was_and_belongs_to_the_backward():
    trace = network()
    made = checkpointed(trace)
    device, again = made.devices[0], made_again(trace, made)
    said = categories(made, device)
    assert names(made, device) == ["forward of step 1", "backward of step 1"]
    assert (phases(made, device)[again] == Phase.BACKWARD).all()
    # Each layer's 10 and 40 MiB; what comes behind them is not needed.
    assert lifetimes(device).size[again].tolist() == [10 * MiB, 40 * MiB] * LAYERS
    assert (said.category[again] == Category.ACTIVATION).all()
    assert (said.reason[again] == Reason.RECOMPUTED).all()


def silent(events: list[Any]) -> list[Any]:
    """Keep Python stacks only: allocations of autograd have none and belong to the call before them."""
    alike = []
    for each in events:
        frames = each.get("frames", [])
        is_first = frames == BACKWARD and each["size"] == MiB
        alike.append({**each, "frames": CALL_BACKWARD if is_first else python_only(frames)})
    return alike


def test_what_autograd_makes_without_a_stack_stays_in_the_backward():
    trace = trace_of(silent(network_events()))
    made = checkpointed(trace)
    device = made.devices[0]
    assert names(made, device) == ["forward of step 1", "backward of step 1"]
    kept = np.isin(lifetimes(device).address, lifetimes(trace.devices[0]).address)
    assert not kept.all()
    assert (found_of(made, device)[:, kept] == found_of(trace, trace.devices[0])).all()
    # Three of 3 MiB and the gradient follow what is made again.
    assert (phases(made, device)[lifetimes(device).stack < 0] == Phase.BACKWARD).all()


def free_of_third_output(events: list[Any]) -> int:
    return next(place for place, each in enumerate(events) if each["addr"] == address(2, 3) and place > 6 * LAYERS)


def test_what_follows_a_hook_without_a_stack_follows_nothing_that_is_made_again():
    """A hook allocates just before the third layer's backward, so the phase of the allocations after it is unknown."""
    events = silent(network_events())
    events.insert(free_of_third_output(events), alloc(HOOK, MiB, frames=[frame("hook", "/p/train.py", 70), MAIN]))
    trace = trace_of(events)
    made = checkpointed(trace)
    device, before = made.devices[0], trace.devices[0]
    assert (phases(trace, before)[lifetimes(before).stack < 0] == Phase.UNKNOWN).any()
    kept = np.isin(lifetimes(device).address, lifetimes(before).address)
    assert (found_of(made, device)[:, kept] == found_of(trace, before)).all()


def test_what_was_refused_and_is_served_begins_no_phase():
    events = [each for each in network_events()[: 1 + 6 * LAYERS] if each["action"] == "alloc"]
    trace = trace_of([*events, event("oom", 0, MiB, frames=BACKWARD)])
    made = apply_edit(trace, trace.devices[0], Edit())
    after = replay(made, memory=1 << 40).trace
    assert len(lifetimes(after.devices[0])) == len(events) + 1
    assert names(after, after.devices[0]) == names(trace, trace.devices[0])


def test_what_was_refused_without_a_stack_and_is_served_belongs_to_the_backward_that_asked_for_it():
    """The refused request directly follows a recomputed layer."""
    events = silent(network_events())
    events.insert(free_of_third_output(events) + 2, event("oom", 0, 7 * MiB))
    trace = trace_of(events)
    made = checkpointed(trace)
    after = replay(made, memory=1 << 40).trace
    (served,) = np.flatnonzero(lifetimes(after.devices[0]).size == 7 * MiB)
    assert phases(after, after.devices[0])[served] == Phase.BACKWARD
    assert categories(after, after.devices[0]).reason[served] == Reason.SILENT_BACKWARD_FREED


def test_what_is_probable_stays_probable_and_what_was_stated_is_not_stated_of_a_copy():
    trace = network()
    device = trace.devices[0]
    count = len(device.events)
    is_wide = device.events.size == 40 * MiB
    category = np.where(is_wide & (device.events.action == Action.ALLOC), Category.ACTIVATION, 0).astype(np.uint8)
    labels = Labels(category, np.zeros(count, np.int32), np.full(count, Phase.FORWARD, np.uint8))
    told = replace(trace, devices=(replace(device, event_labels=labels),))
    made = checkpointed(told)
    after, again = made.devices[0], made_again(told, made)
    wide = np.flatnonzero(lifetimes(after).size == 40 * MiB)
    recorded, copies = np.setdiff1d(wide, again), np.intersect1d(wide, again)
    assert (categories(made, after).certainty[recorded] == Certainty.STATED).all()
    assert (categories(made, after).reason[recorded] == Reason.RECORDED).all()
    assert (categories(made, after).certainty[copies] == Certainty.SURE).all()
    assert (phases(made, after)[copies] == Phase.BACKWARD).all()
    # Nor are those labels written to a file.
    assert not after.event_labels.category[lifetimes(after).start[copies]].any()
    hesitant = categories(told, told.devices[0]).certainty == Certainty.PROBABLE
    kept = np.setdiff1d(np.arange(len(lifetimes(after))), again)
    assert ((categories(made, after).certainty[kept] == Certainty.PROBABLE) == hesitant).all()


def test_a_phase_begins_with_what_is_made_again_before_its_first_segment():
    """No event is inserted between a segment and the allocation that needed it."""
    events = network_events()
    first = next(place for place, each in enumerate(events) if each.get("frames") == BACKWARD)
    events.insert(first, event("segment_alloc", SCRATCH, 20 * MiB))
    trace = trace_of(events)
    again = Again(*(np.array([number]) for number in (1, first + 1, first + 3, 0, 0, 1)))
    made = apply_edit(trace, trace.devices[0], Edit(again=again))
    device, (copy,) = made.devices[0], made_again(trace, made)
    assert phase_spans(trace, trace.devices[0]).spans[1].first == first + 1
    assert phase_spans(made, device).spans[1].first == lifetimes(device).start[copy] == first
    assert phases(made, device)[copy] == Phase.BACKWARD


def test_copies_of_weights_are_autocast_copies_of_the_forward():
    product = [frame("at::_ops::addmm::call()", "??", 0), frame("forward", "/p/model.py", 20), CALL, MAIN]
    loop = Loop().make(70, 20, product).make(SCRATCH, 1, BACKWARD).end(SCRATCH, 1)
    loop.make(GRADIENT, 100, [NATIVE, NODE, ENGINE]).end(70, 20)
    trace = loop.step().without_gradient().forward().trace()
    made = autocast(Facts(trace, trace.devices[0])).trace
    device, (copy,) = made.devices[0], made_again(trace, made)
    assert categories(made, device).category[copy] == Category.AUTOCAST_WEIGHT_COPIES
    assert phases(made, device)[copy] == Phase.FORWARD
    assert names(made, device) == names(trace, trace.devices[0])


def test_who_estimates_checkpoints_is_not_told_to_checkpoint():
    (trace,) = (read_once(path) for path in SAMPLES if path.name == "training.pickle.gz")
    made = checkpointed(trace)
    remedies = [finding.remedy for finding in findings(made, made.devices[0])]
    assert not any("heckpoint layers" in remedy for remedy in remedies)
