"""A fake GPU between whose calls anything can happen: each is written down in order, and any of them can fail.

gpu = FailingGpu()
with gpu.in_torch():
    execute(plan, print)
gpu.names                   # ("init", "synchronize", ...)

FailingGpu(fails_at=7)      # the eighth call raises what a card raises that has fallen off its bus
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from memviz.runner import execute
from memviz.runner.measure.accelerator import Accelerator
from memviz.runner.output_check import comparison
from tests.runner.fake_gpu import FakeGpu, Moment, TorchsGpu
from tests.runner.torch_storages import watching_torch

LOST = "CUDA error: unspecified launch failure"
Raises = Callable[[], BaseException]


class FailingGpu:
    """`fails_at` counts calls from 0; `sticky` lets every call after it fail too, as a card does that is lost."""

    def __init__(
        self,
        gpu: FakeGpu | None = None,
        *,
        fails_at: int | None = None,
        raises: Raises = lambda: RuntimeError(LOST),
        sticky: bool = False,
    ) -> None:
        self.gpu = gpu or TorchsGpu()
        self.fails_at = fails_at
        self.raises = raises
        self.sticky = sticky
        self.names: list[str] = []
        self.smi: dict[str, str] = {}
        """Answers of `nvidia-smi`, by a part of the query."""

    @property
    def accelerator(self) -> Accelerator:
        versions = (("torch", "2.13.0"),)
        return Accelerator("cpu", self, self._attach, versions, lambda: self.gpu.is_recording, ask_driver=self._ask)

    @contextmanager
    def in_torch(self) -> Iterator[None]:
        """Make memviz use this GPU as the one that `torch` reports."""
        with pytest.MonkeyPatch.context() as patch, watching_torch(self.gpu):
            patch.setattr(execute, "find_accelerator", lambda: self.accelerator)
            patch.setattr(comparison, "find_accelerator", lambda: self.accelerator)
            yield

    def called(self, name: str) -> None:
        self.names.append(name)
        number = len(self.names) - 1
        if self.fails_at is not None and (number == self.fails_at or (self.sticky and number > self.fails_at)):
            raise self.raises()

    @property
    def memory(self) -> FailingGpu:
        return self

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.gpu, name)
        if inner is Moment:
            return lambda **known: _Moment(self, **known)

        @functools.wraps(inner)
        def call(*arguments: Any, **named: Any) -> Any:
            self.called(name)
            return inner(*arguments, **named)

        return call

    def _attach(self, observer: Any) -> None:
        self.called("attach_observer")
        self.gpu.observers.append(observer)

    def _ask(self, *question: str) -> str | None:
        return next((answer for part, answer in self.smi.items() if part in " ".join(question)), None)


class _Moment(Moment):
    def __init__(self, owner: FailingGpu, enable_timing: bool = False) -> None:
        owner.called("Event")
        super().__init__(enable_timing)
        self.owner = owner

    def record(self) -> None:
        self.owner.called("Event.record")
        super().record()

    def elapsed_time(self, later: Moment) -> float:
        self.owner.called("Event.elapsed_time")
        return super().elapsed_time(later)
