"""Detection of layers, and the live bytes after checkpointing them."""

from typing import Any

import numpy as np

from memviz.analysis.actions.layers import LayersHolding, layered_steps, layers_holding
from memviz.analysis.actions.proposals import checkpoint
from memviz.analysis.findings.finding import Facts
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import timeline
from memviz.trace.model import Trace
from tests.analysis.training import ACCUMULATE, BACKWARD, BUILD, CALL, MAIN, NATIVE
from tests.traces import MiB, alloc, frame, free, trace_of

LAYERS = 4


def line(number: int) -> list[dict[str, Any]]:
    return [NATIVE, frame("forward", "/p/model.py", number), CALL, MAIN]


NORM, WIDE, THROWN, SUM, HEAD = line(10), line(11), line(12), line(13), line(20)
WEIGHTS, LOGITS, SCRATCH, GRADIENT = 9 << 30, 8 << 30, 7 << 30, 6 << 30


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
        events += [alloc(LOGITS, 20 * MiB, frames=HEAD), alloc(SCRATCH, MiB, frames=BACKWARD), *free(SCRATCH, MiB)]
        events += free(LOGITS, 20 * MiB)
        for layer in reversed(range(LAYERS)):
            events += free(address(layer, 3), 8 * MiB)
            events += [alloc(SCRATCH, 3 * MiB, frames=BACKWARD), *free(address(layer, 1), 40 * MiB)]
            events += [*free(address(layer, 0), 10 * MiB), *free(SCRATCH, 3 * MiB)]
        events += [alloc(GRADIENT, 50 * MiB, frames=ACCUMULATE), *free(GRADIENT, 50 * MiB)]
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
    backward = np.flatnonzero(made.devices[0].events.address == SCRATCH)[3::3]
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
    events += [alloc(SCRATCH, MiB, frames=BACKWARD), *free(SCRATCH, MiB)]
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


def test_forwards_alone_keep_nothing_for_a_backward():
    trace = network(upto=1 + 6 * LAYERS)
    assert checkpoint(Facts(trace, trace.devices[0])) is None


def test_a_network_without_equal_layers_cannot_be_checkpointed():
    lines = [[NATIVE, frame("forward", "/p/model.py", 100 + number), CALL, MAIN] for number in range(3)]
    events = [alloc(MiB * (number + 1), 10, frames=stack) for number, stack in enumerate(lines)]
    events += [alloc(SCRATCH, 1, frames=BACKWARD), *(free(MiB * (number + 1), 10) for number in (2, 1, 0))]
    trace = trace_of(events)
    assert checkpoint(Facts(trace, trace.devices[0])) is None


def test_events_of_an_edit_are_in_order():
    trace = network(steps=2)
    made = checkpointed(trace)
    rows = lifetimes(made.devices[0])
    assert (rows.end > rows.start).all()
    assert np.all(timeline(made.devices[0]).live >= 0)


def holding(sizes_of_layers: list[list[int]], stacks: list[list[dict[str, Any]]]) -> LayersHolding | None:
    """Return the layers of a forward with these stacks and sizes, all live when the backward begins."""
    events: list[Any] = [alloc(WEIGHTS, 50 * MiB, frames=BUILD)]
    made = [(size, stack) for sizes in sizes_of_layers for size, stack in zip(sizes, stacks, strict=True)]
    events += [alloc(number * MiB, size * MiB, frames=stack) for number, (size, stack) in enumerate(made)]
    events += [alloc(LOGITS, 20 * MiB, frames=HEAD), alloc(SCRATCH, MiB, frames=BACKWARD)]
    for number, (size, _) in reversed(list(enumerate(made))):
        events += [*free(number * MiB, size * MiB), alloc(GRADIENT, MiB, frames=BACKWARD), *free(GRADIENT, MiB)]
    facts = Facts(trace := trace_of(events), trace.devices[0])
    rows = np.arange(1, 1 + len(made))
    return layers_holding(facts, rows, facts.line.peak_event)


def test_layers_are_groups_of_stacks_and_no_blocks():
    """Each layer runs one line three times, like a loop over heads, which keeps nearly all of its bytes."""
    found = holding(5 * [[40, 40, 40, 1]], [WIDE, WIDE, WIDE, NORM])
    assert found is not None
    assert (found.description, len(found.rows)) == ("5 equal layers", 20)


def test_layers_of_unequal_sizes_are_not_called_equal():
    found = holding([[16, 4], [8, 2], [4, 1]], [WIDE, NORM])
    assert found is not None
    assert found.description == "3 layers"
