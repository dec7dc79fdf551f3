"""Allocations by purpose, by group and below a path of calls."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.breakdown import (
    Dominant,
    PurposeTotal,
    WeightedRows,
    breakdown,
    parse_path,
    path_text,
    purpose_totals,
    rows_below,
    rows_in_range,
    weighted_breakdown,
    weighted_stacks,
)
from memviz.analysis.callstacks.stack_tree import NO_FRAMES, OTHER, StackTree, frame_name, stack_tree
from memviz.analysis.devices import choose_device, others_out_of_memory
from memviz.analysis.groups import group_rows
from memviz.analysis.lifetimes import BEFORE, lifetimes, live_rows
from memviz.analysis.overview import overview, sites_holding_activations
from memviz.analysis.purpose.categories import KINDS, kinds
from memviz.analysis.purpose.reasons import Certainty, Reason
from memviz.analysis.sums import max_of_ranges, sum_by
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.figures.colouring import MEANINGS, colouring
from memviz.trace.model import Category, Labels, Trace
from tests.analysis import training as t
from tests.analysis.training import Recording, kept_layers
from tests.traces import MiB, alloc, block, frame, free, read, segment, trace_of

MAIN, TRAIN, MODEL = (
    frame("main", "/p/train.py", 1),
    frame("train", "/p/train.py", 2),
    frame("forward", "/p/model.py", 3),
)
RECORDED = Reason.RECORDED.text


def all_rows(trace: Trace) -> np.ndarray:
    return np.arange(len(lifetimes(trace.devices[0])))


def labelled(*allocations: tuple[int, Category]) -> Trace:
    """Allocations in turns at two sites."""
    events = [alloc(16 * i, size, frames=[MODEL if i % 2 else TRAIN]) for i, (size, _) in enumerate(allocations)]
    trace, none = trace_of(events), np.zeros(len(allocations), np.int32)
    labels = Labels(np.array([category for _, category in allocations], np.uint8), none, none.astype(np.uint8))
    return replace(trace, devices=(replace(trace.devices[0], event_labels=labels),))


def test_purposes_add_up_to_all_bytes_the_largest_first():
    trace = trace_of(kept_layers(4).events)
    assert purpose_totals(trace, trace.devices[0], all_rows(trace)) == (
        PurposeTotal("activation", Certainty.SURE, Reason.FORWARD_KEPT.text, 2000, 8),
        PurposeTotal("gradient", Certainty.PROBABLE, Reason.BACKWARD_CUT_OFF.text, 10, 1),
    )


@pytest.mark.parametrize(
    ("allocations", "dominant"),
    [
        (
            [(10, Category.GRADIENT), (20, Category.INPUT), (30, Category.PARAMETER), (40, Category.INPUT)],
            {
                "/p/train.py:2 train": Dominant("parameter", 30, Certainty.STATED, RECORDED),
                "/p/model.py:3 forward": Dominant("input", 60, Certainty.STATED, RECORDED),
            },
        ),
        # Blocks of no bytes are in real files.
        (
            [(10, Category.GRADIENT), (0, Category.GRADIENT)],
            {
                "/p/train.py:2 train": Dominant("gradient", 10, Certainty.STATED, RECORDED),
                "/p/model.py:3 forward": Dominant("gradient", 0, Certainty.STATED, RECORDED),
            },
        ),
        # Without a label the rules call the second an input, as large as the third.
        (
            [(5, Category.OUTPUT), (1, Category.INPUT), (5, Category.PARAMETER)],
            {
                "/p/train.py:2 train": Dominant("parameter", 5, Certainty.STATED, RECORDED),
                "/p/model.py:3 forward": Dominant("input", 1, Certainty.STATED, RECORDED),
            },
        ),
    ],
    ids=["most bytes", "no bytes", "equal bytes"],
)
def test_the_largest_kind_of_each_group(allocations, dominant):
    trace = labelled(*allocations)
    found = breakdown(trace, trace.devices[0], all_rows(trace), "site")
    assert found.groups == group_rows(trace, trace.devices[0], all_rows(trace), "site")
    assert found.dominant == dominant


def test_allocations_before_the_recording_without_a_stack_are_a_kind_of_their_own():
    trace = trace_of([alloc(4096, 5)], segments=[segment(0, 2 * MiB, [block(0, 512, 500), block(4096, 512, 5)])])
    assert breakdown(trace, trace.devices[0], all_rows(trace), "category").dominant == {
        "unknown": Dominant("unknown", 5, reason="no stack was recorded"),
        "before recording": Dominant("before recording", 500, reason="no stack was recorded"),
    }


def three_stacks() -> Trace:
    return trace_of(
        [
            alloc(1, 10, frames=[MODEL, TRAIN, MAIN]),
            alloc(2, 30, frames=[TRAIN, MAIN]),
            alloc(3, 5, frames=[MODEL, MAIN]),
            alloc(4, 1),
        ]
    )


def path_of(trace: Trace, *functions: str) -> tuple[int, ...]:
    """Frames by their functions, which are all different here."""
    names = [frame_name(trace, number) for number in range(len(trace.stacks.frames))]
    return tuple(map(names.index, functions))


def path_to(tree: StackTree, node: int) -> tuple[int, ...]:
    return () if node == 0 else (*path_to(tree, int(tree.parent[node])), int(tree.frame[node]))


def by_kind(trace: Trace) -> WeightedRows:
    size = lifetimes(trace.devices[0]).size
    return WeightedRows(np.arange(len(size)), size, kinds(trace, trace.devices[0]), KINDS)


@pytest.mark.parametrize(
    ("functions", "rows"), [((), [0, 1, 2, 3]), (("main",), [0, 1, 2]), (("main", "train"), [0, 1]), (("train",), [])]
)
def test_rows_below_a_path_have_stacks_that_begin_with_it(functions, rows):
    trace = three_stacks()
    assert rows_below(trace, trace.devices[0], all_rows(trace), path_of(trace, *functions)).tolist() == rows
    assert rows_below(trace, trace.devices[0], all_rows(trace), (NO_FRAMES,)).tolist() == [3]


@pytest.mark.parametrize("path", [(2, 0, 1), (), (NO_FRAMES,)])
def test_a_path_survives_its_text(path):
    assert parse_path(three_stacks(), path_text(path)) == path


@pytest.mark.parametrize("text", ["99", "-1", "0,-3", "a", "1,,2", "1e3", "<b>"])
def test_an_invalid_path_is_refused(text):
    with pytest.raises(UsageError, match="no such stack"):
        parse_path(three_stacks(), text)


def test_a_selected_node_keeps_its_callers_as_a_chain():
    trace = three_stacks()
    path = path_of(trace, "main", "train")
    found = weighted_stacks(trace, trace.devices[0], by_kind(trace), path)
    assert (found.path, found.node) == (path, 2)
    assert found.tree == stack_tree(trace, trace.devices[0], np.array([0, 1]))
    assert found.dominant == (Dominant("output", 40),) * 3 + (Dominant("output", 10),)
    nothing = weighted_stacks(trace, trace.devices[0], by_kind(trace), path_of(trace, "forward"))
    assert (nothing.node, nothing.tree.bytes.tolist()) == (0, [0])


STACKS = st.lists(st.sampled_from([frame(name, f"{name}.py", 1) for name in "abc"]), max_size=4)


@given(st.lists(st.tuples(STACKS, st.integers(1, 99)), min_size=1, max_size=12), st.integers(1, 12))
def test_the_dominant_kind_of_a_node_is_that_of_all_rows_below_it(allocations, most_nodes):
    trace = trace_of([alloc(i, size, frames=stack) for i, (stack, size) in enumerate(allocations)])
    device, size, kind = trace.devices[0], lifetimes(trace.devices[0]).size, kinds(trace, trace.devices[0])
    found = weighted_stacks(trace, device, by_kind(trace), most_nodes=most_nodes)
    for node, dominant in enumerate(found.dominant):
        assert dominant.bytes <= found.tree.bytes[node]
        if found.tree.frame[node] != OTHER:
            below = rows_below(trace, device, all_rows(trace), path_to(found.tree, node))
            assert size[below].sum() == found.tree.bytes[node]
            assert size[below][kind[below] == KINDS.index(dominant.kind)].sum() == dominant.bytes


def late() -> Trace:
    """2 MiB from before the first event; 3 MiB live for four events; 1 MiB at the end."""
    events = [free(100 * MiB, 2 * MiB), alloc(0, 3 * MiB, frames=[MODEL, TRAIN]), alloc(8 * MiB, MiB)]
    return trace_of([*events, free(0, 3 * MiB), alloc(16 * MiB, 5, frames=[TRAIN])])


@given(st.integers(-1, 6), st.integers(-1, 6))
def test_byte_events_add_up_to_the_live_bytes_after_each_event(one: int, other: int) -> None:
    device = late().devices[0]
    first, last = min(one, other), max(one, other)
    held, spans = rows_in_range(device, first, last), lifetimes(device)
    live = timeline(device).live[first + 1 : last + 2]
    assert (int(held.byte_events.sum()), held.events) == (int(live.sum()), len(live))
    assert held.rows.tolist() == np.flatnonzero((spans.start <= last) & (spans.end > first)).tolist()
    with pytest.raises(UsageError):
        rows_in_range(device, 0, 99)


@pytest.mark.parametrize("meaning", MEANINGS)
@pytest.mark.parametrize("by", ["site", "category", "line"])
def test_groups_and_stacks_share_one_sum_with_any_colours(meaning: str, by: str) -> None:
    trace = late()
    device, colours = trace.devices[0], colouring(trace, trace.devices[0], meaning)
    held = rows_in_range(device, BEFORE, len(device.events) - 1)
    weighted = WeightedRows(held.rows, held.byte_events, colours.group[held.rows], colours.labels)
    groups, stacks = weighted_breakdown(trace, device, weighted, by), weighted_stacks(trace, device, weighted)
    whole = int(timeline(device).live.sum())
    assert groups.groups.bytes == sum(group.bytes for group in groups.groups.groups) == stacks.tree.bytes[0] == whole
    assert all(0 < groups.dominant[group.key].bytes <= group.bytes for group in groups.groups.groups)
    assert {dominant.kind for dominant in groups.dominant.values()} <= set(colours.labels)


def places(trace: Trace) -> tuple[list[int], int] | None:
    device = trace.devices[0]
    found = sites_holding_activations(trace, device, live_rows(device, len(device.events) - 1))
    return None if found is None else ([site.line for site in found.places], found.bytes)


def test_the_places_that_keep_most_are_named_with_their_layers():
    trace = trace_of(kept_layers(4).events)
    assert places(trace) == ([12], 1200)
    most = overview(trace, trace.devices[0]).most_of_it
    assert most is not None and most.layers == "4 equal layers"


def test_many_places_are_not_named():
    events = Recording()
    for line in range(1, 20):
        events.alloc(line, [t.NATIVE, frame("forward", "/p/model.py", line), t.CALL, t.MAIN], 100)
    assert places(trace_of(events.alloc(900, t.BACKWARD, 10).events)) is None


LARGE = st.integers(-(2**58), 2**58)


@given(st.lists(st.tuples(st.integers(0, 3), LARGE), max_size=8))
def test_sums_are_exact_beyond_what_a_float_can_hold(pairs):
    codes = np.array([code for code, _ in pairs], dtype=np.int64)
    values = np.array([value for _, value in pairs], dtype=np.int64)
    assert sum_by(codes, values, 4).tolist() == [sum(v for c, v in pairs if c == code) for code in range(4)]


@given(st.lists(LARGE, min_size=1, max_size=20), st.data())
def test_the_largest_of_any_short_ranges(values, data):
    bound = st.tuples(st.integers(0, len(values) - 1), st.integers(1, len(values)))
    ranges = [(start, max(start + 1, stop)) for start, stop in data.draw(st.lists(bound, max_size=6))]
    found = max_of_ranges(
        np.array(values), *(np.array([range_[i] for range_ in ranges], dtype=np.int64) for i in (0, 1))
    )
    assert found.tolist() == [max(values[start:stop]) for start, stop in ranges]


def test_the_largest_of_long_ranges():
    random = np.random.default_rng(0)
    values = random.integers(0, 2**40, 10_000)
    start = random.integers(0, 9_999, 300)
    stop = start + 1 + random.integers(0, 10_000 - start)
    expected = [int(values[a:b].max()) for a, b in zip(start, stop, strict=True)]
    assert max_of_ranges(values, start, stop).tolist() == expected


OOM = {"action": "oom", "size": 512, "stream": 0, "device_free": 1}


def devices(*peaks: int, failed: tuple[int, ...] = (), **more: Any) -> Trace:
    traces = [[alloc(1, peak), *([OOM] if number in failed else [])] for number, peak in enumerate(peaks)]
    return read({"segments": [], "device_traces": traces, **more})


@pytest.mark.parametrize(
    ("trace", "name"),
    [
        (devices(5, 9, 7), "1"),
        (devices(5, 9, 7, failed=(0,)), "0"),
        (devices(5, 9, 7, failed=(0, 2)), "2"),
        (devices(7, 7), "0"),
        (devices(5, host_traces=[[alloc(1, 99)]]), "0"),
    ],
)
def test_the_one_that_ran_out_of_memory_comes_first_then_the_highest_peak(trace: Trace, name: str) -> None:
    assert choose_device(trace).name == name


def test_whoever_asks_for_one_gets_it_or_hears_which_there_are() -> None:
    trace = devices(5, 9, failed=(1,))
    assert choose_device(trace, "0").name == "0"
    with pytest.raises(UsageError, match="has no device 7. Its devices: 0, 1"):
        choose_device(trace, "7")


def test_failures_elsewhere_are_known() -> None:
    trace = devices(5, 9, 3, failed=(1, 2))
    assert [others_out_of_memory(trace, device) for device in trace.devices] == [("1", "2"), ("2",), ("1",)]
