import csv
import io
import json
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.allocations import write_allocations
from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.reasons import Certainty
from memviz.trace.load import load_trace
from memviz.trace.model import Category, Trace
from memviz.trace.write import safe, snapshot_dict, write_events, write_json, write_pickle, write_stacks
from tests import forked
from tests.real import each_real_file, requires_real
from tests.traces import MiB, alloc, block, event, frame, free, read, segment, snapshot, trace_of

BASE = 0x7000_0000_0000
LABELS = {"category": "AQMA", "module": "AAAAAAEAAAAAAAAA", "phase": "AAEC"}
OWN = {
    "version": 1,
    "about": {"origin": "predicted", "on": "H200", "facts": {"model": "m"}},
    "modules": ["", "layers.0"],
    "devices": [{"kind": "gpu", "device": 0, "events": LABELS}],
}
STACK = [frame("forward", "model.py", 3), frame("main", "train.py", 9)]
FULL: dict[str, Any] = snapshot(
    [
        event("segment_alloc", BASE, 2 * MiB, frames=STACK, time_us=4),
        alloc(BASE, 1000, frames=STACK, time_us=5, compile_context="N/A", user_metadata="m", pool_id=(0, 1)),
        {"action": "oom", "device_free": 77, "size": 900 * MiB, "stream": 7, "time_us": 9, "frames": STACK},
    ],
    [
        segment(
            BASE, 2 * MiB, [block(BASE, 1024, 1000, frames=STACK), block(BASE + 1024, 512, 5, "active_pending_free")]
        ),
        segment(2 * BASE, 20 * MiB, [], stream=7, segment_pool_id=(0, 1), is_expandable=True, device=1),
    ],
    allocator_settings={"max_split_size": -1},
    external_annotations=[{"stage": "START", "name": "step", "device": 0, "time_us": 4}],
    host_segments=[segment(BASE, 4096, [])],
    host_traces=[[alloc(BASE, 9)]],
    memviz=OWN,
)


def pickled(trace: Trace) -> bytes:
    file = io.BytesIO()
    write_pickle(trace, file)
    return file.getvalue()


def through_pickle(trace: Trace) -> Trace:
    return read(pickle.loads(pickled(trace)))


def through_json(trace: Trace) -> Trace:
    file = io.StringIO()
    write_json(trace, file)
    return read(json.loads(file.getvalue()))


@pytest.mark.parametrize("again", [through_pickle, through_json])
def test_all_that_a_trace_holds_comes_back(again: Any) -> None:
    trace = read(FULL)
    assert again(trace) == trace
    assert trace.about.label == "predicted for H200"


def test_an_event_is_written_as_torch_writes_it() -> None:
    common = {"frames": STACK, "compile_context": "", "user_metadata": "", "pool_id": (0, 0)}
    assert snapshot_dict(read(FULL))["device_traces"][0] == [
        event("segment_alloc", BASE, 2 * MiB, time_us=4, **common),
        alloc(BASE, 1000, time_us=5, **{**common, "compile_context": "N/A", "user_metadata": "m", "pool_id": (0, 1)}),
        {"action": "oom", "device_free": 77, "size": 900 * MiB, "stream": 7, "time_us": 9, **common},
    ]


def test_a_segment_is_written_as_torch_writes_it() -> None:
    first = snapshot_dict(read(FULL))["segments"][0]
    sums = {"allocated_size": 1024, "active_size": 1536, "requested_size": 1005}
    assert first == {**segment(BASE, 2 * MiB, []), **sums, "blocks": first["blocks"]}
    assert first["blocks"] == [
        block(BASE, 1024, 1000, frames=STACK),
        block(BASE + 1024, 512, 5, "active_pending_free"),
        block(BASE + 1536, 2 * MiB - 1536, 0, "inactive"),
    ]


def test_what_the_file_did_not_have_is_not_invented() -> None:
    written = snapshot_dict(trace_of([alloc(BASE, 1)]))
    assert written == {"segments": [], "device_traces": [[alloc(BASE, 1)]]}


def test_stacks_and_frames_are_shared() -> None:
    other = [frame("other"), STACK[1]]
    root = snapshot_dict(
        trace_of([alloc(BASE, 1, frames=list(STACK)), *free(BASE, 1, frames=STACK), alloc(1, 1, frames=other)])
    )
    first, second, _, last = (each["frames"] for each in root["device_traces"][0])
    assert first is second
    assert first[1] is last[1]


# What the reader inside PyTorch's page (MemoryViz.js) knows; it stops at any other.
KNOWN_THERE = """
PROTO FRAME STOP MARK MEMOIZE BINPUT LONG_BINPUT BINGET LONG_BINGET NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1
BINFLOAT SHORT_BINUNICODE BINUNICODE EMPTY_DICT DICT SETITEM SETITEMS EMPTY_LIST LIST APPEND APPENDS EMPTY_TUPLE TUPLE
TUPLE1 TUPLE2 TUPLE3
"""


def test_pytorchs_page_knows_every_opcode() -> None:
    root = {**FULL, "allocator_settings": {"a": 0.5, "b": True, "c": "x" * 300, "d": 2**63 - 1}}
    many = [alloc(2**64 - 512 * i, i, frames=[frame(f"f{i}")], pool_id=(i, 0)) for i in range(1, 600)]
    del root["memviz"]
    for trace in (read({**root, "device_traces": [many]}), read(FULL)):
        opcodes = {opcode.name for opcode, _, _ in pickletools.genops(pickled(trace))}
        assert opcodes <= set(KNOWN_THERE.split())


