"""The listed events, and the text of their rows."""

from typing import Any

import gradio as gr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.trace.model import Action, Trace
from memviz.ui.components.tables import MOST_ROWS, page_server, place_server
from memviz.ui.payloads.event_rows import (
    MOST_CACHED,
    EventFilter,
    EventPlace,
    EventRow,
    _Recent,
    chosen_events,
    event_rows,
    list_value,
)
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of
from tests.ui.opened import opened

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
    assert found.place_of(4) == EventPlace(4, True, 6)
    assert found.place_of(-1) == EventPlace(0, False, 6)
    found = chosen_events(small(), small().devices[0], EventFilter((Action.ALLOC, Action.OOM)))
    assert found.place_of(5) == EventPlace(1, True, 2)
    assert found.place_of(3) == EventPlace(1, False, 2)
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


sites = st.sampled_from(["a.py", "b.py"])
steps = st.lists(st.tuples(st.integers(0, 3), st.booleans(), sites), min_size=1, max_size=30)


@given(steps, sites)
def test_choosing_agrees_with_looking_at_every_line(program, wanted):
    events = [
        alloc(at * 512, 512, frames=[frame("f", place)]) if begins else free(at * 512, 512, frames=[frame("f", place)])
        for at, begins, place in program
    ]
    trace = trace_of(events)
    every = event_rows(trace, trace.devices[0], np.arange(len(trace.devices[0].events)))
    assert chosen(trace, text=wanted) == [each.event for each in every if wanted in each.site]


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
        for nobody in ({"key": "guess/0"}, {}, [], None):
            with pytest.raises(gr.Error):
                serve(nobody)


def test_one_answer_is_bounded_whatever_is_asked():
    context, session = opened(trace_of([alloc(i * 512, 512) for i in range(MOST_ROWS + 50)]))
    asked = {"key": f"{session.chosen}/0", "first": 0, "last": 10**9, "actions": "all", "text": None}
    assert len(page_server(context.find)(asked)) == MOST_ROWS
