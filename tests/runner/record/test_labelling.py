"""A tensor seen at an address labels the allocation that was live there at that moment, and no other."""

import gc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from memviz.runner.record.log import Counts, Log, TensorSeen, comparable, event_indices, labelled
from memviz.runner.record.model_hooks import addresses, see_everything_alive, tensors_in
from memviz.trace.model import Action, Category, Phase, Trace
from memviz.trace.reserved import CUBLAS_WORKSPACE_BYTES
from tests.traces import alloc, block, event, free, segment, trace_of

ADDRESSES = (0, 4096, 8192)


def program(touched: list[int], live_before: set[int]) -> tuple[list[Any], list[Counts], list[dict[int, int]]]:
    """Each touch allocates or frees its address. After each: the counts, and the alloc event at each
    address, -1 if it was live before."""
    events: list[Any] = []
    counts, live = [Counts(7, 3)], [dict.fromkeys(live_before, -1)]
    for address in touched:
        now, last = dict(live[-1]), counts[-1]
        if address in now:
            del now[address]
            events += free(address, 100)
            counts.append(Counts(last.allocs, last.frees + 1))
        else:
            now[address] = len(events)
            events.append(alloc(address, 100))
            counts.append(Counts(last.allocs + 1, last.frees))
        live.append(now)
    return events, counts, live


@given(
    st.lists(st.sampled_from(ADDRESSES), max_size=30),
    st.sets(st.sampled_from(ADDRESSES)),
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from(ADDRESSES)), max_size=10),
)
def test_a_sighting_names_the_allocation_that_was_live_there_then(touched, live_before, looked):
    events, counts, live = program(touched, live_before)
    blocks = [block(address, 512, 100) for address in live[-1]]
    trace = trace_of(events, [segment(0, 2 << 20, blocks)])
    log, expected = Log(lambda: None), set()
    for moment, address in sorted(looked):
        if moment < len(live) and address in live[moment]:
            log.tensors_seen.append(TensorSeen(counts[moment], address, Category.GRADIENT, "layer"))
            expected.add(live[moment][address])
    device = labelled(trace, 0, log, counts[-1]).devices[0]
    assert {row for row, each in enumerate(device.event_labels.category) if each} == expected - {-1}
    named = {device.blocks.address[row] for row, each in enumerate(device.block_labels.category) if each}
    assert named == {
        address
        for address, event in live[-1].items()
        if event in expected - {-1} or _seen_before(address, event, looked, live)
    }


def _seen_before(address: int, event: int, looked: list[tuple[int, int]], live: list[dict[int, int]]) -> bool:
    """Return whether the block was seen and was live from before the first event to the end."""
    return event == -1 and any(at == address and m < len(live) and live[m].get(at) == -1 for m, at in looked)


