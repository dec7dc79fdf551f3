"""The libraries' own trainers on the predicted device: recorded steps, and cleanup after a failure."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memviz
from memviz.analysis.annotations import annotated
from memviz.analysis.timeline import timeline
from memviz.runner.record.memory_history import is_recording
from tests.facts import missing
from tests.house.repository import text_of

# Warnings of other libraries about themselves are not ours to heed.
pytestmark = pytest.mark.filterwarnings("ignore")
WIDTH = 128
OOM = 100 << 30


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.fails_at = 0
        self.calls = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        self.calls += 1
        if self.calls == self.fails_at:
            torch.empty(OOM, dtype=torch.uint8, device="cuda")
        out = self.inner(x)
        return {"loss": out.sum(), "out": out}


class Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.ones(WIDTH)}


def steps_in(path: Path) -> list[str]:
    trace = memviz.open(path).trace
    names = [trace.strings[name] for name in annotated(trace.devices[0]).name.tolist()]
    assert {"forward", "backward", "optimizer step"} <= set(names)
    return [name for name in names if name.startswith("step ")]


def modules(path: Path) -> set[str]:
    return {group.label for group in memviz.open(path).by("module").groups}


def forwards(path: Path) -> int:
    trace = memviz.open(path).trace
    return [trace.strings[name] for name in annotated(trace.devices[0]).name.tolist()].count("forward")


# -- transformers


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


def transformers_callback(path: Path, **how: Any) -> Any:
    pytest.importorskip("transformers")
    from memviz.integrations.transformers import MemoryCallback

    return MemoryCallback(path, **how)


@pytest.mark.parametrize("more", [{}, {"gradient_accumulation_steps": 3}], ids=["", "accumulated"])
def test_a_trainer_of_transformers(more, tmp_path):
    path = tmp_path / "memory.pickle"
    callback = transformers_callback(path, first=2, last=3)
    with memviz.predicting("RTX 4090") as predicted:
        trainer(tmp_path, Model(), callback, **more).train()
    assert steps_in(path) == ["step 2", "step 3"] and not is_recording()
    assert forwards(path) == 2 * more.get("gradient_accumulation_steps", 1)
    assert "inner" in modules(path)
    assert memviz.open(path).peak().live_bytes <= timeline(predicted.trace.devices[0]).peak_bytes


def test_a_trainer_of_transformers_that_runs_out_of_memory(tmp_path):
    path = tmp_path / "memory.pickle"
    callback, model = transformers_callback(path), Model()
    model.fails_at = 3
    with memviz.predicting("RTX 4090"):
        with pytest.raises(torch.OutOfMemoryError):
            trainer(tmp_path, model, callback).train()
        callback.steps.close()
    assert missing(str(memviz.open(path)), "test_trainers.py", "100.00 GiB", "ran out of memory") == []
    assert steps_in(path) == ["step 1", "step 2", "step 3"] and not is_recording()


# -- Lightning


def lightning() -> Any:
    return pytest.importorskip("lightning.pytorch", reason="lightning is not installed")


def lightning_fit(folder: Path, callback: Any, *, fails_at: int = 0, **more: Any) -> None:
    library = lightning()

    class Module(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()
            self.model.fails_at = fails_at

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
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **more,
    )
    made.fit(Module(), torch.utils.data.DataLoader(Data(), batch_size=2))


def lightning_callback(path: Path, **how: Any) -> Any:
    lightning()
    from memviz.integrations.lightning import MemoryCallback

    return MemoryCallback(path, **how)


def test_a_trainer_of_lightning(tmp_path):
    path = tmp_path / "memory.pickle"
    callback = lightning_callback(path, first=2, last=3)
    with memviz.predicting("RTX 4090"):
        lightning_fit(tmp_path, callback)
    assert steps_in(path) == ["step 2", "step 3"] and not is_recording()
    assert "model.inner" in modules(path)


def test_a_trainer_of_lightning_that_runs_out_of_memory(tmp_path):
    path = tmp_path / "memory.pickle"
    callback = lightning_callback(path)
    with memviz.predicting("RTX 4090"), pytest.raises(torch.OutOfMemoryError):
        lightning_fit(tmp_path, callback, fails_at=2)
    assert [found.name for found in tmp_path.glob("*.pickle")] == ["memory.pickle"]
    assert missing(str(memviz.open(path)), "test_trainers.py", "100.00 GiB", "ran out of memory") == []
    assert steps_in(path) == ["step 1", "step 2"] and not is_recording()


# -- accelerate


def accelerate_loop(path: Path, *, batches: int, accumulated: int = 1, fails_at: int = 0, **how: Any) -> None:
    library = pytest.importorskip("accelerate", reason="accelerate is not installed")
    from memviz.integrations.accelerate import MemorySteps

    accelerator = library.Accelerator(gradient_accumulation_steps=accumulated)
    model = Model()
    model.fails_at = fails_at
    loader = torch.utils.data.DataLoader(Data(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
    with MemorySteps(accelerator, model, optimizer, path, **how) as memory:
        for _, batch in zip(range(batches), loader, strict=False):
            with memory.step(), accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()


@pytest.mark.parametrize("accumulated", [1, 3])
def test_a_loop_of_accelerate(accumulated, tmp_path):
    path = tmp_path / "memory.pickle"
    with memviz.predicting("RTX 4090"):
        accelerate_loop(path, batches=4 * accumulated, accumulated=accumulated, first=2, last=3)
    assert list(dict.fromkeys(steps_in(path))) == ["step 2", "step 3"] and not is_recording()
    assert forwards(path) == 2 * accumulated and "inner" in modules(path)


def test_a_loop_of_accelerate_that_runs_out_of_memory(tmp_path):
    path = tmp_path / "memory.pickle"
    with memviz.predicting("RTX 4090"), pytest.raises(torch.OutOfMemoryError):
        accelerate_loop(path, batches=4, fails_at=3)
    assert missing(str(memviz.open(path)), "test_trainers.py", "100.00 GiB", "ran out of memory") == []
    assert not is_recording()


# -- the README's code


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