# Both subcommands in one process, because importing torch takes seconds.
TORCHS_COMMAND_LINE = """
import runpy, sys
for action in ("stats", "trace"):
    sys.argv = ["_memory_viz", action, sys.argv[-1]]
    runpy.run_module("torch.cuda._memory_viz", run_name="__main__")
"""


def test_torchs_own_command_line_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "out.pickle"
    path.write_bytes(pickled(read(FULL)))
    done = forked.run(["-W", "ignore", "-c", TORCHS_COMMAND_LINE, str(path)], of=forked.with_torch)
    assert done.returncode == 0, done.stderr
    assert "total_reserved: 22.0MiB" in done.stdout
    assert "raise OutOfMemoryError # 900.0MiB requested, 77.0B free in CUDA" in done.stdout


texts = st.text(max_size=8) | st.sampled_from(["N/A", "step", "\ud800"])
numbers = st.integers(0, 2**20) | st.integers(0, 2**40)
# Blocks without an address follow each other, and may not leave the address space.
addresses = st.integers(0, 2**64 - 2**42) | st.sampled_from([BASE, BASE + 512])
frames = st.builds(frame, texts, texts, st.integers(-5, 10**6))
stacks = st.lists(frames, max_size=3)
pools = st.sampled_from([(0, 0), (0, 1), (2, 0)])
streams = st.sampled_from([0, 7, 2**63])
events = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["alloc", "free_requested", "free_completed", "segment_map", "annotate", "new kind"]),
        "addr": addresses,
        "size": numbers,
    },
    optional={
        "stream": streams,
        "time_us": numbers,
        "frames": stacks,
        "forward_frames": st.lists(texts | frames, max_size=2),
        "compile_context": texts,
        "user_metadata": texts,
        "pool_id": pools | pools.map(list),
        "category": st.sampled_from(["parameter", "gradient", "strange"]),
    },
)
ooms = st.fixed_dictionaries({"action": st.just("oom"), "device_free": numbers, "size": numbers, "stream": streams})
states = st.sampled_from(["active_allocated", "active_pending_free", "active_awaiting_free", "inactive"])
blocks = st.fixed_dictionaries(
    {"size": numbers, "state": states},
    optional={"requested_size": numbers, "address": addresses, "frames": stacks, "category": st.just("activation")},
)
segments = st.fixed_dictionaries(
    {"address": addresses, "total_size": numbers, "device": st.integers(0, 2), "blocks": st.lists(blocks, max_size=3)},
    optional={
        "stream": streams,
        "segment_type": st.sampled_from(["small", "large"]),
        "segment_pool_id": pools,
        "is_expandable": st.booleans(),
        "frames": stacks,
    },
)
annotations = st.fixed_dictionaries(
    {"name": texts, "stage": st.sampled_from(["START", "END"]), "device": st.integers(0, 2), "time_us": numbers}
)
histories = st.lists(events | ooms, max_size=6)


def in_time(annotations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Texts are numbered in the order of the file, and annotations are written in the order of their times."""
    return sorted(annotations, key=lambda each: each.get("time_us", 0))


snapshots = st.fixed_dictionaries(
    {"segments": st.lists(segments, min_size=1, max_size=3), "device_traces": st.lists(histories, max_size=3)},
    optional={
        "external_annotations": st.lists(annotations, max_size=3).map(in_time),
        "allocator_settings": st.dictionaries(texts, st.integers() | texts | st.booleans()),
        "host_segments": st.lists(segments, max_size=2),
        "host_traces": st.lists(histories, max_size=2),
    },
)


def without_notes(trace: Trace) -> Trace:
    """Notes of the reader (blocks that leave a gap, say) are about one file."""
    return replace(trace, notes=())


def test_annotations_out_of_order_keep_the_numbers_of_their_names() -> None:
    later, first = ({"name": f"at {time}", "stage": "START", "device": 0, "time_us": time} for time in (2, 1))
    trace = trace_of([alloc(BASE, 512)], external_annotations=[later, first])
    assert through_pickle(trace) == trace


@given(snapshots)
def test_writing_and_reading_is_the_identity(root: Any) -> None:
    trace = without_notes(read(root))
    assert without_notes(through_pickle(trace)) == trace
    assert without_notes(through_json(trace)) == trace


@requires_real
@each_real_file
def test_real_files_come_back(path: Path, tmp_path: Path) -> None:
    trace = load_trace(path)
    copy = tmp_path / "copy.pickle"
    copy.write_bytes(pickled(trace))
    again = load_trace(copy)
    # Indices of texts and stacks depend on the order of reading; their values do not.
    assert snapshot_dict(again) == snapshot_dict(trace)
    assert copy.stat().st_size < 2 * path.stat().st_size


def rows(write: Callable[[Trace, TextIO], None], trace: Trace) -> list[dict[str, str]]:
    file = io.StringIO(newline="")
    write(trace, file)
    file.seek(0)
    return list(csv.DictReader(file))


def header(write: Callable[[Trace, TextIO], None], trace: Trace) -> list[str]:
    file = io.StringIO()
    write(trace, file)
    return file.getvalue().splitlines()[0].split(",")


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
