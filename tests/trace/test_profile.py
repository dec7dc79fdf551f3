"""Traces of torch's profiler: contents, filled gaps, and refusals of hostile ones."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memviz
from memviz.analysis.callstacks.sites import path_of
from memviz.analysis.health import health, history
from memviz.analysis.lifetimes import matched
from memviz.analysis.timeline import timeline
from memviz.errors import TraceError
from memviz.results.findings import findings_result
from memviz.trace.load import load_trace
from memviz.trace.model import Action, Trace
from memviz.trace.profile import BEFORE, is_profiled
from memviz.trace.write import write_pickle
from memviz.ui.payloads.segment_view import moment_of
from memviz.ui.saved.report import report_page
from tests.facts import missing
from tests.traces import MiB

CUDA = {"Device Type": 1, "Device Id": 0}
PROCESSOR = {"Device Type": 0, "Device Id": -1}
FORWARD, BACKWARD = {"pid": 1, "tid": 10}, {"pid": 1, "tid": 20}


def memory(at: float, addr: int, size: int, total: int | None = None, reserved: int | None = None, **more: Any) -> dict:
    where, thread = more.pop("where", CUDA), more.pop("thread", FORWARD)
    told = {"Addr": addr, "Bytes": size, **where}
    told |= {} if total is None else {"Total Allocated": total, "Total Reserved": reserved}
    return {
        "ph": "i",
        "s": "t",
        "name": "[memory]",
        "cat": "cpu_instant_event",
        "ts": at,
        **thread,
        "args": told,
    } | more


def call(name: str, begin: float, end: float, kind: str = "cpu_op", thread: dict[str, int] = FORWARD) -> dict[str, Any]:
    return {"ph": "X", "cat": kind, "name": name, "ts": begin, "dur": end - begin, **thread, "args": {}}


def rows() -> list[dict[str, Any]]:
    """10 MiB there before, of which 3 are freed; 4 and 2 MiB come, and 2 go."""
    return [
        call("ProfilerStep#7", 0, 1000, "user_annotation"),
        call("train.py(20): main", 0, 900, "python_function"),
        call("model.py(5): forward", 50, 300, "python_function"),
        call("aten::mm", 90, 110),
        memory(100.5, 0x1000, 4 * MiB, 14 * MiB, 20 * MiB),
        memory(150, 0x9000, -3 * MiB, 11 * MiB, 20 * MiB),
        call("MmBackward0", 400, 500, thread=BACKWARD),
        memory(450, 0x2000, 2 * MiB, 13 * MiB, 32 * MiB, thread=BACKWARD),
        memory(600, 0x2000, -2 * MiB, 11 * MiB, 32 * MiB),
        memory(120, 0x77, 999, where=PROCESSOR),
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 91, "dur": 5, "pid": 0, "tid": 7, "args": {"device": 0}},
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
    ]


def opened(folder: Path, root: Any, name: str = "trace.json") -> Trace:
    path = folder / name
    raw = json.dumps(root).encode()
    path.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return load_trace(path)


def whole(events: list[Any]) -> dict[str, Any]:
    return {"schemaVersion": 1, "baseTimeNanoseconds": 1_000_000_000, "traceEvents": events}


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return opened(tmp_path_factory.mktemp("profile"), whole(rows()), "trace.json.gz")


def stack(trace: Trace, event: int) -> list[str]:
    device, strings, frames = trace.devices[0], trace.strings, trace.stacks.frames
    return [
        f"{path_of(strings[frames.filename[i]])}:{frames.line[i]} {strings[frames.name[i]]}"
        for i in trace.stacks.of(int(device.events.stack[event]))
    ]


def test_bytes_are_those_that_the_profiler_counts(trace: Trace):
    (device,) = trace.devices
    figures = timeline(device)
    # The third is the segment that the fourth made grow.
    assert (figures.live / MiB).tolist() == [10, 14, 11, 11, 13, 11]
    assert (figures.reserved / MiB).tolist() == [20, 20, 20, 32, 32, 32]
    assert device.events.time_us.tolist() == [1_000_100, 1_000_150, 1_000_450, 1_000_450, 1_000_600]
    assert not matched(device).faults and history(device) == "late"


def test_what_was_there_before_is_one_named_row(trace: Trace):
    told = memviz.open(trace).peak().as_json()
    assert told["peak_bytes"] == 14 * MiB and sum(row["bytes"] for row in told["rows"]) == 14 * MiB
    # What is freed later was one of its own, so 7 of the 10 are left.
    assert {row["site"]: row["bytes"] // MiB for row in told["rows"]}[BEFORE] == 7


def test_a_stack_is_what_ran_on_the_same_thread(trace: Trace):
    assert stack(trace, 0) == ["/:0 aten::mm", "/model.py:5 forward", "/train.py:20 main"]
    assert stack(trace, 1) == ["/model.py:5 forward", "/train.py:20 main"]
    assert stack(trace, 3) == ["/:0 MmBackward0"]
    assert stack(trace, 4) == ["/train.py:20 main"]


def test_what_it_lacks_is_said_and_stays_said_in_a_snapshot_of_it(trace: Trace, tmp_path: Path):
    codes = {note.code for note in (*trace.notes, *health(trace))}
    assert {"profiler_trace", "inferred_stacks", "other_memory", "before_profile"} <= codes
    assert not codes & {"contradictions", "unplaced", "no_segments", "processor"}
    with (tmp_path / "again.pickle").open("wb") as file:
        write_pickle(trace, file)
    again = load_trace(tmp_path / "again.pickle")
    assert is_profiled(again) and "profiler_trace" in {note.code for note in health(again)}
    assert timeline(again.devices[0]) == timeline(trace.devices[0])


def test_every_answer_takes_it(trace: Trace):
    device = trace.devices[0]
    assert memviz.open(trace).peak().live_bytes == 14 * MiB
    assert findings_result(trace).rows == ()
    assert memviz.open(trace).replay(memory=1 << 30).as_json()["exact"] is False
    assert "segments" in moment_of(trace, device, {"at": 3})["title"]
    assert "sizes are those of blocks" in report_page([(trace, device)])


def test_a_list_of_events_is_one_too_and_the_processor_counts_where_no_gpu_does(tmp_path: Path):
    trace = opened(tmp_path, [memory(1, 16, 100, where=PROCESSOR), memory(2, 32, 50, where=PROCESSOR)])
    assert timeline(trace.devices[0]).live.tolist() == [0, 100, 150]
    assert "processor" in {note.code for note in trace.notes} and not len(trace.devices[0].segments)


def test_devices_are_apart_and_running_out_is_kept(tmp_path: Path):
    other = {"Device Type": 1, "Device Id": 3}
    events = [
        memory(1, 16, 100),
        memory(2, 16, 70, where=other),
        memory(3, 0, 1 << 30, where=other, name="[OutOfMemory]"),
    ]
    first, second = opened(tmp_path, whole(events)).devices
    assert (first.device, second.device) == (0, 3)
    assert second.events.action.tolist() == [Action.ALLOC, Action.OOM] and second.events.size[1] == 1 << 30


def test_sums_that_are_off_are_said(tmp_path: Path):
    events = [memory(1, 16, 100, 100, 512), memory(2, 32, 100, 900, 512)]
    assert "missing_events" in {note.code for note in opened(tmp_path, whole(events)).notes}


@pytest.mark.slow
def test_what_torch_itself_writes_adds_up(tmp_path: Path):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Linear(8, 4)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as profiled:
        model(torch.randn(3, 8)).sum().backward()
    profiled.export_chrome_trace(str(tmp_path / "cpu.json"))
    told = [
        row["args"]
        for row in json.loads((tmp_path / "cpu.json").read_text())["traceEvents"]
        if row["name"] == "[memory]"
    ]
    trace = load_trace(tmp_path / "cpu.json")
    assert np.array_equal(timeline(trace.devices[0]).live[1:], [row["Total Allocated"] for row in told])
    assert not matched(trace.devices[0]).faults.implied_frees
    here = Path(__file__).name
    assert any(here in line for event in range(len(told)) for line in stack(trace, event))


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([call("aten::mm", 0, 1)], "without memory events"),
        ([memory(float("1e300"), 0, 1)], "'ts'"),
        ([{**memory(1, 0, 1), "ts": "now"}], "'ts'"),
        ([memory(1, 0, 1 << 70)], "'Bytes'"),
        ([memory(1, "x", 1)], "'Addr'"),
        ([memory(1, 0, 1, where={"Device Type": 1, "Device Id": 10**9})], "number"),
        ([memory(1, 0, 1, where={"Device Type": [], "Device Id": 0})], "type"),
        ([memory(1, 0, 1 << 62), memory(2, 1, 1 << 62)], "beyond any real memory"),
    ],
)
def test_wrong_ones_are_refused_in_words(tmp_path: Path, events: list[Any], words: str):
    with pytest.raises(TraceError, match=words):
        opened(tmp_path, whole(events))


def test_calls_that_nest_too_deep_are_cut_or_refused_in_time(tmp_path: Path):
    deep = [call(f"f{n % 7}", n, 200_000 - n) for n in range(20_000)]
    deep += [memory(n + 0.5, n, 512) for n in range(0, 20_000, 50)]
    trace = opened(tmp_path, whole(deep))
    assert len(trace.stacks.of(int(trace.devices[0].events.stack[-1]))) == 2000


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**65), 2**65), st.floats(), st.text(max_size=5), st.just([])
)
ROWS = st.fixed_dictionaries(
    {"name": st.sampled_from(["[memory]", "[OutOfMemory]", "f.py(1): g"]), "ph": st.sampled_from(["i", "X"])},
    optional={
        "ts": VALUES,
        "dur": VALUES,
        "tid": VALUES,
        "cat": st.sampled_from(["cpu_op", "user_annotation", ""]),
        "args": st.dictionaries(
            st.sampled_from(
                ["Addr", "Bytes", "Device Id", "Device Type", "Total Allocated", "Total Reserved", "Ev Idx"]
            ),
            VALUES,
        ),
    },
)


@given(st.lists(st.one_of(ROWS, st.sampled_from(rows()), VALUES), max_size=8))
def test_odd_values_end_in_a_trace_or_a_refusal(tmp_path_factory: pytest.TempPathFactory, events: list[Any]):
    path = tmp_path_factory.getbasetemp() / "odd.json"
    path.write_text(json.dumps(whole(events), allow_nan=False, default=str) if _is_json(events) else "{}")
    try:
        trace = load_trace(path)
    except TraceError:
        return
    for device in trace.devices:
        assert timeline(device).live.min() >= 0 and timeline(device).reserved.min() >= 0


def _is_json(events: Any) -> bool:
    try:
        json.dumps(events, allow_nan=False)
    except ValueError:
        return False
    return True


RAW = [
    [-1, 1, 100, 0],
    [5_000, 2, 40, 3],
    [6_000, 3, -40, 3],
    [6_000, 3, 40, 5],
    [7_000, 2, 7, 7],
    [7_500, 3, -7, 7],
    [7_500, 3, 7, 7],
    [9_000, 4, -40, 5],
]
"""Weights, and a tensor that becomes a gradient: time in ns, action, bytes, category."""
SUMS = [[5, 6, 7, 9], [[0, 100, 0, 0, 40, 0, 0, 0, 0], [0, 100, 0, 0, 0, 0, 40, 0, 0]]]
SUMS[1] += [[0, 100, 0, 0, 0, 0, 40, 0, 7], [0, 100, 0, 0, 0, 0, 10, 0, 7]]


def live_at_times(trace: Trace) -> dict[int, int]:
    events = trace.devices[0].events
    return dict(zip(events.time_us.tolist(), timeline(trace.devices[0]).live[1:].tolist(), strict=True))


def test_a_memory_timeline_has_its_sizes_at_every_time(tmp_path: Path) -> None:
    raw = opened(tmp_path, RAW, "a.raw.json.gz")
    assert live_at_times(raw) == {5: 140, 6: 140, 7: 147, 9: 107}
    assert live_at_times(opened(tmp_path, SUMS, "a.json")) == {5: 140, 6: 140, 7: 147, 9: 117}
    assert raw.about.format == "profiler memory timeline, JSON, gzip"
    groups = memviz.open(tmp_path / "a.raw.json.gz").peak("category").groups
    assert {group.label: group.bytes for group in groups} == {"parameter": 100, "gradient": 40, "unknown": 7}
    assert missing(raw.notes[0].text, "addresses", "reserved") == []


@pytest.mark.parametrize(
    "root",
    [
        [*RAW, [1, 2, 3]],
        [*RAW, [1, 9, 3, 0]],
        [*RAW, [1, 2, 3, 8]],
        [*RAW, [1, 2, 1 << 63, 0]],
        [*RAW, *([1, 2, (1 << 62) - 1, 0] for _ in range(4))],
        [[1, 2], [[0] * 9]],
        [[1], [[0] * 8]],
        [[1], [[0, -1, *[0] * 7]]],
        [["now"], [[0] * 9]],
    ],
)
def test_a_timeline_that_is_none_is_refused(tmp_path: Path, root: Any) -> None:
    with pytest.raises(TraceError):
        opened(tmp_path, root, "a.json")


@pytest.mark.slow
def test_a_timeline_that_torch_exports_is_read_with_torchs_own_sums(tmp_path: Path) -> None:
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.profiler.profile(profile_memory=True, record_shapes=True, with_stack=True) as profile:
        for _ in range(2):
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    with pytest.warns(FutureWarning):
        for name in ("a.json", "a.json.gz", "a.raw.json.gz"):
            profile.export_memory_timeline(str(tmp_path / name), device="cpu")
    times, rows = json.loads((tmp_path / "a.json").read_text())
    expected = {time: sum(row) for time, row in zip(times, rows, strict=True)}
    assert max(expected.values()) > 0
    for name in ("a.json", "a.json.gz", "a.raw.json.gz"):
        live = live_at_times(load_trace(tmp_path / name))
        assert {time: expected[time] for time in live} == live
