"""The samples are what their script makes, what their README says, and sound."""

from __future__ import annotations

import re
from functools import cache

import pytest

from memviz.analysis.lifetimes import Faults, matched
from memviz.analysis.reserved.fragmentation import fragmentation_at
from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.units import bytes_text, count_text
from sample_traces.make import SAMPLES, write
from tests.house.repository import ROOT, text_of

FOLDER = ROOT / "sample_traces"
NAMES = [each.name for each in SAMPLES]
LARGEST = 300_000

each_sample = pytest.mark.parametrize("name", NAMES)


@cache
def trace(name: str) -> Trace:
    return load_trace(FOLDER / f"{name}.pickle.gz")


def device(name: str) -> DeviceTrace:
    return trace(name).devices[0]


def test_every_file_has_its_recipe():
    assert {path.name for path in FOLDER.glob("*.pickle*")} == {f"{name}.pickle.gz" for name in NAMES}


@pytest.mark.parametrize("sample", SAMPLES, ids=NAMES)
def test_the_script_makes_the_same_trace_again(sample, tmp_path):
    assert load_trace(write(sample, tmp_path)) == trace(sample.name)


@each_sample
def test_it_is_small(name):
    assert (FOLDER / f"{name}.pickle.gz").stat().st_size < LARGEST


@each_sample
def test_it_says_that_it_is_synthetic(name):
    assert "No GPU" in trace(name).about.facts["synthetic"]
    assert trace(name).about.origin != "measured"


@each_sample
def test_it_is_sound(name):
    bytes_after = timeline(device(name))
    assert trace(name).notes == ()
    assert matched(device(name)).faults == Faults()
    assert (bytes_after.live <= bytes_after.reserved).all()


@each_sample
def test_the_readme_has_its_figures(name):
    bytes_after = timeline(device(name))
    row = re.search(rf"^\| `{name}\.pickle\.gz` \|(.*?)\|(.*?)\|(.*?)\|", text_of("sample_traces/README.md"), re.M)
    assert row is not None
    assert tuple(map(str.strip, row.groups())) == (
        count_text(len(device(name).events)),
        bytes_text(bytes_after.peak_bytes),
        bytes_text(bytes_after.reserved_peak_bytes),
    )


def test_checkpointing_lowers_the_peak_to_about_half():
    plain, checkpointed = (timeline(device(name)).peak_bytes for name in ("training", "training-checkpointed"))
    assert 0.4 < checkpointed / plain < 0.6


def test_the_checkpointed_one_computes_again_in_backward():
    names = {trace("training-checkpointed").strings[code] for code in trace("training-checkpointed").stacks.frames.name}
    assert "recompute_fn" in names


def test_the_late_one_starts_with_a_gigabyte_live():
    assert timeline(device("late-start")).start_bytes > 1 << 30


def test_the_last_one_runs_out_of_memory_with_enough_of_it_reserved():
    events = device("out-of-memory").events
    then = fragmentation_at(trace("out-of-memory"), device("out-of-memory"), len(events) - 1)
    assert events.action[-1] == Action.OOM
    assert events.address[-1] < events.size[-1] < then.free_remainders
    assert f"with {bytes_text(then.free_remainders)} reserved and free" in text_of("sample_traces/README.md")
