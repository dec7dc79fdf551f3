"""Estimates reuse the phases and purposes of the recording that they were made from."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.allocator.replayer import Replayer
from memviz.analysis.actions.edit import Again, Earlier, Edit, apply_edit
from memviz.analysis.actions.layers import LayersHolding, layered_steps, layers_holding
from memviz.analysis.actions.proposals import ActionKind, Proposal, autocast, checkpoint, kinds_of, proposal
from memviz.analysis.findings.finding import Facts, FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.analysis.lifetimes import BEFORE, lifetimes
from memviz.analysis.purpose.categories import KINDS, categories, kinds
from memviz.analysis.purpose.phases import phase_spans, phases
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.trace.model import Action, Category, DeviceTrace, Labels, Phase, State, Trace
from tests.analysis.replays import sound_traces
from tests.analysis.training import (
    ACCUMULATE,
    BACKWARD,
    BUILD,
    CALL,
    CALL_BACKWARD,
    ENGINE,
    FORWARD,
    GRADIENT,
    MAIN,
    NATIVE,
    NODE,
    SCRATCH,
    Loop,
    logits_held_through_the_next_forward,
    of_kind,
    python_only,
)
from tests.real import read_once, real_files, slow_if_large
from tests.replays import replay
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of

SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*.pickle.gz"))
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
    events.insert(first, event("segment_alloc", TEMPORARY, 20 * MiB))
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


LAYERS = 4


def line(number: int) -> list[dict[str, Any]]:
    return [NATIVE, frame("forward", "/p/model.py", number), CALL, MAIN]


NORM, WIDE, THROWN, SUM, HEAD = line(10), line(11), line(12), line(13), line(20)
WEIGHTS, LOGITS, TEMPORARY, GRADIENTS = 9 << 30, 8 << 30, 7 << 30, 6 << 30


def address(layer: int, place: int) -> int:
    return (100 * (layer + 1) + place) * MiB


def network(*, steps: int = 1, upto: int | None = None) -> Trace:
    return trace_of(network_events(steps)[:upto])


def network_events(steps: int = 1) -> list[Any]:
    """Each layer saves 10 and 40 MiB, uses 5 MiB temporarily and outputs 8 MiB; the backward runs in reverse and needs
    3 MiB in addition."""
    events: list[Any] = [alloc(WEIGHTS, 50 * MiB, frames=BUILD)]
    for _ in range(steps):
        for layer in range(LAYERS):
            events += [alloc(address(layer, 0), 10 * MiB, frames=NORM), alloc(address(layer, 1), 40 * MiB, frames=WIDE)]
            events += [alloc(address(layer, 2), 5 * MiB, frames=THROWN), *free(address(layer, 2), 5 * MiB)]
            events += [alloc(address(layer, 3), 8 * MiB, frames=SUM)]
        events += [alloc(LOGITS, 20 * MiB, frames=HEAD), alloc(TEMPORARY, MiB, frames=BACKWARD), *free(TEMPORARY, MiB)]
        events += free(LOGITS, 20 * MiB)
        for layer in reversed(range(LAYERS)):
            events += free(address(layer, 3), 8 * MiB)
            events += [alloc(TEMPORARY, 3 * MiB, frames=BACKWARD), *free(address(layer, 1), 40 * MiB)]
            events += [*free(address(layer, 0), 10 * MiB), *free(TEMPORARY, 3 * MiB)]
        events += [alloc(GRADIENTS, 50 * MiB, frames=ACCUMULATE), *free(GRADIENTS, 50 * MiB)]
    return events


def checkpointed(trace: Trace) -> Trace:
    made = checkpoint(Facts(trace, trace.devices[0]))
    assert made is not None and made.trace is not None
    return made.trace


def test_layers_are_seen_with_what_they_keep_and_hand_on():
    trace = network()
    (step,) = layered_steps(Facts(trace, trace.devices[0]))
    rows = lifetimes(trace.devices[0])
    assert [rows.address[layer.kept].tolist() for layer in step.layers] == [
        [address(layer, 0), address(layer, 1)] for layer in range(LAYERS)
    ]
    assert [int(rows.address[layer.output]) for layer in step.layers] == [address(n, 3) for n in range(LAYERS)]


def test_a_checkpointed_layer_keeps_what_it_hands_on_and_makes_the_rest_again():
    trace = network()
    before = timeline(trace.devices[0])
    proposed, made = checkpoint(Facts(trace, trace.devices[0])), checkpointed(trace)
    assert proposed is not None and proposed.name == "checkpoint 4 layers"
    after = timeline(made.devices[0])
    # All layers and the logits, against what all hand on and what the last one makes.
    assert before.peak_bytes == (50 + LAYERS * 58 + 20 + 1) * MiB
    assert after.peak_bytes == (50 + LAYERS * 8 + 50) * MiB
    # In the backward: its own 3 MiB, the recomputed layer, and the outputs of the layers before it.
    backward = np.flatnonzero(made.devices[0].events.address == TEMPORARY)[3::3]
    live = after.live[backward + 1]
    assert live.tolist() == [(50 + layer * 8 + 50 + 3) * MiB for layer in reversed(range(LAYERS))]
    # Nothing is lost on the way.
    assert after.end_bytes == before.end_bytes


def test_what_a_function_holds_ends_with_it_and_what_it_hands_on_with_the_layer():
    """Within the layer a function makes 40 MiB, then 8 MiB that it returns; 10 MiB are the layer's own."""
    inner = [NATIVE, frame("mix", "/p/model.py", 30), frame("forward", "/p/model.py", 11), CALL, MAIN]
    handed_on = [NATIVE, frame("mix", "/p/model.py", 31), *inner[2:]]
    events: list[Any] = [alloc(WEIGHTS, 50 * MiB, frames=BUILD)]
    for layer in range(2):
        for place, (size, stack) in enumerate(((10, NORM), (40, inner), (8, handed_on), (1, SUM))):
            events.append(alloc(address(layer, place), size * MiB, frames=stack))
    events += [alloc(TEMPORARY, MiB, frames=BACKWARD), *free(TEMPORARY, MiB)]
    for layer in (1, 0):
        for place, size in ((3, 1), (2, 8), (1, 40), (0, 10)):
            events += free(address(layer, place), size * MiB)
    trace = trace_of(events)
    made = checkpointed(trace)
    changed = made.devices[0]
    rows = lifetimes(changed)
    first = [changed.events.address.tolist().index(address(0, place)) for place in range(4)]
    ends = {int(rows.address[row]): int(rows.end[row]) for row in range(1, 5)}
    # The 40 MiB go before the sum is made, all else of the layer behind it.
    assert first[2] < ends[address(0, 1)] < first[3]
    assert all(first[3] < ends[address(0, place)] for place in (0, 2))


