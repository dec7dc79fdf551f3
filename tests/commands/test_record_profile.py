"""`record --profile` writes torch's profile next to the snapshot."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from memviz.analysis.health import health
from memviz.ranks.places import places_of
from memviz.trace.load import load_trace
from memviz.trace.profile import is_profiled
from tests import forked
from tests.commands.test_record import PROGRAM, USES_GPU, environment, names, record, recorded
from tests.second_process import OF_RUNS


def test_a_profile_is_written_beside_the_snapshot_and_each_says_what_it_is(tmp_path):
    pytest.importorskip("torch")
    body = "import torch\nGPU.malloc(1000)\nkept = torch.ones(3, 8) @ torch.ones(8, 5)\n"
    done = record(tmp_path, body, "--profile", of=OF_RUNS)
    assert done.returncode == 0, done.stderr
    assert "memviz: The profile is written to run.profile.json.gz." in done.stderr
    assert names(tmp_path) == ["run.pickle", "run.profile.json.gz"]
    snapshot, profile = (load_trace(tmp_path / name) for name in names(tmp_path))
    assert (
        snapshot.about.facts["profile"] == "run.profile.json.gz" and not is_profiled(snapshot) and is_profiled(profile)
    )
    assert "run.profile.json.gz" in next(note.text for note in health(snapshot) if note.code == "profile_beside")
    texts = [profile.strings[name] for name in profile.stacks.frames.name]
    assert "aten::mm" in texts and (profile.devices[0].events.size == 60).any()
    # The same clock, independent of its epoch.
    apart = abs(int(profile.devices[0].events.time_us[0]) - int(snapshot.devices[0].events.time_us[-1]))
    assert apart < 600e6 or not snapshot.devices[0].events.time_us[-1]
    assert [Path(place.address).name for place in places_of([str(tmp_path)])] == ["run.pickle"]


def test_a_profile_that_cannot_be_had_is_said_and_one_that_is_there_stays(tmp_path):
    lines = f"import sys\nsys.modules['torch.profiler'] = None\n{USES_GPU}GPU.malloc(1000)\n"
    (tmp_path / "train.py").write_text(lines)
    done = recorded(tmp_path, "--profile", "train.py")
    said = "memviz: The profiler could not be switched on: There is no torch here."
    assert done.returncode == 0 and said in done.stderr, done.stderr
    assert names(tmp_path) == ["run.pickle"] and "profile" not in load_trace(tmp_path / "run.pickle").about.facts
    (tmp_path / "run.pickle").rename(tmp_path / "run.profile.json.gz")
    done = record(tmp_path, "GPU.malloc(1000)\n", "--profile")
    assert done.returncode == 2 and "run.profile.json.gz is there already" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGINT])
def test_a_profile_of_what_there_is_is_written_when_the_script_is_told_to_end(tmp_path, ends):
    pytest.importorskip("torch")
    body = "import time\nimport torch\nGPU.malloc(1000)\ntorch.ones(3, 8) @ torch.ones(8, 5)\n"
    wait = "print('waiting', flush=True)\nwhile True:\n    time.sleep(0.1)\n"
    (tmp_path / "train.py").write_text(f"{USES_GPU}{body}{wait}")
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    arguments = ["-c", PROGRAM, "-o", "run.pickle", "--profile", "train.py"]
    process = forked.start(arguments, of=OF_RUNS, cwd=tmp_path, env=environment(), **streams)
    try:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(ends)
        _, said = process.communicate(timeout=forked.MOST_SECONDS)
    finally:
        process.kill()
    assert process.returncode, said
    assert names(tmp_path) == ["run.pickle", "run.profile.json.gz"], said
    profile = load_trace(tmp_path / "run.profile.json.gz")
    assert "aten::mm" in [profile.strings[name] for name in profile.stacks.frames.name]
