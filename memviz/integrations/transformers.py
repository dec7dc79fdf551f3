"""Steps of a `transformers.Trainer`, recorded.

from memviz.integrations.transformers import MemoryCallback

Trainer(model, arguments, train_dataset=data, callbacks=[MemoryCallback("memory.pickle", first=2, last=3)]).train()
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from memviz.integrations.steps import RecordedSteps, optimizer_itself


class MemoryCallback(TrainerCallback):  # type: ignore[misc]
    """Steps are those of the optimizer. The arguments are those of `RecordedSteps`.

    A Trainer tells its callbacks nothing of an error. Of memory that runs out PyTorch tells, so that moment is written;
    after another error what was recorded is written when the program ends, or when a training begins anew.
    """

    def __init__(self, path: Any = "memory.pickle", **how: Any) -> None:
        self.steps = RecordedSteps(path, **how)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.prepare()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.step_begins(state.global_step + 1, kwargs.get("model"), optimizer_itself(kwargs.get("optimizer")))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.step_ends(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps.training_ends()
