"""The samples match their script and their README, and are sound."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from memviz.analysis.lifetimes import Faults, matched
from memviz.analysis.segments import fragmentation_at
from memviz.analysis.timeline import timeline
from memviz.trace.load import load_trace
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.units import bytes_text, count_text
from tests.house.repository import ROOT, text_of
from tests.real import read_once

FOLDER = ROOT / "sample_traces"
NAMES = [path.name.partition(".")[0] for path in sorted(FOLDER.glob("*.pickle*"))]
LARGEST = 300_000

each_sample = pytest.mark.parametrize("name", NAMES)


@cache
def trace(name: str) -> Trace:
    return read_once(FOLDER / f"{name}.pickle.gz")


def device(name: str) -> DeviceTrace:
    return trace(name).devices[0]


@pytest.fixture(scope="module")
def made_again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("samples")
    # In a process of its own, because a stack goes down to the program's first line.
    subprocess.run([sys.executable, "-m", "sample_traces.make", folder], cwd=ROOT, check=True)
    return folder


@pytest.mark.slow
def test_every_file_has_its_recipe(made_again):
    assert {path.name for path in made_again.iterdir()} == {f"{name}.pickle.gz" for name in NAMES}


@pytest.mark.slow
@each_sample
def test_the_script_makes_the_same_trace_again(name, made_again):
    path = made_again / f"{name}.pickle.gz"
    again = load_trace(path)
    events, labels = again.devices[0].events, again.devices[0].event_labels
    assert labels is not None and device(name).event_labels is not None
    for column in ("action", "size", "stream"):
        assert (getattr(events, column) == getattr(device(name).events, column)).all()
    assert (labels.category == device(name).event_labels.category).all()
    if again.about.facts == trace(name).about.facts:
        # With other releases of torch and Python, stacks have other lines.
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()


@each_sample
def test_it_is_small_and_sound_and_says_how_to_make_it_again(name):
    assert (FOLDER / f"{name}.pickle.gz").stat().st_size < LARGEST
    assert trace(name).about.label == "predicted for NVIDIA A10"
    assert trace(name).about.facts["again"] == "python -m sample_traces.make"
    assert trace(name).notes == ()
    assert matched(device(name)).faults == Faults()
    bytes_after = timeline(device(name))
    assert (bytes_after.live <= bytes_after.reserved).all()


@each_sample
def test_its_stacks_lead_to_real_lines(name):
    frames, strings = trace(name).stacks.frames, trace(name).strings
    places = {
        (strings[file], line, strings[function])
        for file, line, function in zip(frames.filename, frames.line.tolist(), frames.name, strict=True)
        if strings[file] in ("gpt.py", "train.py")
    }
    assert {file for file, _, _ in places} == {"gpt.py", "train.py"}
    for file, line, function in places:
        tree = ast.parse(text_of(f"sample_traces/{file}"))
        inside = {
            node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0)
        }
        assert function in inside


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


def test_the_samples_are_what_their_names_say():
    plain, checkpointed = (timeline(device(name)).peak_bytes for name in ("training", "training-checkpointed"))
    assert 0.4 < checkpointed / plain < 0.6
    names = {trace("training-checkpointed").strings[code] for code in trace("training-checkpointed").stacks.frames.name}
    assert "recompute_fn" in names
    assert timeline(device("late-start")).start_bytes > 1 << 30
    events = device("out-of-memory").events
    then = fragmentation_at(trace("out-of-memory"), device("out-of-memory"), len(events) - 1)
    assert events.action[-1] == Action.OOM
    assert events.address[-1] < events.size[-1] < then.free_remainders
    assert f"with {bytes_text(then.free_remainders)} reserved and free" in text_of("sample_traces/README.md")
