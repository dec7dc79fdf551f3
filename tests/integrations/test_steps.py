"""Recorded steps, their files, and cleanup after a failed training; alone, and by the libraries' own trainers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memviz
from memviz.analysis.annotations import annotated
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.integrations.steps import RecordedSteps
from memviz.predictor.group.ranks import GroupRank
from memviz.runner.predicted_script import ScriptOrder, device_of
from memviz.runner.record.memory_history import is_recording
from memviz.trace.model import Trace
from tests.facts import missing
from tests.house.repository import text_of


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


WIDTH = 128


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.fails_at = 0
        self.calls = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls == self.fails_at:
            torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
        out = self.inner(x)
        return {"loss": out.sum(), "out": out}


class Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.ones(WIDTH)}


def steps_in(path: Path) -> list[str]:
    found = names(path)
    assert set(STEP) <= set(found)
    return list(dict.fromkeys(name for name in found if name.startswith("step ")))


def trainer(folder: Path, model: nn.Module, *callbacks: Any, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate", reason="transformers' Trainer needs accelerate, which is not installed")
    arguments = transformers.TrainingArguments(
        str(folder / "out"),
        max_steps=4,
        per_device_train_batch_size=2,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )
    return transformers.Trainer(model, arguments, train_dataset=Data(), callbacks=list(callbacks))


def by_transformers(path: Path, model: Model, accumulated: int, **how: Any) -> None:
    pytest.importorskip("transformers")
    from memviz.integrations.transformers import MemoryCallback

    callback = MemoryCallback(path, **how)
    try:
        trainer(path.parent, model, callback, gradient_accumulation_steps=accumulated).train()
    finally:
        callback.steps.close()


def by_lightning(path: Path, model: Model, accumulated: int, **how: Any) -> None:
    library = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from memviz.integrations.lightning import MemoryCallback

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Any:
            return self.model(x)

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            return self(batch["x"])["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    made = library.Trainer(
        accelerator="gpu",
        devices=1,
        max_steps=4,
        accumulate_grad_batches=accumulated,
        callbacks=[MemoryCallback(path, **how)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=path.parent,
    )
    made.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=2))


def by_accelerate(path: Path, model: Model, accumulated: int, **how: Any) -> None:
    library = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from memviz.integrations.accelerate import MemorySteps

    accelerator = library.Accelerator(gradient_accumulation_steps=accumulated)
    loader = torch.utils.data.DataLoader(Data(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    with MemorySteps(accelerator, model, optimizer, path, **how) as memory:
        for _, batch in zip(range(4 * accumulated), loader, strict=False):
            with memory.step(), accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()


each_trainer = pytest.mark.parametrize("train", [by_transformers, by_lightning, by_accelerate])
not_ours_to_heed = pytest.mark.filterwarnings("ignore")
"""Warnings of other libraries about themselves."""


@pytest.mark.parametrize("accumulated", [1, 3])
@each_trainer
@not_ours_to_heed
def test_the_steps_of_a_trainer(train, accumulated, tmp_path):
    path = tmp_path / "memory.pickle"
    with memviz.predicting("RTX 4090") as predicted:
        train(path, Model(), accumulated, first=2, last=3)
    assert steps_in(path) == ["step 2", "step 3"]
    assert names(path).count("forward") == 2 * accumulated
    opened = memviz.open(path)
    assert {"inner", "model.inner"} & {group.label for group in opened.by("module").groups}
    assert opened.peak().live_bytes <= timeline(predicted.trace.devices[0]).peak_bytes


@each_trainer
@not_ours_to_heed
def test_a_trainer_that_runs_out_of_memory(train, tmp_path):
    path, model = tmp_path / "memory.pickle", Model()
    model.fails_at = 3
    with memviz.predicting("RTX 4090"), pytest.raises(torch.OutOfMemoryError):
        train(path, model, 1)
    assert [found.name for found in tmp_path.glob("*.pickle")] == ["memory.pickle"]
    assert missing(str(memviz.open(path)), "test_steps.py", "100.00 GiB", "ran out of memory") == []
    assert steps_in(path) == ["step 1", "step 2", "step 3"]


@not_ours_to_heed
def test_the_readmes_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", text_of("memviz/integrations/README.md"), re.S)
    library = pytest.importorskip("accelerate", reason="accelerate is not installed")
    for example in examples:
        with memviz.predicting("RTX 4090"):
            accelerator = library.Accelerator()
            model = Model()
            loader = torch.utils.data.DataLoader(Data(), batch_size=16)
            optimizer = torch.optim.AdamW(model.parameters())
            prepared = accelerator.prepare(model, optimizer, loader)
            known = dict(zip(("model", "optimizer", "loader"), prepared, strict=True))
            exec(example, {"trainer": trainer(tmp_path, Model()), "accelerator": accelerator, **known})
        assert steps_in(tmp_path / "memory.pickle") == ["step 2", "step 3"]
        (tmp_path / "memory.pickle").unlink()
    assert len(examples) == 2
