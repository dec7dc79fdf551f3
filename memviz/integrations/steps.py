"""Some steps of a training into a file: switched on before the first of them, written after the last.

On a GPU this is `memviz.recording`; within `memviz.predicting` or `python -m memviz predict` it is the same on the card
that is pretended. Whatever ends the training in between, what was recorded by then is written.
"""

from __future__ import annotations

import atexit
import os
import warnings
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from torch.optim import Optimizer

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.record.memory_history import HistorySnapshot, StackKind
from memviz.runner.record.recorded_script import OUT_OF_MEMORY, rank_path, rank_position, sibling_path
from memviz.runner.record.recording import (
    Recording,
    free_path,
    recording,
    trace_of_snapshot,
    with_labels,
    write_snapshot,
)


class RecordedSteps:
    """Steps `first` to `last` of an optimizer, counted from 1. Every rank writes a file of its own."""

    def __init__(
        self,
        path: str | os.PathLike[str] = "memory.pickle",
        *,
        first: int = 1,
        last: int = 3,
        stacks: StackKind = "python",
        max_entries: int | None = None,
        overwrite: bool = False,
        holders: bool = False,
    ) -> None:
        """Like `memviz.recording`, whose words the others are."""
        if not 1 <= first <= last:
            raise UsageError(f"Steps are counted from 1, and there is none from {first} to {last}.")
        self.first, self.last = first, last
        self.path = Path(path)
        """The output file; once training has begun, the one of this rank."""
        self.out_of_memory_path: Path | None = None
        """The moment when memory ran out, where it did."""
        self._named = Path(path)
        self._how: dict[str, Any] = {"stacks": stacks, "max_entries": max_entries, "holders": holders}
        self._overwrite = overwrite
        self._open: Recording | None = None
        self._around, self._in_step = ExitStack(), ExitStack()
        self._is_over = False
        atexit.register(_closed_if_there, weakref.ref(self))

    def prepare(self) -> None:
        """Before a training begins, which may take long to come to these steps.

        Raises:
            UsageError: There is no GPU, or the file cannot be written.
        """
        self.close()
        self._is_over = False
        position = rank_position()
        self.path = free_path(rank_path(self._named, position), overwrite=self._overwrite)
        free_path(sibling_path(self.path, OUT_OF_MEMORY), overwrite=self._overwrite)
        find_accelerator()

    def step_begins(self, step: int, model: Any, *optimizers: Any) -> None:
        self._in_step.close()
        if self._open is None and not self._is_over and self.first <= step <= self.last:
            self._begin(model, optimizers)
        if self._open is not None:
            self._in_step.enter_context(self._open.phase(f"step {step}"))

    def step_ends(self, step: int) -> None:
        """`step` is the last one that was done."""
        if self._open is not None:
            self._in_step.close()
            if step >= self.last:
                self.finish()

    def finish(self) -> None:
        """Writes what was recorded; nothing more will be."""
        self._is_over = True
        around, self._around, self._open = self._around, ExitStack(), None
        self._in_step.close()
        around.close()

    def training_ends(self) -> None:
        if self._open is None and not self._is_over:
            message = f"No memory was recorded: no step from {self.first} to {self.last} was trained."
            warnings.warn(message, stacklevel=3)
        self.finish()

    def failed(self, error: BaseException) -> None:
        """The training's own error, which goes on; of memory that ran out the moment itself is kept."""
        if self._open is not None:
            self._open.history.failed(error)
        self.close()

    def close(self) -> None:
        """After whatever went wrong: what can still be written is, and the history is off."""
        ended_so = self._ended_so()
        with suppress(Exception):
            self.finish()
            if ended_so and self.out_of_memory_path is not None:
                # The file of the whole is that moment, too.
                self.out_of_memory_path.unlink(missing_ok=True)
                self.out_of_memory_path = self.path

    def _ended_so(self) -> bool:
        with suppress(Exception):
            return self._open is not None and self._open.history.ended_out_of_memory()
        return False

    def _begin(self, model: Any, optimizers: Sequence[Any]) -> None:
        recorder = recording(self.path, model=model, overwrite=self._overwrite, **self._how)
        self._open = opened = self._around.enter_context(recorder)
        for optimizer in optimizers:
            opened.label(optimizer=optimizer)
        position = rank_position()
        opened.facts = position.facts if position is not None else {}
        opened.history.when_out_of_memory = self._ran_out

    def _ran_out(self, capture: HistorySnapshot) -> None:
        """Called in the failing allocation; the training may go on, with a smaller batch."""
        if self._open is None:
            return
        self._open.ran_out()
        path = sibling_path(self.path, OUT_OF_MEMORY)
        opened = self._open
        trace = trace_of_snapshot(
            opened.history, capture, opened.log, opened.device, facts=opened.facts, source=path.name
        )
        write_snapshot(path, with_labels(capture.snapshot, trace))
        self.out_of_memory_path = path


def _closed_if_there(steps: weakref.ref[RecordedSteps]) -> None:
    there = steps()
    if there is not None:
        there.close()


def optimizer_itself(optimizer: Any) -> Any:
    """Below the wrappers of accelerate and Lightning, which are not what takes the steps."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer
