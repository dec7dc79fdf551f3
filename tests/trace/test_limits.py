"""Limits grow with a file's size, and a reading ends when it is cancelled."""

import gzip
import io
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from memviz.errors import TraceError
from memviz.trace.limits import Budget, Limits, MiB, Unwanted
from memviz.trace.load import read_trace
from tests.traces import alloc, frame, snapshot


def many(events: int = 60_000, **more: Any) -> dict[str, Any]:
    """Written so that it takes many windows: no stack is shared."""
    rows = [alloc(512 * i, 512, frames=[frame(f"f{i}", "x" * 200)], **more) for i in range(events)]
    return snapshot(rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "written",
    [
        lambda: pickle.dumps(many()),
        lambda: gzip.compress(pickle.dumps(many(category="input")), 1),
        lambda: json.dumps(many()).encode(),
    ],
    ids=["pickle", "gzip, event by event", "JSON"],
)
def test_a_reading_stops_soon_after_its_visitor_has_gone(written: Callable[[], bytes]) -> None:
    raw, asked = written(), 0

    def is_wanted() -> bool:
        nonlocal asked
        asked += 1
        return asked < 3

    with pytest.raises(Unwanted, match="cancelled"):
        read_trace(io.BytesIO(raw), "a.pickle", len(raw), is_wanted=is_wanted)
    assert asked == 3


def test_one_that_stays_gets_the_same_trace() -> None:
    raw = pickle.dumps(many(100))
    wanted = read_trace(io.BytesIO(raw), "a.pickle", len(raw), is_wanted=lambda: True)
    assert wanted == read_trace(io.BytesIO(raw), "a.pickle", len(raw))


def test_what_a_file_may_take_grows_with_its_size() -> None:
    small, same, large, huge = (Limits().for_size(size) for size in (330, 8 * MiB, 20 * MiB, 4096 * MiB))
    assert small.memory_bytes == same.memory_bytes and small.events < same.events
    assert small.memory_bytes == 800 * MiB
    assert large.memory_bytes == 2000 * MiB and large.events == 500_000 + 10 * MiB
    assert huge == Limits()


def test_a_small_file_may_take_no_more_memory_than_its_size_allows() -> None:
    with pytest.raises(TraceError, match="limit for a file of its size.*MEMVIZ_MAX_GROWTH, or unpack it first"):
        Budget(Limits(), 330).charge(900 * MiB)
    Budget(Limits(), 330 * MiB).charge(900 * MiB)
    Budget(Limits(growth=1000), 330).charge(900 * MiB)


def test_a_small_file_may_not_keep_the_machine_busy() -> None:
    assert Limits().busy_seconds(1000) == pytest.approx(5, abs=0.01)
    assert Limits().busy_seconds(100 * MiB) == pytest.approx(105)
    with pytest.raises(TraceError, match="processor for more than .* MEMVIZ_MAX_GROWTH"):
        budget = Budget(Limits(growth=0), 330)
        while True:
            budget.check()
