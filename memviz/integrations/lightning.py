"""Steps of a Lightning `Trainer`, recorded.

from memviz.integrations.lightning import MemoryCallback

Trainer(max_steps=10, callbacks=[MemoryCallback("memory.pickle", first=2, last=3)]).fit(module, loader)
"""

from __future__ import annotations

from typing import Any

from memviz.integrations.steps import RecordedSteps, optimizer_itself

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:
    from pytorch_lightning import Callback


class MemoryCallback(Callback):  # type: ignore[misc]
    """Steps are those of the trainer (`global_step`). The arguments are those of `RecordedSteps`."""

    def __init__(self, path: Any = "memory.pickle", **how: Any) -> None:
        self.steps = RecordedSteps(path, **how)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.steps.prepare()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        optimizers = [optimizer_itself(optimizer) for optimizer in trainer.optimizers]
        self.steps.step_begins(trainer.global_step + 1, pl_module, *optimizers)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.steps.step_ends(trainer.global_step)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.steps.failed(exception)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.steps.training_ends()
