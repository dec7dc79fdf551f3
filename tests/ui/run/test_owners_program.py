"""Tests of programs that the page was started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from memviz.runner.own_source import functions_of
from memviz.ui.run.answer import RunAnswers
from memviz.ui.shell.store import TraceStore

SOURCE = '''
import torch
from torch import nn

def layers(width: int = 256, depth=2, small=False):
    """Layers of mine.

    More words.
    """
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth))), {"input": torch.zeros(4, width)}

def _helper():
    raise AssertionError
'''


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_its_functions_are_offered_with_their_parameters_and_run(program: Path, tmp_path: Path) -> None:
    answers = RunAnswers(TraceStore(), tmp_path / "runs", programs=[str(program)])
    try:
        row = answers.listing()["workloads"][0]
        assert (row["title"], row["sentence"]) == ("layers of mine.py", "Layers of mine.")
        knobs = {knob["name"]: (knob["type"], knob["default"]) for knob in row["knobs"]}
        assert (knobs["width"], knobs["depth"], "small" in knobs) == (("int", 256), ("int", 2), False)
        fields = {"workload": f"{program}:layers", "w:width": "512", "numerics": False}
        _, asked = answers.parse(fields)
        assert [(request.workload, request.settings) for request in asked.requests] == [
            (f"{program}:layers", {"width": "512"})
        ]
        done = list(answers.follow(answers.begin(asked, "ann").id))[-1]
        run = done.variants[0].run
        assert run is not None and run.weights_bytes == 4 * 2 * (512 * 512 + 512)
    finally:
        answers.close()


def test_a_page_that_was_not_started_with_it_takes_another_workload(program: Path, tmp_path: Path) -> None:
    answers = RunAnswers(TraceStore(), tmp_path / "runs")
    try:
        assert not any(".py" in row["name"] for row in answers.listing()["workloads"])
        _, asked = answers.parse({"workload": f"{program}:layers"})
        assert not any(".py" in request.workload for request in asked.requests)
    finally:
        answers.close()


def test_a_file_is_read_and_not_executed_to_be_offered(tmp_path: Path) -> None:
    path = tmp_path / "loud.py"
    path.write_text("raise SystemExit('executed')\ndef model(size: float = 1.5, name='a'): ...\n")
    (function,) = functions_of(str(path))
    assert [(knob.name, knob.type, knob.default) for knob in function.knobs] == [
        ("size", "float", 1.5),
        ("name", "text", "a"),
    ]
