"""The recorded steps, their files, and cleanup after a failed training."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import memviz
from memviz.analysis.annotations import annotated
from memviz.errors import UsageError
from memviz.integrations.steps import RecordedSteps
from memviz.predictor.group.ranks import GroupRank
from memviz.runner.predicted_script import ScriptOrder, device_of
from memviz.runner.record.memory_history import is_recording
from memviz.trace.model import Trace
from tests.facts import missing


@pytest.fixture(autouse=True)
def nothing_left_on() -> Iterator[None]:
    yield
    assert not is_recording()


def names(path: Path) -> list[str]:
    """Names of the annotations, in order."""
    trace: Trace = memviz.open(path).trace
    return [trace.strings[name] for name in annotated(trace.devices[0]).name.tolist()]


STEP = ("forward", "backward", "optimizer step")


def train(steps: RecordedSteps, count: int, width: int = 256, *, fails_at: int = 0) -> None:
    model = torch.nn.Linear(width, width, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps.prepare()
    for step in range(1, count + 1):
        steps.step_begins(step, model, optimizer)
        model(torch.ones(4, width, device="cuda")).sum().backward()
        if step == fails_at:
            torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
        optimizer.step()
        optimizer.zero_grad()
        steps.step_ends(step)
    steps.training_ends()


def test_these_steps_and_no_others(tmp_path):
    path = tmp_path / "memory.pickle"
    with memviz.predicting():
        train(RecordedSteps(path, first=2, last=3), 5)
    assert names(path) == ["step 2", *STEP, "step 3", *STEP]
    trace = memviz.open(path)
    assert trace.trace.about.origin == "predicted"
    by_kind = {group.label: group.bytes for group in trace.by("category").groups}
    assert (by_kind["parameter"], by_kind["gradient"]) == (4 * (256 * 256 + 256), 4 * 256 * 256)


def test_a_training_that_is_shorter_ends_the_recording(tmp_path):
    with memviz.predicting():
        train(RecordedSteps(tmp_path / "memory.pickle", first=2, last=30), 3)
    assert names(tmp_path / "memory.pickle") == ["step 2", *STEP, "step 3", *STEP]


def test_a_training_without_these_steps_says_so(tmp_path):
    with memviz.predicting(), pytest.warns(UserWarning, match="no step from 7 to 8 was trained"):
        train(RecordedSteps(tmp_path / "memory.pickle", first=7, last=8), 3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_search_for_holders")
def test_memory_that_runs_out_is_kept_at_once(tmp_path):
    """The trainer reports no error, as some do."""
    steps = RecordedSteps(tmp_path / "memory.pickle")
    with memviz.predicting("RTX 4090"):
        with pytest.raises(torch.OutOfMemoryError):
            train(steps, 3, fails_at=2)
        assert [path.name for path in tmp_path.iterdir()] == ["memory.oom.pickle"]
        steps.close()
    assert [path.name for path in tmp_path.iterdir()] == ["memory.pickle"] == [steps.out_of_memory_path.name]
    assert missing(str(memviz.open(tmp_path / "memory.pickle")), "100.00 GiB", "ran out of memory") == []


@pytest.mark.usefixtures("no_search_for_holders")
def test_memory_that_ran_out_and_was_given_again_has_a_file_of_its_own(tmp_path):
    steps = RecordedSteps(tmp_path / "memory.pickle")
    with memviz.predicting("RTX 4090"):
        model = torch.nn.Linear(8, 8, device="cuda")
        steps.prepare()
        steps.step_begins(1, model)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
        kept = torch.zeros(1 << 20, device="cuda")
        steps.close()
    assert kept.shape == (1 << 20,)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.oom.pickle", "memory.pickle"]
    assert memviz.open(tmp_path / "memory.oom.pickle").trace.event_count < memviz.open(steps.path).trace.event_count


def test_an_error_leaves_what_was_recorded_by_then(tmp_path):
    steps = RecordedSteps(tmp_path / "memory.pickle")
    with memviz.predicting():
        steps.prepare()
        steps.step_begins(1, torch.nn.Linear(8, 8, device="cuda"))
        kept = torch.zeros(1 << 20, device="cuda")
        steps.failed(ValueError("of the training"))
    assert kept.numel() and memviz.open(tmp_path / "memory.pickle").peak().live_bytes >= 4 << 20


def test_a_training_that_begins_anew_ends_what_was_left(tmp_path):
    steps = RecordedSteps(tmp_path / "memory.pickle", last=1, overwrite=True)
    with memviz.predicting():
        steps.prepare()
        steps.step_begins(1, torch.nn.Linear(8, 8, device="cuda"))
        assert is_recording()
        train(steps, 2)
    assert names(tmp_path / "memory.pickle") == ["step 1", *STEP]


def test_every_rank_has_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with memviz.predicting():
        train(RecordedSteps(tmp_path / "memory.pickle", last=1), 1)
    (path,) = tmp_path.iterdir()
    assert path.name == "memory.rank5.pickle"
    assert memviz.open(path).trace.about.facts["rank"] == "5"


def test_a_pretended_rank_has_its_labels_whatever_the_number_of_its_card(tmp_path, monkeypatch):
    rank = GroupRank(3, 4)
    for name, value in rank.environment.items():
        monkeypatch.setenv(name, value)
    with device_of(ScriptOrder("RTX 4090", rank=rank)):
        train(RecordedSteps(tmp_path / "memory.pickle", last=1), 1)
    (path,) = tmp_path.iterdir()
    assert path.name == "memory.rank3.pickle" and names(path) == ["step 1", *STEP]


def test_what_cannot_be_is_said_before_the_training(tmp_path):
    for wrong in ({"first": 0}, {"first": 3, "last": 2}):
        with pytest.raises(UsageError, match="Steps are counted from 1"):
            RecordedSteps(tmp_path / "memory.pickle", **wrong)
    (tmp_path / "memory.pickle").touch()
    with memviz.predicting(), pytest.raises(UsageError, match="already exists"):
        RecordedSteps(tmp_path / "memory.pickle").prepare()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_what_it_needs(tmp_path):
    with pytest.raises(UsageError, match="Recording needs a GPU"):
        RecordedSteps(tmp_path / "memory.pickle").prepare()


def test_after_a_pretended_device_is_gone_nothing_stays_on(tmp_path):
    steps: Any = RecordedSteps(tmp_path / "memory.pickle")
    with memviz.predicting():
        steps.prepare()
        steps.step_begins(1, torch.nn.Linear(8, 8, device="cuda"))
    steps.close()
    with memviz.predicting():
        train(RecordedSteps(tmp_path / "again.pickle", last=1), 1)
    assert names(tmp_path / "again.pickle") == ["step 1", *STEP]
