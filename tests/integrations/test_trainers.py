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


def names_in(path: Path) -> list[str]:
    trace = memviz.open(path).trace
    return [trace.strings[name] for name in annotated(trace.devices[0]).name.tolist()]


def steps_in(path: Path) -> list[str]:
    names = names_in(path)
    assert {"forward", "backward", "optimizer step"} <= set(names)
    return list(dict.fromkeys(name for name in names if name.startswith("step ")))


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


@pytest.mark.parametrize("accumulated", [1, 3])
@each_trainer
def test_the_steps_of_a_trainer(train, accumulated, tmp_path):
    path = tmp_path / "memory.pickle"
    with memviz.predicting("RTX 4090") as predicted:
        train(path, Model(), accumulated, first=2, last=3)
    assert steps_in(path) == ["step 2", "step 3"] and not is_recording()
    assert names_in(path).count("forward") == 2 * accumulated
    opened = memviz.open(path)
    assert {"inner", "model.inner"} & {group.label for group in opened.by("module").groups}
    assert opened.peak().live_bytes <= timeline(predicted.trace.devices[0]).peak_bytes


@each_trainer
def test_a_trainer_that_runs_out_of_memory(train, tmp_path):
    path, model = tmp_path / "memory.pickle", Model()
    model.fails_at = 3
    with memviz.predicting("RTX 4090"), pytest.raises(torch.OutOfMemoryError):
        train(path, model, 1)
    assert [found.name for found in tmp_path.glob("*.pickle")] == ["memory.pickle"]
    assert missing(str(memviz.open(path)), "test_trainers.py", "100.00 GiB", "ran out of memory") == []
    assert steps_in(path) == ["step 1", "step 2", "step 3"] and not is_recording()


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
