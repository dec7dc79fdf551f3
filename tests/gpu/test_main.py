"""The command itself: what it needs, what it says without a GPU, and that it goes on where it stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import __main__ as command
from tests.gpu.machine import ROOT
from tests.gpu.results import Results
from tests.gpu.test_truth import captured_in

_ABSENT = ("gradio", "plotly", "pandas", "pytest", "hypothesis", "playwright", "diffusers", "transformers")
_PROGRAM = f"""
import importlib, pathlib, sys
for name in {_ABSENT!r}:
    sys.modules[name] = None
folder = pathlib.Path("tests/gpu")
for path in folder.rglob("*.py"):
    if not path.name.startswith(("test_", "conftest", "__")):
        importlib.import_module(".".join(path.with_suffix("").parts))
from tests.gpu.parts import PARTS, part_named
for part in PARTS:
    part_named(part).prepare()
from tests.gpu.__main__ import main
main(["--help"])
"""


def test_it_needs_nothing_of_the_page_and_no_library_of_models():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--minutes" in done.stdout


@pytest.fixture
def without_a_gpu(monkeypatch):
    monkeypatch.setattr(command, "has_gpu", lambda: False)


def test_without_a_gpu_and_without_results_there_is_nothing_to_do(without_a_gpu, tmp_path, capsys):
    assert command.main(["-o", str(tmp_path)]) == 2
    assert capsys.readouterr().out.startswith("There is no GPU here")


def test_what_was_measured_elsewhere_is_finished_here_and_only_once(without_a_gpu, tmp_path, capsys):
    captured_in(tmp_path)
    line = ["-o", str(tmp_path), "--only", "capture,replay"]
    assert command.main(line) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "capture: needs a GPU, and there is none here."
    assert said[1].startswith("  ok   replay/capture-block-plain")
    assert said[1].endswith("addresses")
    assert said[-1] == "1 done, 0 failed, 0 skipped"
    found = Results(tmp_path).read("replay", "capture-block-plain")
    assert found is not None
    assert found["machine"].keys() >= {"torch", "commit", "source", "numpy"}
    assert found["command"] == "python -m tests.gpu -o OUT --only replay --case capture-block-plain"
    command.main(line)
    assert capsys.readouterr().out.splitlines()[-1] == "0 done, 0 failed, 0 skipped"


def test_an_unknown_part_is_refused(capsys):
    with pytest.raises(SystemExit):
        command.main(["-o", "x", "--only", "capture,nonsense"])
    assert "there is no part nonsense" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here that torch can use")
def test_on_a_gpu_the_recorder_finds_what_it_relies_on(tmp_path: Path):
    assert command.main(["-o", str(tmp_path), "--only", "check"]) == 0
    answers = {each["name"]: each["result"] for each in Results(tmp_path).of("check")}
    relied_on = ("counts", "first-allocation", "command", "out-of-memory")
    wrong = [one for name in relied_on for one in answers[name]["answers"] if not one["ok"]]
    assert wrong == []
