"""A tensor seen at an address labels the allocation that was live there at that moment, and no other."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from memviz.runner.record.log import Counts, Log, TensorSeen, labelled
from memviz.trace.model import Action, Category, Phase, Trace
from memviz.trace.reserved import CUBLAS_WORKSPACE_BYTES
from tests.traces import alloc, block, free, segment, trace_of

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


def said(log: Log, events: list[Any], end: Counts) -> Trace:
    return labelled(trace_of(events), 0, log, end)


def test_phases_and_modules_reach_from_mark_to_mark():
    now = [Counts(0, 0)]
    log = Log(lambda: now[0], clock_us=lambda: 0)
    events: list[Any] = []

    def make(address: int) -> None:
        events.append(alloc(address, 10))
        now[0] = Counts(now[0].allocs + 1, now[0].frees)

    make(0)
    with log.during("step 1"), log.during("forward"):
        make(1000)
        log.enter("block")
        make(2000)
        log.enter("block.linear")
        make(3000)
        log.leave()
        log.leave()
    make(4000)
    with log.during("backward"):
        make(5000)
    trace = said(log, events, now[0])
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
    try:
        with log.during("forward"):
            raise KeyError
    except KeyError:
        pass
    assert log.phase == Phase.UNKNOWN
    assert [annotation.stage.name for annotation in log.annotations] == ["START", "END"]


def test_a_workspace_of_cublas_is_no_activation_of_the_forward_that_met_it_first():
    now = [Counts(0, 0)]
    log = Log(lambda: now[0], clock_us=lambda: 0)
    events: list[Any] = []

    def make(address: int, size: int) -> None:
        events.append(alloc(address, size))
        now[0] = Counts(now[0].allocs + 1, now[0].frees)

    with log.during("forward"):
        make(0, CUBLAS_WORKSPACE_BYTES)
        make(1 << 30, CUBLAS_WORKSPACE_BYTES + 512)
        make(2 << 30, CUBLAS_WORKSPACE_BYTES)
    with log.during("backward"):
        events.extend(free(2 << 30, CUBLAS_WORKSPACE_BYTES))
        now[0] = Counts(now[0].allocs, now[0].frees + 1)
    device = said(log, events, now[0]).devices[0]
    category = device.event_labels.category[device.events.action == Action.ALLOC]
    assert [Category(each).name for each in category] == ["UNKNOWN", "ACTIVATION", "ACTIVATION"]