def test_every_step_is_checkpointed():
    trace = network(steps=3)
    made = checkpointed(trace)
    sizes = [int(size) for size in timeline(made.devices[0]).live]
    peak = (50 + LAYERS * 8 + 50) * MiB
    # Until the first free is complete.
    assert sizes.count(peak) == 2 * 3


def test_where_the_trace_ends_in_the_forward_nothing_is_made_again():
    # After a whole step, the second forward and nothing of its backward.
    cut = network(steps=2, upto=(len(network(steps=2).devices[0].events) + 1) // 2 + 6 * LAYERS)
    assert timeline(cut.devices[0]).end_bytes == (50 + LAYERS * 58) * MiB
    assert timeline(checkpointed(cut).devices[0]).end_bytes == (50 + LAYERS * 8) * MiB


def test_without_a_backward_or_equal_layers_nothing_can_be_checkpointed():
    trace = network(upto=1 + 6 * LAYERS)
    assert checkpoint(Facts(trace, trace.devices[0])) is None
    lines = [[NATIVE, frame("forward", "/p/model.py", 100 + number), CALL, MAIN] for number in range(3)]
    events = [alloc(MiB * (number + 1), 10, frames=stack) for number, stack in enumerate(lines)]
    events += [alloc(TEMPORARY, 1, frames=BACKWARD), *(free(MiB * (number + 1), 10) for number in (2, 1, 0))]
    trace = trace_of(events)
    assert checkpoint(Facts(trace, trace.devices[0])) is None


def holding(sizes_of_layers: list[list[int]], stacks: list[list[dict[str, Any]]]) -> LayersHolding | None:
    """Return the layers of a forward with these stacks and sizes, all live when the backward begins."""
    events: list[Any] = [alloc(WEIGHTS, 50 * MiB, frames=BUILD)]
    made = [(size, stack) for sizes in sizes_of_layers for size, stack in zip(sizes, stacks, strict=True)]
    events += [alloc(number * MiB, size * MiB, frames=stack) for number, (size, stack) in enumerate(made)]
    events += [alloc(LOGITS, 20 * MiB, frames=HEAD), alloc(TEMPORARY, MiB, frames=BACKWARD)]
    for number, (size, _) in reversed(list(enumerate(made))):
        events += [*free(number * MiB, size * MiB), alloc(GRADIENTS, MiB, frames=BACKWARD), *free(GRADIENTS, MiB)]
    facts = Facts(trace := trace_of(events), trace.devices[0])
    rows = np.arange(1, 1 + len(made))
    return layers_holding(facts, rows, facts.line.peak_event)


@pytest.mark.parametrize(
    ("sizes", "stacks", "description"),
    [
        (5 * [[40, 40, 40, 1]], [WIDE, WIDE, WIDE, NORM], "5 equal layers"),
        ([[16, 4], [8, 2], [4, 1]], [WIDE, NORM], "3 layers"),
    ],
    ids=["one line three times in each, like a loop over heads", "unequal sizes"],
)
def test_layers_are_groups_of_stacks_and_no_blocks(sizes, stacks, description):
    found = holding(sizes, stacks)
    assert found is not None
    assert (found.description, len(found.rows)) == (description, sum(map(len, sizes)))


def test_what_is_kept_too_long_ends_before_the_next_forward():
    trace = logits_held_through_the_next_forward().trace()
    device = trace.devices[0]
    (finding,) = of_kind(trace, FindingKind.KEPT_TOO_LONG)
    made = proposal(trace, device, finding, ActionKind.FREE_EARLIER)
    assert made is not None and made.trace is not None
    # The weight and saved activations, plus the logits of one step instead of two.
    before, after = timeline(device).live, timeline(made.trace.devices[0]).live
    recorded = device.events
    assert before[1:][(recorded.action == 0) & (recorded.size == 30 * MiB)].tolist() == [
        170 * MiB,
        200 * MiB,
        200 * MiB,
    ]
    changed = made.trace.devices[0].events
    assert after[1:][(changed.action == 0) & (changed.size == 30 * MiB)].tolist() == [170 * MiB] * 3


def test_activations_can_be_checkpointed_or_halved():
    trace = network(steps=2)
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    assert kinds_of(finding) == (ActionKind.CHECKPOINT, ActionKind.AUTOCAST, ActionKind.HALF_PRECISION)
    halved = proposal(trace, trace.devices[0], finding, ActionKind.HALF_PRECISION)
    assert halved is not None and halved.trace is not None
    whole = timeline(trace.devices[0]).live
    assert (2 * timeline(halved.trace.devices[0]).live == whole).all()


def test_what_was_there_before_the_recording_cannot_be_halved():
    late = Loop(has_weight=False)
    late.end(1, 10).forward().backward().step().without_gradient().whole()
    trace = late.trace()
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    assert proposal(trace, trace.devices[0], finding, ActionKind.HALF_PRECISION) is None


def test_an_action_of_another_finding_is_refused():
    trace = network(steps=2)
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    with pytest.raises(UsageError, match="There is no expandable_segments for activations-1"):
        proposal(trace, trace.devices[0], finding, ActionKind.EXPANDABLE_SEGMENTS)


@pytest.mark.parametrize("operator", ["_to_copy", "_scaled_dot_product_flash_attention"])
def test_what_shows_half_precision_is_not_halved_again(operator):
    """A copy of twice the size, or an attention that knows nothing else."""
    stack = [frame(f"at::_ops::{operator}::call()", "??", 0), frame("forward", "/p/model.py", 20), CALL, MAIN]
    loop = Loop().forward().make(70, 10, FORWARD).make(71, 20, stack).end(70, 10).backward().end(71, 20)
    trace = loop.step().without_gradient().whole().trace()
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    for kind in (ActionKind.HALF_PRECISION, ActionKind.AUTOCAST):
        assert proposal(trace, trace.devices[0], finding, kind) is None


def test_autocast_halves_products_and_copies_their_weights():
    """Two products keep 20 MiB each, a sum 10; the gradient of 100 MiB shows the size of the product's weight."""
    product = [frame("at::_ops::addmm::call()", "??", 0), frame("forward", "/p/model.py", 20), CALL, MAIN]
    total = [frame("at::_ops::add_Tensor::call()", "??", 0), frame("forward", "/p/model.py", 21), CALL, MAIN]
    weight = [NATIVE, NODE, ENGINE]
    loop = Loop().make(70, 20, product).make(71, 20, product).make(72, 10, total)
    loop.make(SCRATCH, 1, BACKWARD).end(SCRATCH, 1).end(72, 10).end(71, 20).make(GRADIENT, 100, weight).end(70, 20)
    trace = loop.step().without_gradient().forward().trace()
    made = autocast(Facts(trace, trace.devices[0]))
    assert made is not None and made.trace is not None
    before, after = timeline(trace.devices[0]).live, timeline(made.trace.devices[0]).live
    assert before[4] == (100 + 20 + 20 + 10) * MiB
    # The weight's copy comes first.
    assert after[2:6].tolist() == [150 * MiB, 160 * MiB, 170 * MiB, 180 * MiB]
    assert after[1] == 100 * MiB
    # With the gradient the copy is gone.
    at = int((made.trace.devices[0].events.size == 100 * MiB).nonzero()[0][1])
    assert after[at + 1] == (100 + 10 + 100) * MiB


ONE, TWO, THREE = 1 << 20, 2 << 20, 3 << 20


@given(sound_traces())
def test_without_an_edit_nothing_changes(trace):
    device = trace.devices[0]
    assert replace(apply_edit(trace, device, Edit()).devices[0], taken_over=None) == device


@given(sound_traces(), st.data())
def test_what_is_live_falls_by_what_ends_earlier_and_by_halves(trace, data):
    device = trace.devices[0]
    rows, count = lifetimes(device), len(device.events)
    begun = np.flatnonzero((rows.start > BEFORE) & (rows.end < count))
    chosen = np.array(data.draw(st.lists(st.sampled_from(begun.tolist()), unique=True)) if len(begun) else [], int)
    halved = np.flatnonzero((rows.start > BEFORE) & (rows.size > 1))
    ends = np.array([data.draw(st.integers(rows.start[row] + 1, rows.end[row])) for row in chosen], int)
    made = apply_edit(trace, device, Edit(earlier=Earlier(chosen, ends), halved=halved)).devices[0]
    sizes = rows.size.copy()
    sizes[halved] = (sizes[halved] + 1) // 2
    # What is live before each recorded alloc, by the lifetimes themselves. Something put before a new segment or
    # between the two halves of a free comes as a whole before it, and no alloc lies in between.
    new_ends = rows.end.copy()
    new_ends[chosen] = ends
    at = np.flatnonzero(device.events.action == Action.ALLOC)
    wanted = [int(sizes[(rows.start < event) & (new_ends > event)].sum()) for event in at]
    found = timeline(made).live[np.flatnonzero(made.events.action == Action.ALLOC)]
    assert found.tolist() == wanted


def test_what_is_made_again_is_another_block_from_one_event_to_another():
    events = [alloc(ONE, 10), free(ONE, 10), alloc(TWO, 5), alloc(THREE, 7), free(TWO, 5), free(THREE, 7)]
    trace = trace_of(events)
    again = Again(*(np.array([number]) for number in (0, 4, 7, 0, 2, 1)))
    made = apply_edit(trace, trace.devices[0], Edit(again=again))
    assert timeline(made.devices[0]).live.tolist() == [0, 10, 10, 0, 5, 15, 22, 22, 17, 17, 7, 7, 0]


def test_several_made_again_at_one_place_come_and_go_as_they_did():
    """A temporary is freed before the next one is allocated."""
    events = [alloc(ONE, 10), free(ONE, 10), alloc(TWO, 5), free(TWO, 5), alloc(THREE, 7), free(THREE, 7)]
    trace = trace_of(events)
    columns = ([0, 1], [7, 7], [7, 7], [0, 3], [2, 5], [1, 1])
    made = apply_edit(trace, trace.devices[0], Edit(again=Again(*(np.array(column) for column in columns))))
    assert timeline(made.devices[0]).live.tolist() == [0, 10, 10, 0, 5, 5, 0, 7, 17, 17, 7, 12, 12, 7, 7, 0]


def test_nothing_comes_between_a_new_segment_and_its_alloc_or_within_a_free():
    events = [alloc(ONE, 10), event("segment_alloc", TWO, TWO), alloc(TWO, 5), free(TWO, 5), free(ONE, 10)]
    trace = trace_of(events)
    for before, place in ((2, 1), (4, 3)):
        edit = Edit(earlier=Earlier(np.array([0]), np.array([before])))
        actions = apply_edit(trace, trace.devices[0], edit).devices[0].events.action.tolist()
        assert actions[place : place + 2] == [Action.FREE_REQUESTED, Action.FREE_COMPLETED]


def test_a_block_that_ends_earlier_is_free_in_the_end():
    trace = trace_of([alloc(0, ONE), alloc(TWO, 5), free(TWO, 5)], [segment(0, 20 * ONE, [block(0, ONE)])])
    made = apply_edit(trace, trace.devices[0], Edit(earlier=Earlier(np.array([0]), np.array([2]))))
    assert made.devices[0].blocks.state.tolist() == [State.INACTIVE, State.INACTIVE]
    rows = lifetimes(made.devices[0])
    assert list(zip(rows.address.tolist(), rows.end.tolist(), strict=True)) == [(0, 3), (TWO, 5)]
