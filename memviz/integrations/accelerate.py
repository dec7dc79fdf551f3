"""Steps of a loop that is written with accelerate, recorded.

from memviz.integrations.accelerate import MemorySteps

with MemorySteps(accelerator, model, optimizer, "memory.pickle", first=2, last=3) as memory:
    for batch in loader:
        with memory.step(), accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from memviz.integrations.steps import RecordedSteps, optimizer_itself


class MemorySteps:
    """`model` and `optimizer` as `prepare` gave them. Where gradients are accumulated, a step is all of its batches.

    The other arguments are those of `RecordedSteps`.
    """

    def __init__(self, accelerator: Any, model: Any, optimizer: Any, path: Any = "memory.pickle", **how: Any) -> None:
        self.steps = RecordedSteps(path, **how)
        self._accelerator = accelerator
        self._model, self._optimizer = model, optimizer
        self._done = 0

    def __enter__(self) -> Self:
        self.steps.prepare()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.steps.training_ends()
        else:
            self.steps.failed(error)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one batch."""
        self.steps.step_begins(self._done + 1, self._model, optimizer_itself(self._optimizer))
        yield
        if self._accelerator.sync_gradients:
            self._done += 1
        self.steps.step_ends(self._done)
