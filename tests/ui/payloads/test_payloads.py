"""Values for the browser: the timeline's, the listed events and their rows, and the allocator's map."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import gradio as gr
import numpy as np
import pytest

from memviz.analysis.segments import Fragmentation, SegmentsAt, segments_at
from memviz.figures.packed_timeline import unpack
from memviz.trace.model import About, Action, Trace
from memviz.ui.components.plots import moment_server
from memviz.ui.components.tables import MOST_ROWS, page_server, place_server
from memviz.ui.payloads.event_rows import (
    MOST_CACHED,
    EventFilter,
    EventRow,
    _Recent,
    chosen_events,
    event_rows,
    list_value,
)
from memviz.ui.payloads.segment_view import (
    MOST_GROUPS,
    fragmentation_html,
    moment_of,
    packed_map,
    segment_groups,
    table_html,
)
from memviz.ui.payloads.timelines import timeline_value
from tests.real import FOLDER, read_once, requires_real
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of
from tests.ui.opened import opened
from tests.ui.page import words


def predicted(card_bytes: str) -> Trace:
    trace = trace_of([event("segment_alloc", 0, 20 * MiB), alloc(0, 12 * MiB)])
    return replace(
        trace, about=About("predicted", on="NVIDIA <b>RTX</b> 4090 Laptop", facts={"card_bytes": card_bytes})
    )


def line(trace: Trace) -> object:
    return timeline_value(trace, trace.devices[0], "key/0").get("ruler")


def test_the_card_of_a_prediction_is_a_line_with_room_above_it() -> None:
    trace = predicted(str(24 * MiB))
    value = timeline_value(trace, trace.devices[0], "key/0")
    assert (value["ruler"]["bytes"], value["ruler"]["is_limit"]) == (24 * MiB, True)
    assert value["ruler"]["text"].startswith("NVIDIA")
    assert len(value["ruler"]["text"]) <= 16
    assert value["top"] > 24 * MiB
    # What was reserved is higher than a smaller card.
    small = predicted(str(10 * MiB))
    assert timeline_value(small, small.devices[0], "key/0")["top"] > 20 * MiB


@pytest.mark.parametrize("card_bytes", ["", "0", "-5", "many", "9" * 5000, str(41 * MiB)])
def test_a_card_that_is_not_known_or_far_above_the_peak_has_no_line(card_bytes: str) -> None:
    assert line(predicted(card_bytes)) is None


HERE = [frame("forward", "model.py", 7)]
THERE = [frame("step", "train.py", 9)]


def annotation(name: str, start: int, end: int) -> list[dict[str, Any]]:
    return [
        {"name": name, "stage": stage, "device": 0, "time_us": at} for stage, at in (("START", start), ("END", end))
    ]


def small() -> Trace:
    """Return a trace of an alloc and its free, an out of memory, and the free of an older block."""
    return trace_of(
        [
            event("segment_alloc", 0x100000, 2 * MiB, time_us=1000, frames=THERE),
            alloc(0x100000, 3000, time_us=1500, frames=HERE),
            *free(0x100000, 3000, time_us=2000, frames=THERE),
            event("free_completed", 0x900000, 512, time_us=2500, frames=THERE),
            {
                "action": "oom",
                "device_free": 5 * MiB,
                "size": 900 * MiB,
                "stream": 0,
                "time_us": 1234567,
                "frames": THERE,
            },
        ],
        [segment(0x100000, 2 * MiB, [])],
        external_annotations=[*annotation("outer", 900, 2000), *annotation("inner", 1400, 1600)],
    )


def rows(trace: Trace, *events: int) -> tuple[EventRow, ...]:
    return event_rows(trace, trace.devices[0], np.array(events, dtype=np.int64))


def chosen(trace: Trace, *actions: int, text: str = "") -> list[int]:
    found = chosen_events(trace, trace.devices[0], EventFilter(actions, text))
    return found.rows(0, found.count).tolist()


def test_a_line_says_everything_of_an_event():
    assert rows(small(), 1) == (
        EventRow(
            event=1,
            time="0.500",
            action="alloc",
            bytes="+2.93 KiB",
            exact="3,000 B",
            address="0x100000",
            stream="0",
            pool="default",
            site="model.py:7 forward",
            annotation="inner",
            look="grew",
        ),
    )


def test_a_free_names_what_it_frees_or_says_why_not():
    asked, done = rows(small(), 2, 3)
    assert (asked.site, asked.bytes, asked.look) == ("model.py:7 forward", "2.93 KiB", "plain")
    assert (done.site, done.bytes, done.look) == ("model.py:7 forward", "−2.93 KiB", "shrank")
    assert rows(small(), 4)[0].site == "allocated before the first event"
    trace = trace_of([alloc(0, 512), *free(0, 512), event("free_completed", 0, 512, frames=HERE)])
    assert rows(trace, 3)[0].site == "its allocation is not in this file"


def test_what_changes_the_device_stands_out():
    (oom,) = rows(small(), 5)
    assert (oom.action, oom.bytes, oom.address, oom.look) == ("out of memory", "900 MiB", "5.00 MiB free", "oom")
    assert (oom.time, oom.site) == ("1,233.567", "train.py:9 step")
    (taken,) = rows(small(), 0)
    assert (taken.action, taken.bytes, taken.look) == ("segment alloc", "+2.00 MiB", "device-grew")


def test_times_streams_and_pools_are_those_of_the_file():
    assert rows(trace_of([alloc(0, 1)]), 0)[0].time == ""
    pieces = [segment(0, 2 * MiB, [block(0, 512)], segment_pool_id=(0, 4))]
    trace = trace_of([alloc(0, 512, stream=77, pool_id=(0, 4))], pieces)
    assert (rows(trace, 0)[0].stream, rows(trace, 0)[0].pool) == ("77", "0, 4")


@pytest.mark.parametrize(
    ("actions", "text", "events"),
    [
        ((Action.ALLOC, Action.OOM), "", [1, 5]),
        ((63, 900, -3), "", []),
        # A site in any case, with its frees; an annotation with all inside it.
        ((), "MODEL.py", [1, 2, 3]),
        ((), "outer", [0, 1, 2, 3]),
        ((), "inner", [1]),
        ((Action.FREE_COMPLETED,), "forward", [3]),
        # A text is no pattern.
        *(((), text, []) for text in (".*", "model.py:7 fo.ward", "%s", "\\", "[", "{}", "${value}")),
    ],
)
def test_filters_choose_by_action_and_text(actions: tuple[int, ...], text: str, events: list[int]):
    assert chosen(small(), *actions, text=text) == events


def test_places_among_the_chosen():
    found = chosen_events(small(), small().devices[0], EventFilter())
    assert (found.numbers, found.count) == (None, 6)
    assert found.rows(4, 99).tolist() == [4, 5]
    assert found.place_of(4) == {"row": 4, "is_there": True, "count": 6}
    assert found.place_of(-1) == {"row": 0, "is_there": False, "count": 6}
    found = chosen_events(small(), small().devices[0], EventFilter((Action.ALLOC, Action.OOM)))
    assert found.place_of(5) == {"row": 1, "is_there": True, "count": 2}
    assert found.place_of(3) == {"row": 1, "is_there": False, "count": 2}
    assert found.rows(-5, 1).tolist() == [1]


def test_only_the_last_few_filters_are_kept():
    trace = small()
    for i in range(MOST_CACHED + 5):
        chosen(trace, text=f"t{i}")
    (recent,) = [each for each in trace.__dict__["_kept"].values() if isinstance(each, _Recent)]
    assert [each.text for each in recent.found] == [f"t{i}" for i in range(5, MOST_CACHED + 5)]


def test_hostile_texts_stay_texts_without_hidden_marks():
    bad = '<img src=x onerror="alert(1)">${value}{{x}}\u202e'
    trace = trace_of(
        [event(bad, 0, 5, time_us=7, frames=[frame(bad, f"{bad}.py")])], external_annotations=annotation(bad, 1, 9)
    )
    (row,) = rows(trace, 0)
    shown = bad.replace("\u202e", "\N{REPLACEMENT CHARACTER}")
    assert (row.action, row.site, row.annotation) == (shown, f"{shown}.py:1 {shown}", shown)
    assert chosen(trace, text=bad) == [0]


def test_the_list_is_given_its_length_kinds_and_columns():
    value = list_value(small(), small().devices[0], "k", 2)
    assert value == {
        "key": "k",
        "at": 2,
        "count": 6,
        "actions": [
            [0, "alloc", 1],
            [1, "free requested", 1],
            [2, "free completed", 2],
            [3, "segment alloc", 1],
            [8, "out of memory", 1],
        ],
        "has_times": True,
        "has_annotations": True,
        "many_streams": False,
        "many_pools": False,
    }


def test_the_server_gives_pages_and_places_of_open_traces_only():
    context, session = opened(small())
    key = f"{session.chosen}/0"
    page = page_server(context.find)([{"key": key, "actions": [0, 8], "text": "", "first": 1, "last": 50}])
    assert [row[0] for row in page] == [5]
    place = place_server(context.find)({"key": key, "actions": [], "text": " forward ", "at": 3})
    assert place == {"row": 2, "is_there": True, "count": 3}
    for serve in (page_server(context.find), place_server(context.find)):
        for unknown in ({"key": "guess/0"}, {}, [], None):
            with pytest.raises(gr.Error):
                serve(unknown)


def test_one_answer_is_bounded_whatever_is_asked():
    context, session = opened(trace_of([alloc(i * 512, 512) for i in range(MOST_ROWS + 50)]))
    asked = {"key": f"{session.chosen}/0", "first": 0, "last": 10**9, "actions": "all", "text": None}
    assert len(page_server(context.find)(asked)) == MOST_ROWS


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


def test_title_and_free_space_say_moment_sums_pieces_and_whole_segments():
    trace = two_segments()
    view = moment_of(trace, trace.devices[0], {"at": 3})
    assert view["title"] == "event 3 · 2 segments · 22.0 MiB reserved, 18.0 MiB free inside"
    assert words(view["figures"]).startswith("largest free piece 15.0 MiB free pieces 3 whole segments free 1")
    before = moment_of(trace, trace.devices[0], {"at": -1})["title"]
    assert before.startswith("before the first event · 1 segment · 2.00 MiB")


def test_of_a_file_without_segments_nothing_is_summed():
    trace = trace_of([alloc(0, 512), alloc(1024, 512)], segments=[])
    for at in (-1, 1):
        view = moment_of(trace, trace.devices[0], {"at": at, "table": True})
        assert "no segments in the file" in view["title"]
        assert "reserved memory is not known" in words(view["figures"])
        assert view["table"] == ""


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
    assert groups == [
        ["default pool · stream 0", "1 segment, 2.00 MiB"],
        ["default pool · stream 0 · expandable", "1 mapped range, 4.00 MiB"],
        ["default pool · stream 7", "1 segment, 2.00 MiB"],
        ["private pool 0, 3 · stream 0", "1 segment, 20.0 MiB"],
    ]
    assert code.tolist() == [0, 2, 3, 1]


def test_groups_beyond_the_largest_are_one():
    count = MOST_GROUPS + 3
    trace = trace_of([], [segment(i * 32 * MiB, (4 + i) * MiB, [], segment_pool_id=(0, i + 1)) for i in range(count)])
    groups, code = segment_groups(trace, at_end(trace).segments)
    assert len(groups) == MOST_GROUPS + 1
    assert groups[-1] == ["3 smaller groups of other pools and streams", "3 segments, 15.0 MiB"]
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
        last = len(device.events) - 1
        view = moment_of(trace, device, {"at": last, "table": True})
        columns = unpack(packed_map(trace, device, segments_at(trace, device, last)))
        size = columns["size_low"].astype(np.int64) + (columns["size_high"].astype(np.int64) << 32)
        total = re.sub(r' title="[^"]*"', "", view["table"].split("<tfoot>")[1])
        assert bytes_in(total)[-1] == int(size.sum())
        whole, *parts = bytes_in_titles(view["figures"].split("mvs-terms")[1])
        assert sum(parts) == whole


def test_the_server_answers_for_open_traces_only_and_refuses_in_words():
    context, session = opened(two_segments())
    answer = moment_server(context.find)([{"key": f"{session.chosen}/0", "at": 3, "table": True}])
    assert set(answer) == {"title", "figures", "table", "header", "body"}
    assert "<table" in answer["table"]
    for unknown in ({"key": "guess/0"}, {}, [], "text", None):
        with pytest.raises(gr.Error):
            moment_server(context.find)(unknown)
    with pytest.raises(gr.Error, match="is no meaning of colour"):
        moment_server(context.find)({"key": f"{session.chosen}/0", "at": 3, "colour": "<b>"})


def test_texts_for_the_browser_have_no_hidden_marks():
    trace = trace_of(
        [alloc(0, 512, frames=[frame("a\u202eb\x00c", "x.py", 1)])], [segment(0, 2 * MiB, [block(0, 512)])]
    )
    packed = packed_map(trace, trace.devices[0], at_end(trace))
    assert packed.header["sites"] == ["x.py:1 a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}c"]
