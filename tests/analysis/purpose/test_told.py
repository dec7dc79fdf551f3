"""What is said of many allocations together, and which places keep most activations."""

from __future__ import annotations

import numpy as np

from memviz.analysis.breakdown import PurposeTotal, largest_purpose_totals, purpose_totals
from memviz.analysis.lifetimes import live_rows
from memviz.analysis.overview import kept_by, overview
from memviz.analysis.purpose.categories import KINDS, categories
from memviz.analysis.purpose.reasons import REASON_TEXTS, Certainty, Reason
from memviz.trace.model import Trace
from tests.analysis import training as t
from tests.analysis.training import Recording
from tests.traces import frame, trace_of


def layers(count: int) -> Recording:
    """A forward that keeps two blocks a layer, at two lines of one file, and its backward that has begun."""
    lines = [[t.NATIVE, frame("forward", "/p/model.py", line), t.CALL, t.MAIN] for line in (12, 15)]
    events = Recording()
    for layer in range(count):
        events.alloc(2 * layer, lines[0], 300).alloc(2 * layer + 1, lines[1], 200)
    return events.alloc(900, t.BACKWARD, 10)


def all_rows(trace: Trace) -> np.ndarray:
    return live_rows(trace.devices[0], len(trace.devices[0].events) - 1)


def test_purposes_add_up_to_all_bytes_the_largest_first():
    trace = trace_of(layers(4).events)
    found = purpose_totals(trace, trace.devices[0], all_rows(trace))
    assert found == (
        PurposeTotal("activation", Certainty.SURE, REASON_TEXTS[Reason.FORWARD_KEPT], 2000, 8),
        PurposeTotal("gradient", Certainty.PROBABLE, REASON_TEXTS[Reason.BACKWARD_CUT_OFF], 10, 1),
    )


def test_of_a_group_the_largest_reason_of_its_kind_is_told():
    trace = trace_of(layers(2).events)
    rows = all_rows(trace)
    group = np.zeros(len(rows), dtype=np.int64)
    kind = np.array([KINDS.index("activation")])
    (found,) = largest_purpose_totals(trace, trace.devices[0], rows, group, kind)
    assert (found.bytes, found.count, found.reason) == (1000, 4, REASON_TEXTS[Reason.FORWARD_KEPT])


def test_places_that_keep_most_are_named_with_their_layers():
    trace = trace_of(layers(4).events)
    found = kept_by(trace, trace.devices[0], all_rows(trace))
    assert found is not None
    assert ([site.line for site in found.places], found.bytes) == ([12], 1200)
    most = overview(trace, trace.devices[0]).most_of_it
    assert most is not None
    assert most.layers == "4 equal layers"


def test_many_places_are_no_answer():
    events = Recording()
    for line in range(1, 20):
        events.alloc(line, [t.NATIVE, frame("forward", "/p/model.py", line), t.CALL, t.MAIN], 100)
    trace = trace_of(events.alloc(900, t.BACKWARD, 10).events)
    assert kept_by(trace, trace.devices[0], all_rows(trace)) is None


def test_sure_is_what_the_trace_shows():
    trace = trace_of(layers(1).events)
    assert categories(trace, trace.devices[0]).sure.tolist() == [True, True, False]
