"""`record_function` ranges as intervals of events."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.allocations import allocation, write_allocations
from memviz.analysis.annotations import (
    NO_INTERVAL,
    StepRange,
    annotated,
    annotation_of_events,
    interval_peaks,
    steps,
)
from memviz.analysis.comparing.changes import scores
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.lifetimes import has_times
from memviz.analysis.overview import overview
from memviz.analysis.purpose.phases import phase_name, phase_spans, step_name
from memviz.analysis.timeline import timeline
from memviz.trace.model import About, DeviceTrace, Trace
from memviz.trace.write import snapshot_dict
from memviz.ui.payloads.timelines import phase_bands
from tests.analysis.training import logits_held_through_the_next_forward, of_kind
from tests.traces import alloc, free, ranges, read, snapshot, trace_of

Row = tuple[str, str, int]


def annotated_trace(rows: list[Row], times: list[int]) -> Trace:
    """Return a trace of one alloc of 1, 2, 4, ... bytes at each of these times."""
    events = [alloc(i, 1 << i, time_us=time) for i, time in enumerate(times)]
    given = [{"name": name, "stage": stage, "device": 0, "time_us": time} for name, stage, time in rows]
    return trace_of(events or [alloc(1, 1, time_us=5)], external_annotations=given)


def brief(trace: Trace) -> list[tuple]:
    """Name, first and last event, depth, whether it is open, peak."""
    found = annotated(trace.devices[0])
    names = [trace.strings[code] for code in found.name]
    columns = (found.start_event, found.end_event, found.depth, found.is_open, interval_peaks(trace.devices[0]))
    return list(zip(names, *(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("rows", "times", "found"),
    [
        ([("a", "START", 15), ("a", "END", 30)], [10, 20, 30, 40], [("a", 1, 2, 0, False, 7)]),
        (
            [("a", "START", 10), *((name, "START", 20) for name in "ab"), ("a", "END", 20), ("b", "END", 30)]
            + [("a", "END", 40)],
            [10, 20, 30, 40],
            [("a", 0, 3, 0, False, 15), ("a", 1, 1, 1, False, 3), ("b", 1, 2, 2, False, 7)],
        ),
        ([("a", "START", 20)], [10, 20, 30], [("a", 1, 2, 0, True, 7)]),
        (
            [("a", "END", 5), ("a", "START", 10), ("a", "END", 15), ("a", "END", 16)],
            [10, 20],
            [("a", 0, 0, 0, False, 1)],
        ),
        (
            [("a", "START", 12), ("a", "END", 15), ("b", "START", 99)],
            [10, 20],
            [("a", 1, 0, 0, False, 1), ("b", 2, 1, 0, True, 3)],
        ),
    ],
    ids=[
        *("the events between", "an end closes the latest start of its name", "no end", "ends without a start"),
        "without events it peaks at what was live",
    ],
)
def test_an_interval_holds_the_events_between_its_start_and_its_end(rows, times, found):
    assert brief(annotated_trace(rows, times)) == found


def test_what_was_live_at_the_start_counts_for_the_peak():
    events = [alloc(1, 10, time_us=10), *free(1, 10, time_us=20), alloc(2, 3, time_us=30)]
    assert brief(trace_of(events, external_annotations=ranges(("a", 15, 40)))) == [("a", 1, 3, 0, False, 10)]


def test_without_times_or_annotations_none_is_placed():
    rows = [{"name": "a", "stage": "START", "device": 0, "time_us": 5}]
    for trace in (trace_of([alloc(1, 1)], external_annotations=rows), trace_of([alloc(1, 1, time_us=5)])):
        assert len(annotated(trace.devices[0])) == 0


def plain_pairs(device: DeviceTrace) -> list[tuple[int, int]]:
    """(row of the START, row of its END or -1), by a stack per name."""
    rows, ends = device.annotations, {}
    open_rows: dict[int, list[int]] = {}
    for i, (name, stage) in enumerate(zip(rows.name.tolist(), rows.stage.tolist(), strict=True)):
        if stage == 0:
            open_rows.setdefault(name, []).append(i)
            ends[i] = -1
        elif open_rows.get(name):
            ends[open_rows[name].pop()] = i
    return sorted(ends.items())


some_rows = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["START", "END"])), max_size=20)
TIMES = [5, 15, 25, 30, 45, 70]


def numbered(rows: list[tuple[str, str]]) -> Trace:
    return annotated_trace([(name, stage, 10 + 3 * i) for i, (name, stage) in enumerate(rows)], TIMES)


@given(some_rows)
def test_starts_and_ends_pair_as_a_stack_per_name_pairs_them(rows):
    device = numbered(rows).devices[0]
    found, times = annotated(device), device.annotations.time_us
    pairs = plain_pairs(device)
    assert found.start_us.tolist() == [times[start] for start, _ in pairs]
    assert found.is_open.tolist() == [end < 0 for _, end in pairs]
    closed = ~found.is_open
    assert found.end_us[closed].tolist() == [times[end] for _, end in pairs if end >= 0]


@given(some_rows)
def test_the_peak_of_each_interval_is_the_most_that_was_live_in_it(rows):
    device = numbered(rows).devices[0]
    found, live = annotated(device), timeline(device).live
    spans = zip(found.start_event, found.end_event, strict=True)
    assert interval_peaks(device).tolist() == [int(live[start : max(end, start - 1) + 2].max()) for start, end in spans]


@given(some_rows)
def test_an_event_belongs_to_the_latest_interval_around_it(rows):
    device = numbered(rows).devices[0]
    found = annotated(device)
    for e in range(len(TIMES)):
        around = np.flatnonzero((found.start_event <= e) & (e <= found.end_event))
        expected = int(around[-1]) if len(around) else NO_INTERVAL
        assert annotation_of_events(device, np.array([e])).tolist() == [expected]


def test_steps_are_the_profilers_or_else_end_where_the_first_optimizer_does():
    rows = [("ProfilerStep#3", "START", 10), ("ProfilerStep#3", "END", 20), ("ProfilerStep#4", "START", 21)]
    trace = annotated_trace([*rows, ("x", "START", 25)], [10, 20, 30])
    assert steps(trace, trace.devices[0]) == (
        StepRange("ProfilerStep#3", 0, 1),
        StepRange("ProfilerStep#4", 2, 2, is_open=True),
    )
    rows = [
        (f"Optimizer.step#{kind}", stage, time)
        for kind, at in (("A", 15), ("B", 17), ("A", 35))
        for stage, time in (("START", at), ("END", at + 1))
    ]
    trace = annotated_trace([*rows, ("Optimizer.step#A", "START", 45)], [10, 20, 30, 40, 50])
    assert steps(trace, trace.devices[0]) == (StepRange("step 1", 0, 0), StepRange("step 2", 1, 2))
    trace = annotated_trace([("x", "START", 25)], [10, 20, 30])
    assert steps(trace, trace.devices[0]) == ()


def noted(*names: str) -> Trace:
    """Three steps, each within its own annotation."""
    events: list[dict[str, Any]] = logits_held_through_the_next_forward().events
    for at, event in enumerate(events):
        event["time_us"] = 10 * at + 10
    begins = [at for at, event in enumerate(events) if event["action"] == "alloc" and event["addr"] == 10]
    ends = [*begins[1:], len(events)]
    rows = []
    for name, first, past in zip(names, begins, ends, strict=False):
        rows += ranges((name, 10 * first + 5, 10 * past + 4))
    return trace_of(events, external_annotations=rows)


@pytest.mark.parametrize(
    ("notes", "first"),
    [
        (["ProfilerStep#0", "ProfilerStep#1", "ProfilerStep#2"], "ProfilerStep#0"),
        (["warm-up", "step 1", "step 2"], "warm-up"),
        (["train_model"] * 3, "step 1"),
        # As `memviz.recording` notes the optimizer's part of a step.
        (["optimizer step"] * 3, "step 1"),
    ],
)
def test_a_step_is_called_as_the_program_notes_it(notes, first):
    trace = noted(*notes)
    device = trace.devices[0]
    (finding,) = of_kind(trace, FindingKind.KEPT_TOO_LONG)
    assert f"made in {first} by" in finding.sentence
    names = [step_name(trace, device, span) for span in phase_spans(trace, device).spans]
    assert names[0] == first
    assert len(set(names)) == 3
    assert any(name in overview(trace, device).moment for name in names)


def test_phases_are_named_by_the_steps_that_the_profiler_counts_or_else_by_our_count():
    trace = noted("ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6")
    bands = [name for name, _, _ in phase_bands(trace, trace.devices[0])]
    assert bands[:4] == [
        "forward of ProfilerStep#4",
        "backward of ProfilerStep#4",
        "optimizer step of ProfilerStep#4",
        "forward of ProfilerStep#5",
    ]
    trace = noted()
    device = trace.devices[0]
    assert [phase_name(trace, device, span) for span in phase_spans(trace, device).spans][:2] == [
        "forward of step 1",
        "backward of step 1",
    ]


def written(about: About) -> Trace:
    """Write a trace with this origin to a snapshot and read it again."""
    marks = [{"stage": "START", "name": "step", "device": 0, "time_us": 2}]
    events = [alloc(1, 5, time_us=1), alloc(2, 5, time_us=2), *free(1, 5, time_us=4790)]
    trace = read(snapshot(events, external_annotations=marks))
    return read(json.loads(json.dumps(snapshot_dict(replace(trace, about=about)))))


def test_what_was_measured_has_times() -> None:
    trace = written(About("measured", on="NVIDIA H200"))
    assert has_times(trace.devices[0])
    assert scores([(trace, trace.devices[0])])[0].duration_us == 4789


def test_what_was_predicted_or_replayed_from_it_has_none() -> None:
    for about in (About("predicted", on="NVIDIA H200"), About("replayed", facts={"times": "No clock runs."})):
        trace = written(about)
        device = trace.devices[0]
        assert not has_times(device)
        assert annotated(device).start_event.tolist() == [1]
        assert scores([(trace, device)])[0].duration_us is None
        assert allocation(trace, device, 0).span.microseconds is None
        table = io.StringIO()
        write_allocations(trace, table)
        assert "4790" not in table.getvalue()
