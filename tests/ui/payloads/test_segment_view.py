"""The allocator's map as words, figures, a table and columns for the browser."""

import re

import gradio as gr
import numpy as np
import pytest

from memviz.analysis.segments import Fragmentation, SegmentsAt, segments_at
from memviz.figures.packed_timeline import unpack
from memviz.trace.model import Trace
from memviz.ui.components.plots import moment_server
from memviz.ui.payloads.segment_view import (
    MOST_GROUPS,
    FreeSpace,
    SegmentGroup,
    fragmentation_html,
    free_space,
    packed_map,
    segment_groups,
    segment_view,
    table_html,
)
from tests.real import FOLDER, read_once, requires_real
from tests.traces import MiB, alloc, block, event, frame, segment, trace_of
from tests.ui.opened import opened
from tests.ui.page import words


def two_segments() -> Trace:
    """Return a trace of a 3 MiB - 1 allocation in a block of 3 MiB, one that waits, and an empty segment."""
    place = [frame("step<b>", "train.py", 7)]
    return trace_of(
        [
            event("segment_alloc", 0, 20 * MiB, time_us=5),
            alloc(0, 3 * MiB - 1, frames=place, time_us=10),
            alloc(4 * MiB, 1 * MiB, time_us=20),
            event("free_requested", 4 * MiB, 1 * MiB, time_us=30),
        ],
        [
            segment(0, 20 * MiB, [block(0, 3 * MiB, 3 * MiB - 1), block(4 * MiB, MiB, state="active_pending_free")]),
            segment(32 * MiB, 2 * MiB, []),
        ],
    )


def at_end(trace: Trace) -> SegmentsAt:
    device = trace.devices[0]
    return segments_at(trace, device, len(device.events) - 1)


def bytes_in(text: str) -> list[int]:
    return [int(each.replace(",", "")) for each in re.findall(r"([\d,]+) B", text)]


def bytes_in_titles(html: str) -> list[int]:
    return [int(each.replace(",", "")) for each in re.findall(r'title="(?:[^":]*: )?([\d,]+) B', html)]


def test_free_space_counts_pieces_and_whole_segments():
    assert free_space(at_end(two_segments())) == FreeSpace(largest=15 * MiB, pieces=3, whole_segments=1)


def test_the_title_says_moment_and_sums():
    trace = two_segments()
    assert (
        segment_view(trace, trace.devices[0], 3).title
        == "event 3 · 2 segments · 22.0 MiB reserved, 18.0 MiB free inside"
    )
    assert segment_view(trace, trace.devices[0], -1).title.startswith("before the first event · 1 segment · 2.00 MiB")


def test_of_a_file_without_segments_nothing_is_summed():
    trace = trace_of([alloc(0, 512), alloc(1024, 512)], segments=[])
    for at in (-1, 1):
        view = segment_view(trace, trace.devices[0], at, with_table=True)
        assert "no segments in the file" in view.title
        assert "reserved memory is not known" in words(view.figures)
        assert view.table == ""


def test_the_map_has_every_tile_with_its_block_and_age():
    trace = two_segments()
    packed = packed_map(trace, trace.devices[0], at_end(trace))
    columns = unpack(packed)
    expected = {
        "segment_size_low": [20 * MiB, 2 * MiB],
        "segment_address_low": [0, 32 * MiB],
        "segment_group": [0, 0],
        "segment_flags": [1, 0],
        "segment_tiles": [4, 1],
        "size_low": [3 * MiB, MiB, MiB, 15 * MiB, 2 * MiB],
        "requested_low": [3 * MiB - 1, 0, MiB, 0, 0],
        "kind": [1, 0, 2, 0, 0],
        "row": [1, 0, 2, 0, 0],
        "start": [2, 0, 3, 0, 0],
        "age_low": [20, 0, 10, 0, 0],
    }
    assert {name: columns[name].tolist() for name in expected} == expected
    assert packed.header["sites"][columns["site"][0]] == "train.py:7 step<b>"
    assert packed.header["groups"] == [["default pool", "2 segments, 22.0 MiB"]]
    assert (packed.header["at"], packed.header["most_reserved"]) == (3, 22 * MiB)
    assert packed.header["is_placed"] is True


def test_a_file_without_times_or_memory_has_no_ages_and_no_tiles():
    empty = trace_of([alloc(0, 5)])
    packed = packed_map(empty, empty.devices[0], at_end(empty))
    columns = unpack(packed)
    assert "age_low" not in columns
    assert (len(columns["segment_size_low"]), len(columns["size_low"])) == (0, 0)
    assert packed.header["is_placed"] is False, "what is pinned may be live, and is in no map"


