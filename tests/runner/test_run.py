"""A run travels as JSON and inside its own trace, and a file's contents cannot change a type."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.errors import TraceError
from memviz.runner.request import FACT, Run, Seconds, load_run, run_json, run_of, save_run, with_run
from memviz.trace.model import About, Trace
from memviz.trace.write import write_pickle
from tests.runner.runs import run
from tests.traces import alloc, trace_of


def test_json_and_back() -> None:
    assert Run.from_json(json.loads(json.dumps(run().as_json()))) == run()
    bare = run(seconds=None, fit=None, flops=None, numerics=None)
    assert Run.from_json(json.loads(json.dumps(bare.as_json()))) == bare


def test_a_saved_run_is_a_snapshot_and_a_run(tmp_path: Path) -> None:
    predicted = replace(one_allocation(), about=About("predicted", "RTX 4090"))
    save_run(predicted, run(), tmp_path / "a.pickle")
    read, found = load_run(tmp_path / "a.pickle")
    assert found == run()
    assert read.about.label == "predicted for RTX 4090"
    # A prediction has no clock.
    assert read.devices == tuple(replace(device, is_timed=False) for device in predicted.devices)


def test_a_foreign_snapshot_is_no_run(tmp_path: Path) -> None:
    with (tmp_path / "a.pickle").open("wb") as file:
        write_pickle(one_allocation(), file)
    with pytest.raises(TraceError, match=r"^a.pickle: .*not a run of memviz"):
        load_run(tmp_path / "a.pickle")


@pytest.mark.parametrize(
    "change",
    [
        {"label": 3},
        {"peak_allocated_bytes": "<b>"},
        {"mode": "replayed"},
        {"request": {"workload": ["x"]}},
        {"request": {"workload": "x", "settings": {"batch": {}}}},
        {"fit": {"usable_bytes": 1}},
        {"fit": 3},
        {"provenance": []},
    ],
)
def test_a_file_that_lies_about_types_has_no_run(change: dict[str, Any]) -> None:
    about = About("predicted", "", facts={FACT: json.dumps({**run().as_json(), **change})})
    assert run_of(replace(one_allocation(), about=about)) is None


def test_what_is_no_json_is_no_run() -> None:
    assert run_of(replace(one_allocation(), about=About("predicted", "", facts={FACT: "{"}))) is None
    assert run_of(with_run(one_allocation(), run())) == run()


def one_allocation() -> Trace:
    return trace_of([alloc(0x1000, 512)])


def test_seconds_of_an_older_file_have_a_spread_and_no_quartiles(tmp_path: Path) -> None:
    known = {**run().as_json(), "seconds": {"median": 0.5, "spread": 0.01, "count": 20, "clock": "GPU events"}}
    found = Run.from_json(json.loads(json.dumps(known))).seconds
    assert found is not None
    assert (found.low, found.spread_words) == (None, "spread 10.0 ms, 20 steps")


def test_programs_are_told_the_quartiles_beside_the_median() -> None:
    seconds = Seconds(0.5, 0.01, 20, "GPU events", 0.495, 0.505)
    found = run_json(run(seconds=seconds))
    assert [found[f"seconds{key}"] for key in ("", "_low", "_high", "_count")] == [0.5, 0.495, 0.505, 20]
    assert run_json(run(seconds=None))["seconds_low"] is None


def test_the_step_time_in_a_trace_says_how_sure_it_is() -> None:
    facts = with_run(one_allocation(), run(seconds=Seconds(0.5, 0.01, 20, "GPU events"))).about.facts
    assert facts["step time"] == "500.0 ms ± 5.0"
