"""A capture beside its prediction: what agrees is said to agree, and what does not, by how much and where."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from memviz.runner.outcome import Outcome
from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from memviz.runner.run import save_run
from memviz.trace.load import load_trace
from tests.gpu import replay, samples, truth
from tests.gpu.comparing import first_difference, growth_of, most_different
from tests.gpu.machine import card_of
from tests.gpu.results import Results
from tests.gpu.tables import README, TABLES, in_a_line, write_readme, write_samples
from tests.gpu.test_capture import TINY

MACHINE = {
    "device": "NVIDIA H100 80GB HBM3",
    "memory_bytes": 85_000_000_000,
    "capability": [9, 0],
    "multiprocessors": 132,
    "torch": "2.11.0+cu130",
    "cuda": "13.0",
    "cudnn": 91500,
    "nvidia_smi": "580.1, 81559 MiB, 0 MiB",
    "commit": "abc",
    "source": "def",
}
REQUEST = {"workload": "transformer_block", "settings": TINY}


@cache
def predicted() -> Outcome:
    plan = plan_of(Request.from_json({**REQUEST, "on": "predict", "torch": "2.11"}))
    return predict(replace(plan, card=card_of(MACHINE)), lambda phase: None)


def captured_in(out: Path, name: str = "block-plain", **more: Any) -> Results:
    """As if that card had measured exactly what is predicted for it, `more` apart."""
    results, done = Results(out), predicted()
    path = results.folder_of("capture") / f"{name}.pickle.gz"
    save_run(done.trace, done.run, path)
    peaks = {
        f"peak_{each}_bytes": getattr(done.run, f"peak_{each}_bytes") for each in ("allocated", "reserved", "requested")
    }
    result = {
        **peaks,
        "seconds": None,
        "ran_out": "",
        "file": path.name,
        "describes": "a block",
        "as_run": "run",
        **more,
    }
    known = {"part": "capture", "name": name, "arguments": {"request": REQUEST}, "environment": {}}
    results.write({**known, "command": "python -m tests.gpu", "machine": MACHINE, "result": result})
    return results


def found_by(part: Any, results: Results) -> dict[str, Any]:
    case = next(each for each in part.CASES if each.of == ("capture", "block-plain"))
    found: dict[str, Any] = part.run(case, results.folder)
    return json.loads(json.dumps(found))


def test_what_was_predicted_rightly_has_no_error_and_no_reason(tmp_path):
    found = found_by(truth, captured_in(tmp_path))
    assert {name: found[name]["error_percent"] for name in ("allocated", "reserved", "requested")} == {
        "allocated": 0,
        "reserved": 0,
        "requested": 0,
    }
    assert (found["categories"], found["modules"]) == ([], [])
    assert found["events"]["measured"] == found["events"]["predicted"] > 100


def test_the_error_is_negative_where_the_prediction_says_too_little(tmp_path):
    right = found_by(truth, captured_in(tmp_path / "a"))["allocated"]["measured"]
    found = found_by(truth, captured_in(tmp_path / "b", peak_allocated_bytes=2 * right))
    assert found["allocated"] == {"measured": 2 * right, "predicted": right, "error_percent": -50}


def test_two_peaks_differ_in_what_is_live_there(tmp_path):
    results = captured_in(tmp_path)
    whole = load_trace(tmp_path / "capture" / "block-plain.pickle.gz")
    plan = plan_of(Request("transformer_block", {**TINY, "sequence": "64"}))
    longer = predict(plan, lambda phase: None).trace
    rows = most_different(longer, whole, "category")
    assert all(row["more_bytes"] for row in rows)
    assert [abs(row["more_bytes"]) for row in rows] == sorted((abs(row["more_bytes"]) for row in rows), reverse=True)
    assert most_different(whole, longer, "category")[0]["more_bytes"] == -rows[0]["more_bytes"]
    assert results.result("capture", "block-plain") is not None


def test_a_snapshot_is_replayed_under_its_own_settings(tmp_path):
    found = found_by(replay, captured_in(tmp_path))
    assert (found["exact"], found["addresses_off"], found["first"], found["settings"]) == (True, 0, None, "")
    assert found["reserved"]["recorded"] == found["reserved"]["replayed"]
    assert found["addresses"] > 100


def test_a_sample_has_no_path_and_says_where_it_is_from(tmp_path):
    results = captured_in(tmp_path)
    found = found_by(samples, results)
    trace = load_trace(tmp_path / "samples" / found["file"])
    assert not [text for text in trace.strings if text.startswith("/")]
    assert (trace.about.label, trace.about.facts["driver"]) == (
        f"measured on {MACHINE['device']}",
        "580.1, 81559 MiB, 0 MiB",
    )
    assert found["is_small"]
    results.write({"part": "samples", "name": "block-plain", "machine": {}, "result": found})
    written = write_samples(results)
    assert written is not None
    assert f"`{found['sha256']}`" in written.read_text()


def test_the_tables_are_written_between_their_marks_and_nowhere_else(tmp_path):
    results, copy = captured_in(tmp_path), tmp_path / "README.md"
    copy.write_text(README.read_text())
    truth_found = found_by(truth, results)
    results.write({"part": "truth", "name": "block-plain", "machine": {}, "result": truth_found})
    assert write_readme(results, copy) == ["truth"]
    once = copy.read_text()
    assert "| block-plain | " in once
    assert "Measured on NVIDIA H100 80GB HBM3; torch 2.11.0+cu130" in once
    assert once.count("Nothing has been measured yet.") == len(tables_of_the_readme()) - 1
    assert in_a_line({"part": "truth", "name": "block-plain", "result": truth_found}).startswith("allocated ")
    write_readme(results, copy)
    assert copy.read_text() == once


def tables_of_the_readme() -> list[str]:
    return re.findall(r"<!-- ([\w-]+): begin -->", README.read_text())


def test_every_table_of_the_readme_is_one_of_a_part():
    assert set(TABLES) - set(tables_of_the_readme()) == {"capture", "samples"}
    assert set(tables_of_the_readme()) < set(TABLES)


def test_nothing_was_typed_into_the_tables_by_hand():
    """A table that is filled names its GPU and the hash of the sources that measured."""
    text = README.read_text()
    for name in tables_of_the_readme():
        inside = text.split(f"<!-- {name}: begin -->\n")[1].split(f"\n<!-- {name}: end -->")[0]
        assert inside == "Nothing has been measured yet." or inside.startswith("Measured on ")


@pytest.mark.parametrize(
    ("one", "other", "place"), [([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [], None)]
)
def test_two_lists_part_at_their_first_difference(one, other, place):
    assert first_difference(one, other) == place


def test_growth_is_what_was_taken_from_the_card(tmp_path):
    captured_in(tmp_path)
    device = load_trace(tmp_path / "capture" / "block-plain.pickle.gz").devices[0]
    assert sum(growth_of(device)) >= int(device.segments.size.sum())