class Program:
    """Events, and a log of them that reads their counts."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.now = Counts(0, 0)
        self.log = Log(lambda: self.now, clock_us=lambda: 0)

    def make(self, address: int, size: int = 10) -> None:
        self.events.append(alloc(address, size))
        self.now = Counts(self.now.allocs + 1, self.now.frees)

    def free(self, address: int, size: int) -> None:
        self.events.extend(free(address, size))
        self.now = Counts(self.now.allocs, self.now.frees + 1)

    def labelled(self) -> Trace:
        return labelled(trace_of(self.events), 0, self.log, self.now)


def test_phases_and_modules_reach_from_mark_to_mark():
    made = Program()
    log = made.log
    made.make(0)
    with log.during("step 1"), log.during("forward"):
        made.make(1000)
        log.enter("block")
        made.make(2000)
        log.enter("block.linear")
        made.make(3000)
        log.leave()
        log.leave()
    made.make(4000)
    with log.during("backward"):
        made.make(5000)
    trace = made.labelled()
    labels = trace.devices[0].event_labels
    rows = [(Phase(p).name, trace.strings[m]) for p, m in zip(labels.phase, labels.module, strict=True)]
    assert rows == [
        ("UNKNOWN", ""),
        ("FORWARD", ""),
        ("FORWARD", "block"),
        ("FORWARD", "block.linear"),
        ("UNKNOWN", ""),
        ("BACKWARD", ""),
    ]


def test_an_error_inside_ends_the_phase():
    log = Log(lambda: Counts(0, 0))
    with pytest.raises(KeyError), log.during("forward"):
        raise KeyError
    assert log.phase == Phase.UNKNOWN
    assert [annotation.stage.name for annotation in log.annotations] == ["START", "END"]


def test_a_workspace_of_cublas_is_no_activation_of_the_forward_that_met_it_first():
    made = Program()
    with made.log.during("forward"):
        made.make(0, CUBLAS_WORKSPACE_BYTES)
        made.make(1 << 30, CUBLAS_WORKSPACE_BYTES + 512)
        made.make(2 << 30, CUBLAS_WORKSPACE_BYTES)
    with made.log.during("backward"):
        made.free(2 << 30, CUBLAS_WORKSPACE_BYTES)
    device = made.labelled().devices[0]
    category = device.event_labels.category[device.events.action == Action.ALLOC]
    assert [Category(each).name for each in category] == ["UNKNOWN", "ACTIVATION", "ACTIVATION"]


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 5, bias=False)
        self.register_buffer("mean", torch.zeros(7))


def seen(*tensors: torch.Tensor) -> list[list[tuple[str, str]]]:
    """Return the labels of each tensor after a scan of all models and optimizers in this process."""
    gc.collect()
    log = Log(lambda: None)
    see_everything_alive(log, "cpu")
    at = [next(addresses(tensor, "cpu")) for tensor in tensors]
    return [
        [
            (each.category.label, each.module.rpartition("Pair")[2])
            for each in log.tensors_seen
            if each.address == address
        ]
        for address in at
    ]


@pytest.mark.slow
def test_a_model_with_its_gradients_and_state_is_found_without_being_named():
    model = Pair()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.inner(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    weight = model.inner.weight
    momentum = optimizer.state[weight]["momentum_buffer"]
    found = seen(weight, model.mean, weight.grad, momentum)
    assert [[category for category, _ in each] for each in found] == [
        ["parameter"],
        ["parameter"],
        ["gradient"],
        ["optimizer state"],
    ]
    assert {module.lstrip(".") for each in found for _, module in each} == {"inner", ""}


def test_several_models_are_told_apart_by_their_classes():
    first, second = Pair(), nn.Sequential(nn.Linear(2, 2))
    gc.collect()
    log = Log(lambda: None)
    see_everything_alive(log, "cpu")
    modules = {each.module for each in log.tensors_seen if each.category == Category.PARAMETER}
    assert {"Pair.inner", "Sequential.0"} <= modules
    del first, second


def test_a_view_is_found_at_its_storage_and_what_lies_elsewhere_or_nowhere_is_left_out():
    whole = torch.zeros(100)
    assert list(addresses(whole[50:], "cpu")) == [whole.data_ptr()]
    sparse = torch.eye(3).to_sparse()
    assert [list(addresses(each, "cuda")) for each in (torch.zeros(3), torch.zeros(0), sparse)] == [[], [], []]
    assert list(addresses(torch.zeros(0), "cpu")) == []
    assert list(addresses(sparse, "cpu")) == []
    assert list(addresses(torch.zeros(3, device="meta"), "cpu")) == []


def test_tensors_are_found_in_what_models_take_and_return():
    one, two, three = torch.zeros(1), torch.zeros(2), torch.zeros(3)
    assert [each.numel() for each in tensors_in(({"a": one, "b": [two]}, "text", None, (three,)))] == [1, 2, 3]
    # A structure that contains itself comes to an end.
    loop: list[object] = [torch.zeros(1)]
    loop.append(loop)
    assert len(list(tensors_in(loop))) > 0


ACTIONS = st.lists(st.sampled_from(["alloc", "free_requested", "free_completed", "segment_alloc"]), max_size=40)


def counted(actions: list[str], before: int, lost: int) -> tuple[list[Counts], Any]:
    """The counts after each prefix, and the events without the first `lost`."""
    moments = [Counts(before, before)]
    for action in actions:
        last = moments[-1]
        moments.append(Counts(last.allocs + (action == "alloc"), last.frees + (action == "free_requested")))
    kept = [event(action, 512 * number, 100) for number, action in enumerate(actions)][lost:]
    return moments, trace_of([event("snapshot", 0, 0), *kept]).devices[0].events


@given(ACTIONS, st.integers(0, 1000), st.data())
def test_every_moment_lies_between_the_events_that_were_counted_around_it(actions, before, data):
    lost = data.draw(st.integers(0, len(actions)))
    moments, events = counted(actions, before, lost)
    found = event_indices(events, moments[-1], moments)
    for number, (moment, place) in enumerate(zip(moments, found.tolist(), strict=True)):
        # One event, the snapshot's, precedes those that are kept.
        true_place = max(0, number - lost) + 1
        last_counted = max(
            (row + 1 for row in range(true_place) if _is_counted(events, row)),
            default=0,
        )
        assert place == last_counted, moment


def _is_counted(events: Any, row: int) -> bool:
    return int(events.action[row]) in (0, 1)


def test_only_moments_of_one_count_are_compared():
    moments = [Counts(5, 5), Counts(9, 8), Counts(1, 0), Counts(2, 2), Counts(7, 2)]
    assert moments[comparable(moments, Counts(4, 4))] == [Counts(1, 0), Counts(2, 2)]
    assert moments[comparable(moments, Counts(9, 9))] == [Counts(1, 0), Counts(2, 2), Counts(7, 2)]
    assert comparable([], Counts(0, 0)) == slice(0, 0)
