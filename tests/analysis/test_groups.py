"""Any set of allocations, by place or kind."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.groups import GROUPINGS, Group, Groups, group_rows
from memviz.analysis.lifetimes import lifetimes
from memviz.errors import UsageError
from memviz.trace.model import Category, Labels, Phase, Trace
from tests.analysis.replays import sound_traces
from tests.traces import alloc, block, event, frame, free, ranges, segment, trace_of

MODEL, TRAIN, OTHER = frame("forward", "/p/model.py", 3), frame("step", "/p/train.py", 9), frame("g", "/p/train.py", 9)


def by(trace: Trace, grouping: str, top: int | None = None) -> Groups:
    device = trace.devices[0]
    return group_rows(trace, device, np.arange(len(lifetimes(device))), grouping, top=top)


def brief(trace: Trace, grouping: str) -> list[tuple[str, str, int, int]]:
    return [(group.key, group.label, group.bytes, group.count) for group in by(trace, grouping).groups]


def three_sites() -> Trace:
    return trace_of(
        [
            alloc(1, 10, frames=[MODEL, TRAIN]),
            alloc(2, 30, frames=[TRAIN]),
            alloc(3, 5, frames=[MODEL]),
            alloc(4, 20, frames=[OTHER]),
            alloc(5, 1),
        ]
    )


def test_groups_come_by_bytes_with_their_heaviest_stack_and_last_alloc():
    assert by(three_sites(), "site") == Groups(
        by="site",
        groups=(
            Group("/p/train.py:9 step", "train.py:9 step", 30, 1, 1, 1),
            Group("/p/train.py:9 g", "train.py:9 g", 20, 1, 3, 3),
            Group("/p/model.py:3 forward", "model.py:3 forward", 15, 2, 0, 2),
            Group("no stack recorded", "no stack recorded", 1, 1, None, 4),
        ),
        bytes=66,
        count=5,
    )


def test_what_is_beyond_the_top_is_the_rest_to_the_byte():
    found = by(three_sites(), "site", top=1)
    assert (len(found.groups), found.bytes, found.count, found.rest_bytes, found.rest_count) == (1, 66, 5, 36, 4)


def test_equal_groups_come_by_label():
    trace = trace_of([alloc(1, 5, frames=[TRAIN]), alloc(2, 5, frames=[MODEL])])
    assert [group.label for group in by(trace, "site").groups] == ["model.py:3 forward", "train.py:9 step"]


def test_a_line_is_one_group_whichever_function_it_is_in():
    assert brief(three_sites(), "line") == [
        ("/p/train.py:9", "train.py:9", 50, 2),
        ("/p/model.py:3", "model.py:3", 15, 2),
        ("no stack recorded", "no stack recorded", 1, 1),
    ]


def test_stacks_are_apart_even_where_they_share_a_site():
    assert ("stack 0", "model.py:3 forward", 10, 1) in brief(three_sites(), "stack")
    assert ("stack 2", "model.py:3 forward", 5, 1) in brief(three_sites(), "stack")


def test_streams_pools_and_sizes():
    trace = trace_of([alloc(1, 1500), alloc(2, 7, stream=99, pool_id=(0, 3)), alloc(3, 7)])
    assert brief(trace, "stream") == [("0", "default stream", 1507, 2), ("99", "stream 99", 7, 1)]
    assert brief(trace, "pool") == [("0,0", "default pool", 1507, 2), ("0,3", "pool 0, 3", 7, 1)]
    assert brief(trace, "size") == [("1500", "1,500 B each", 1500, 1), ("7", "7 B each", 14, 2)]


def labelled() -> Trace:
    """The second alloc is labelled; so is the final block that was there before."""
    final = [segment(0, 512, [block(0x10, 100, 60), block(0x100, 100, 40)])]
    trace = trace_of([alloc(1, 10), free(1, 10), alloc(0x100, 40)], final)
    device, names = trace.devices[0], (*trace.strings, "layers.0")
    events = Labels(*(np.zeros(4, dtype) for dtype in (np.uint8, np.int32, np.uint8)))
    category, module, phase = (column.copy() for _, column in events.columns())
    category[3], module[3], phase[3] = Category.ACTIVATION, len(names) - 1, Phase.FORWARD
    blocks = Labels(
        np.full(len(device.blocks), Category.PARAMETER, np.uint8),
        *[np.zeros(len(device.blocks), t) for t in (np.int32, np.uint8)],
    )
    found = replace(device, event_labels=Labels(category, module, phase), block_labels=blocks)
    return replace(trace, devices=(found,), strings=names)


def test_recorded_labels_are_the_groups():
    assert brief(labelled(), "category") == [
        ("parameter", "parameter", 60, 1),
        ("activation", "activation", 40, 1),
        ("unknown", "unknown", 10, 1),
    ]
    assert brief(labelled(), "module") == [("", "no module recorded", 70, 2), ("layers.0", "layers.0", 40, 1)]
    assert brief(labelled(), "phase") == [("unknown", "unknown", 70, 2), ("forward", "forward", 40, 1)]


def test_annotations_are_those_around_the_alloc():
    annotations = ranges(("step", 10, 40), ("inner", 20, 29))
    events = [alloc(i, 1 << i, time_us=time) for i, time in enumerate([5, 10, 25, 35, 50])]
    final = [segment(0x1000, 512, [block(0x1000, 512, 500)])]
    assert brief(trace_of(events, final, external_annotations=annotations), "annotation") == [
        ("before the first event", "before the first event", 500, 1),
        ("no annotation", "no annotation", 17, 2),
        ("'step", "step", 10, 2),
        ("'inner", "inner", 4, 1),
    ]


def test_a_name_cannot_pass_for_none():
    annotations = [{"name": "no annotation", "stage": "START", "device": 0, "time_us": 20}]
    events = [alloc(1, 1, time_us=10), alloc(2, 2, time_us=30)]
    keys = [key for key, *_ in brief(trace_of(events, external_annotations=annotations), "annotation")]
    assert keys == ["'no annotation", "no annotation"]
    trace = trace_of([alloc(1, 1), alloc(2, 2, frames=[frame("no stack recorded", "??", 0)])])
    assert len({group.key for group in by(trace, "site").groups}) == 2


def test_an_unknown_grouping_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="Unknown grouping 'colour'. Choose one of site, line"):
        by(three_sites(), "colour")


@given(sound_traces(), st.sampled_from(sorted(GROUPINGS)), st.integers(0, 3))
def test_groups_and_rest_add_up(trace, grouping, top):
    device = trace.devices[0]
    found, rows = by(trace, grouping, top), lifetimes(device)
    assert sum(group.bytes for group in found.groups) + found.rest_bytes == found.bytes == rows.size.sum()
    assert sum(group.count for group in found.groups) + found.rest_count == found.count == len(rows)
    assert len({group.key for group in found.groups}) == len(found.groups)


def test_no_rows_are_no_groups():
    trace = trace_of([event("snapshot", 0, 0)])
    assert by(trace, "site") == Groups("site", (), 0, 0)
