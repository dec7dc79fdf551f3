"""Allocations by words and limits."""

from dataclasses import replace

import numpy as np
import pytest

from memviz.analysis.find import FindResult, FoundSite, Limit, find_rows, find_sites, parse_query
from memviz.analysis.lifetimes import lifetimes
from memviz.errors import UsageError
from memviz.trace.model import Category, Labels, Trace
from tests.traces import MiB, alloc, block, frame, free, segment, trace_of

MODEL, TRAIN = frame("forward", "/p/Model.py", 36), frame("step", "/p/train.py", 9)


def found(trace: Trace, text: str) -> list[int]:
    return find_rows(trace, trace.devices[0], text).tolist()


@pytest.fixture
def trace() -> Trace:
    """Four lives: 3 MiB for 3 events, 1 MiB to the end, 10 bytes for 2 events, and one without a stack."""
    return trace_of(
        [
            alloc(1, 3 * MiB, frames=[MODEL, TRAIN], time_us=1_000),
            alloc(2, MiB, frames=[TRAIN], time_us=2_000),
            *free(1, 3 * MiB, time_us=3_000),
            alloc(3, 10, frames=[MODEL], time_us=4_000),
            *free(3, 10, time_us=5_000),
            alloc(4, 7, time_us=6_000),
        ]
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("FORWARD", [0, 2]),
        ("model.py:36", [0, 2]),
        ("train.py", [0, 1]),
        ("forward train.py", [0]),
        ("  ", []),
        ("unknown", [3]),
        ("mod.l.py", []),
        (".*", []),
        *((">1MiB", [0]), (">=1MiB", [0, 1]), ("<1KiB", [2, 3]), ("<=7", [3]), (">9 <3MiB", [1, 2])),
        # The second and the last are alive at the end: they are never counted as short.
        *((">2ev", [0, 1]), ("<3events", [2]), ("<=3ev", [0, 2])),
        *((">1ms", [0, 1]), ("<2ms", [2]), ("<=2000us", [0, 2])),
    ],
)
def test_words_sizes_and_lifetimes_must_all_fit(trace, text, rows):
    assert found(trace, text) == rows


def test_a_module_is_a_word():
    plain = trace_of([alloc(1, 5), alloc(2, 6)])
    names = ("", "layers.0.Attention")
    labels = Labels(np.full(2, Category.ACTIVATION, np.uint8), np.array([1, 0], np.int32), np.zeros(2, np.uint8))
    device = replace(plain.devices[0], event_labels=labels)
    assert found(replace(plain, devices=(device,), strings=names), "attention") == [0]


def test_what_was_there_before_is_not_counted_as_short():
    trace = trace_of([*free(1, 5)], segments=[segment(0, MiB, [])])
    assert found(trace, "<100ev") == []
    assert found(trace, ">=1ev") == [0]


def test_lifetimes_in_time_need_times():
    with pytest.raises(UsageError, match="no times"):
        found(trace_of([alloc(1, 5)]), ">1s")


@pytest.mark.parametrize("text", [">big", "<-3", ">1.2.3s"])
def test_an_invalid_limit_is_refused(text):
    with pytest.raises(UsageError, match="not a size or a lifetime"):
        parse_query(text)


def test_words_and_limits_are_told_apart():
    limits = [Limit("bytes", ">", 10 * MiB), Limit("time", "<=", 1.5e6), Limit("events", "<", 1000.0)]
    assert parse_query("Linear >10MiB <=1.5s <1000ev <") == (["linear", "<"], limits)


def test_sites_say_what_is_live_then_and_what_ever_was_and_add_up(trace):
    model, train = "/p/Model.py:36 forward", "/p/train.py:9 step"
    assert find_sites(trace, trace.devices[0], "py", 1) == FindResult(
        1,
        (
            FoundSite(model, "Model.py:36 forward", 3 * MiB, 1, 3 * MiB + 10, 2),
            FoundSite(train, "train.py:9 step", MiB, 1, MiB, 1),
        ),
    )
    everything = find_sites(trace, trace.devices[0], "<1GiB", 4)
    size = lifetimes(trace.devices[0]).size
    assert (everything.live_bytes, everything.live_count) == (MiB + 10, 2)
    assert sum(site.bytes for site in everything.sites) == size.sum()
    assert everything.count == len(size)


def test_final_blocks_without_events_are_found_too():
    trace = trace_of([], segments=[segment(0, 2 * MiB, [block(0, 512, 500, frames=[MODEL])])])
    assert found(trace, "forward >100") == [0]
