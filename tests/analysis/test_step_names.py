"""A step has the same name in the headline, in findings and above the timeline."""

from typing import Any

import pytest

from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.overview import overview
from memviz.analysis.purpose.phases import phase_name, phase_spans, step_name
from memviz.trace.model import Trace
from memviz.ui.payloads.timelines import phase_bands
from tests.analysis.findings.steps import of_kind
from tests.analysis.findings.test_kept_too_long import logits_held_through_the_next_forward
from tests.traces import trace_of


def noted(*names: str) -> Trace:
    """Three steps, each within its own annotation."""
    events: list[dict[str, Any]] = logits_held_through_the_next_forward().events
    for at, event in enumerate(events):
        event["time_us"] = 10 * at + 10
    begins = [at for at, event in enumerate(events) if event["action"] == "alloc" and event["addr"] == 10]
    ends = [*begins[1:], len(events)]
    rows = []
    for name, first, past in zip(names, begins, ends, strict=False):
        rows += [_row(name, "START", 10 * first + 5), _row(name, "END", 10 * past + 4)]
    return trace_of(events, external_annotations=rows)


def _row(name: str, stage: str, time_us: int) -> dict[str, Any]:
    return {"name": name, "stage": stage, "device": 0, "time_us": time_us}


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


def test_phases_above_a_timeline_are_of_the_steps_that_the_profiler_counts():
    trace = noted("ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6")
    bands = [name for name, _, _ in phase_bands(trace, trace.devices[0])]
    assert bands[:4] == [
        "forward of ProfilerStep#4",
        "backward of ProfilerStep#4",
        "optimizer step of ProfilerStep#4",
        "forward of ProfilerStep#5",
    ]


def test_without_notes_steps_are_counted():
    trace = noted()
    device = trace.devices[0]
    assert [phase_name(trace, device, span) for span in phase_spans(trace, device).spans][:2] == [
        "forward of step 1",
        "backward of step 1",
    ]