def test_segments_are_grouped_by_pool_stream_and_kind():
    trace = trace_of(
        [],
        [
            segment(0, 2 * MiB, []),
            segment(10 * MiB, 2 * MiB, [], stream=7),
            segment(20 * MiB, 20 * MiB, [], segment_pool_id=(0, 3)),
            segment(50 * MiB, 4 * MiB, [], is_expandable=True),
        ],
    )
    groups, code = segment_groups(trace, at_end(trace).segments)
    assert groups == (
        SegmentGroup("default pool · stream 0", "1 segment, 2.00 MiB"),
        SegmentGroup("default pool · stream 0 · expandable", "1 mapped range, 4.00 MiB"),
        SegmentGroup("default pool · stream 7", "1 segment, 2.00 MiB"),
        SegmentGroup("private pool 0, 3 · stream 0", "1 segment, 20.0 MiB"),
    )
    assert code.tolist() == [0, 2, 3, 1]


def test_groups_beyond_the_largest_are_one():
    count = MOST_GROUPS + 3
    trace = trace_of([], [segment(i * 32 * MiB, (4 + i) * MiB, [], segment_pool_id=(0, i + 1)) for i in range(count)])
    groups, code = segment_groups(trace, at_end(trace).segments)
    assert len(groups) == MOST_GROUPS + 1
    assert groups[-1] == SegmentGroup("3 smaller groups of other pools and streams", "3 segments, 15.0 MiB")
    assert code[:4].tolist() == [MOST_GROUPS, MOST_GROUPS, MOST_GROUPS, 0]


def test_fragmentation_adds_up_and_has_no_place_for_what_is_never_there():
    parts = Fragmentation(9, 1000, 500, 20, 30, 100, 200, 50, 100, 0)
    terms = fragmentation_html(parts).split("mvs-terms")[1]
    whole, *each = bytes_in_titles(terms)
    assert (whole, sum(each)) == (1000, 1000)
    html = fragmentation_html(Fragmentation(9, 1000, 900, 0, 0, 100, 0, 0, 0, 0))
    assert "waiting" not in html
    assert "mapped pages" not in html
    assert "rounding <b>0 B</b>" in html
    html = fragmentation_html(Fragmentation(9, 0, 0, 0, 0, 0, 0, 0, 0, 2048))
    assert "2.00 KiB" in html


def test_the_table_is_bounded_and_still_adds_up():
    trace = trace_of([], [segment(i * 32 * MiB, (2 + i) * MiB, [block(i * 32 * MiB, 512, 500)]) for i in range(30)])
    html = table_html(trace, at_end(trace), most=10)
    assert html.count("<tr>") == 1 + 10 + 1 + 1
    assert "20 smaller segments" in html
    total = html.split("<tfoot>")[1]
    live, rounding, free, largest, size = bytes_in(re.sub(r' title="[^"]*"', "", total))
    assert (live, rounding, largest) == (30 * 500, 30 * 12, 31 * MiB - 512)
    assert live + rounding + free == size == sum(range(2, 32)) * MiB


@requires_real
@pytest.mark.parametrize(
    "name", ["train-complete", "private-pools", "torch20-oom", "state-only", "forward-many-segments"]
)
def test_real_maps_add_up(name):
    trace = read_once(FOLDER / f"{name}.pickle")
    for device in trace.devices:
        view = segment_view(trace, device, len(device.events) - 1, with_table=True)
        columns = unpack(view.drawing)
        size = columns["size_low"].astype(np.int64) + (columns["size_high"].astype(np.int64) << 32)
        total = re.sub(r' title="[^"]*"', "", view.table.split("<tfoot>")[1])
        assert bytes_in(total)[-1] == int(size.sum())
        whole, *parts = bytes_in_titles(view.figures.split("mvs-terms")[1])
        assert sum(parts) == whole


def test_the_server_answers_for_open_traces_only_and_refuses_in_words():
    context, session = opened(two_segments())
    answer = moment_server(context.find)([{"key": f"{session.chosen}/0", "at": 3, "table": True}])
    assert set(answer) == {"title", "figures", "table", "header", "body"}
    assert "<table" in answer["table"]
    for nobody in ({"key": "guess/0"}, {}, [], "text", None):
        with pytest.raises(gr.Error):
            moment_server(context.find)(nobody)
    with pytest.raises(gr.Error, match="is no meaning of colour"):
        moment_server(context.find)({"key": f"{session.chosen}/0", "at": 3, "colour": "<b>"})


def test_texts_for_the_browser_have_no_hidden_marks():
    trace = trace_of(
        [alloc(0, 512, frames=[frame("a\u202eb\x00c", "x.py", 1)])], [segment(0, 2 * MiB, [block(0, 512)])]
    )
    packed = packed_map(trace, trace.devices[0], at_end(trace))
    assert packed.header["sites"] == ["x.py:1 a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"]
