"""The timeline's value: what the browser is told before it asks for pieces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memviz.trace.model import About, Trace
from memviz.ui.payloads.timelines import timeline_value
from tests.traces import MiB, alloc, event, trace_of


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
