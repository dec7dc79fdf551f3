"""The places that keep most activations; the sentences about an overview are tested with the headlines."""

from memviz.analysis.lifetimes import live_rows
from memviz.analysis.overview import overview, sites_holding_activations
from memviz.trace.model import Trace
from tests.analysis import training as t
from tests.analysis.training import Recording, kept_layers
from tests.traces import frame, trace_of


def places(trace: Trace) -> tuple[list[int], int] | None:
    device = trace.devices[0]
    found = sites_holding_activations(trace, device, live_rows(device, len(device.events) - 1))
    return None if found is None else ([site.line for site in found.places], found.bytes)


def test_the_places_that_keep_most_are_named_with_their_layers():
    trace = trace_of(kept_layers(4).events)
    assert places(trace) == ([12], 1200)
    most = overview(trace, trace.devices[0]).most_of_it
    assert most is not None and most.layers == "4 equal layers"


def test_many_places_are_not_named():
    events = Recording()
    for line in range(1, 20):
        events.alloc(line, [t.NATIVE, frame("forward", "/p/model.py", line), t.CALL, t.MAIN], 100)
    assert places(trace_of(events.alloc(900, t.BACKWARD, 10).events)) is None
