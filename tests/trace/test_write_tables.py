import csv
import io
from collections.abc import Callable
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.allocations import write_allocations
from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.model import Category, Trace
from memviz.trace.write import safe, write_events, write_stacks
from tests.traces import alloc, block, event, frame, free, read, segment, trace_of


def rows(write: Callable[[Trace, TextIO], None], trace: Trace) -> list[dict[str, str]]:
    file = io.StringIO(newline="")
    write(trace, file)
    file.seek(0)
    return list(csv.DictReader(file))


def header(write: Callable[[Trace, TextIO], None], trace: Trace) -> list[str]:
    file = io.StringIO()
    write(trace, file)
    return file.getvalue().splitlines()[0].split(",")


STACK = [frame("forward", "model.py", 3), frame("main", "train.py", 9)]
OOM = {"action": "oom", "device_free": 77, "size": 900, "stream": 7}
TRACE = trace_of(
    [
        alloc(4096, 1000, time_us=5, frames=STACK, compile_context="N/A", user_metadata="m", pool_id=(0, 1)),
        free(4096, 1000, time_us=8),
        OOM,
        alloc(2**64 - 512, 3),
    ],
    [segment(8192, 2048, [block(8192, 512, 400), block(8704, 512, 300, "active_pending_free")])],
)


def test_events_are_rows_in_order() -> None:
    found = rows(write_events, TRACE)
    assert found[0] == {
        "device": "0",
        "event": "0",
        "time_us": "5",
        "action": "alloc",
        "address": "0x1000",
        "bytes": "1000",
        "device_free": "",
        "stream": "0",
        "pool": "(0, 1)",
        "stack": "0",
        "forward_stack": "",
        "compile_context": "N/A",
        "user_metadata": "m",
    }
    assert [(row["event"], row["action"], row["address"], row["device_free"]) for row in found[1:]] == [
        ("1", "free_requested", "0x1000", ""),
        ("2", "free_completed", "0x1000", ""),
        ("3", "oom", "", "77"),
        ("4", "alloc", "0xfffffffffffffe00", ""),
    ]


def test_allocations_are_rows_from_start_to_end() -> None:
    found = rows(write_allocations, TRACE)
    spans = [(row["start_event"], row["free_requested_event"], row["end_event"], row["bytes"]) for row in found]
    assert spans == [("-1", "", "", "400"), ("-1", "-1", "", "300"), ("0", "1", "2", "1000"), ("4", "", "", "3")]
    assert [(row["start_us"], row["end_us"]) for row in found] == [("", ""), ("", ""), ("5", "8"), ("", "")]
    assert [(row["stack"], row["pool"]) for row in found[1:3]] == [("", "(0, 0)"), ("0", "(0, 1)")]


def test_stacks_are_rows_innermost_first() -> None:
    assert [tuple(row.values()) for row in rows(write_stacks, TRACE)] == [
        ("0", "0", "forward", "model.py", "3"),
        ("0", "1", "main", "train.py", "9"),
    ]


def test_labels_of_our_own_runs_are_in_the_table_of_allocations() -> None:
    labels = {"category": "AQ==", "module": "AQAAAA==", "phase": "Ag=="}
    blocks = {"category": "CA==", "module": "AAAAAA==", "phase": "AA=="}
    device = {"kind": "gpu", "device": 0, "events": labels, "blocks": blocks}
    own = {"version": 1, "modules": ["", "=layer"], "devices": [device]}
    found = rows(write_allocations, trace_of([alloc(1, 1)], [{**segment(512, 512, [block(512, 512)])}], memviz=own))
    assert [(row["category"], row["certainty"], row["module"], row["phase"]) for row in found] == [
        ("workspace", "stated", "", ""),
        ("parameter", "stated", "'=layer", "backward"),
    ]


def test_what_is_inferred_stands_in_the_table_with_how_sure_it_is() -> None:
    linear = [frame("_call_impl", "/torch/nn/modules/module.py"), frame("train", "train.py")]
    backward = [frame("torch::autograd::Engine::thread_main", "??")]
    trace = trace_of([alloc(0, 9, frames=linear), alloc(512, 9, frames=backward), alloc(1024, 9)])
    said = categories(trace, trace.devices[0])
    found = rows(write_allocations, trace)
    assert [row["certainty"] for row in found] == [
        Certainty(code).word if code else "" for code in said.certainty.tolist()
    ]
    assert [(row["category"], row["phase"]) for row in found] == [
        (Category(code).label if code else "", phase)
        for code, phase in zip(said.category.tolist(), ("forward", "backward", ""), strict=True)
    ]
    assert found[0]["category"]


@pytest.mark.parametrize("write", [write_events, write_allocations, write_stacks])
def test_a_table_without_rows_still_has_its_header(write: Any) -> None:
    assert len(header(write, read([segment(512, 512, [])]))) >= 5


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_no_text_can_become_a_formula(text: str) -> None:
    trace = trace_of([alloc(1, 1, user_metadata=text, compile_context=text, frames=[frame(text, text)])])
    event, stack = rows(write_events, trace)[0], rows(write_stacks, trace)[0]
    assert {event["user_metadata"], event["compile_context"], stack["function"], stack["file"]} == {f"'{text}"}
    action = rows(write_events, trace_of([{"action": text, "addr": 1, "size": 1}]))[0]["action"]
    assert action == f"'{text}"


@given(st.text())
def test_any_text_can_be_written_and_read_as_utf8(text: str) -> None:
    trace = trace_of([alloc(1, 1, user_metadata=text)])
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    write_events(trace, file)
    file.seek(0)
    assert next(csv.DictReader(file))["user_metadata"] == safe(text)


def test_a_free_of_which_only_the_end_is_on_record_was_not_asked_for_at_an_event() -> None:
    """Its row would else name an event that is no request."""
    trace = trace_of([alloc(1, 5), event("free_completed", 1, 5), alloc(2, 5), *free(2, 5), alloc(3, 5), alloc(3, 6)])
    told = [(row["free_requested_event"], row["end_event"]) for row in rows(write_allocations, trace)]
    assert told == [("", "1"), ("3", "4"), ("", "6"), ("", "")]
