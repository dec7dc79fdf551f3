"""A predicted device has no clock: event counts are never shown as times."""

import io
import json
from dataclasses import replace

from memviz.analysis.allocations import allocation, write_allocations
from memviz.analysis.annotations import annotated
from memviz.analysis.comparing.changes import scores
from memviz.analysis.lifetimes import has_times
from memviz.trace.model import About, Trace
from memviz.trace.write import snapshot_dict
from tests.traces import alloc, free, read, snapshot


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
        assert scores([(trace, device)])[0].duration_us is None
        assert allocation(trace, device, 0).span.microseconds is None
        table = io.StringIO()
        write_allocations(trace, table)
        assert "4790" not in table.getvalue()


def test_annotations_are_placed_all_the_same() -> None:
    trace = written(About("predicted"))
    assert annotated(trace.devices[0]).intervals.start_event.tolist() == [1]
