"""A CUDA device that is not there: PyTorch code runs on tensors without data, and its memory is kept account of.

Tensors of the `meta` device stand for those on the card and CPU tensors for those on the host, so that both stay
apart as they would be. Whatever takes memory on the card goes, in order, through the model of PyTorch's allocator;
nothing is limited here: whether it fits a card is a question to a replay of the trace.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from memviz.allocator.settings import Settings
from memviz.errors import UsageError
from memviz.runner.device import TakesInputs
from memviz.runner.predict.autocast import Autocast, followed
from memviz.runner.predict.cards import Card
from memviz.runner.predict.compiling import left_as_it_stands, say_if_compiled
from memviz.runner.predict.fake_cuda import spoken
from memviz.runner.predict.in_place import owners_of_a_lone_sum
from memviz.runner.predict.kernels import kernels_for, registered
from memviz.runner.predict.mode import AllocationMode
from memviz.runner.predict.named_devices import HERE
from memviz.runner.predict.patches import applied
from memviz.runner.predict.place import place_model
from memviz.runner.predict.recorder import Recorder
from memviz.runner.predict.refusals import begin as begin_refusals
from memviz.runner.predict.refusals import caught
from memviz.runner.predict.trace import Marks, trace_of
from memviz.runner.predict.values import tensors_among
from memviz.runner.predict.workspaces import RECURRENT, unseen_by
from memviz.trace.intern import Interner
from memviz.trace.model import About, Category, Stage, Trace


class PretendedDevice:
    """Use it in a `with` block, one at a time in a process. What is made inside belongs to the device."""

    def __init__(
        self,
        card: Card,
        *,
        settings: Settings | None = None,
        release: tuple[int, int] | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """`release` is the torch whose choices of kernels are followed, as (2, 6); by default the installed one."""
        self.card = card
        self.release = _installed() if release is None else release
        self.settings = Settings() if settings is None else settings
        self.torch_device = HERE
        self._interner = Interner()
        self.recorder = Recorder(card, self.settings, self._interner)
        self._marks = Marks()
        self._facts = dict(facts or {})
        self._inside = ExitStack()
        self._highest_reserved = 0

    @property
    def name(self) -> str:
        return self.card.name

    def __enter__(self) -> Self:
        if _inside:
            raise UsageError("A predicted device is in use already; torch can pretend only one at a time.")
        owners_of_a_lone_sum()
        begin_refusals()
        with ExitStack() as stack:
            stack.enter_context(_only_one())
            stack.enter_context(_without_collection())
            stack.enter_context(applied(self))
            autocast = Autocast()
            kernels = kernels_for(self.card, self.release)
            kernels = {name: autocast.around(name, kernel) for name, kernel in kernels.items()}
            stack.enter_context(registered(kernels))
            stack.enter_context(followed(autocast))
            stack.enter_context(spoken(self))
            stack.enter_context(left_as_it_stands(self.recorder.stated))
            mode: Any = AllocationMode(self.recorder, kernels, autocast)
            stack.enter_context(mode)
            self.recorder.where.begins()
            self._inside = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.recorder.close()
        self._inside.close()

    def place(self, model: nn.Module) -> nn.Module:
        return place_model(self.recorder, model, self.torch_device)

    def inputs(self, workload: TakesInputs) -> dict[str, Any]:
        made = workload.inputs(self.torch_device)
        self.know(made, Category.INPUT)
        return made

    def know(self, value: Any, category: Category) -> None:
        """What the tensors in a value (however nested) are for, where only the caller can say."""
        for each in tensors_among(value):
            self.recorder.know(each, category)

    def called(self, module: nn.Module) -> None:
        if isinstance(module, nn.RNNBase):
            self.recorder.operators.add(RECURRENT)
        say_if_compiled(module, self.recorder.stated)

    def gave(self, module: nn.Module, value: Any) -> None:
        """An outermost module has returned."""
        for each in tensors_among(value):
            self.recorder.know_output(each)

    def stepped(self, optimizer: torch.optim.Optimizer) -> None:
        self.know(list(optimizer.state.values()), Category.OPTIMIZER_STATE)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Cycles of objects are collected where an outermost phase ends, and nowhere else."""
        where = self.recorder.where
        text = self._interner.string(name)
        where.phases.append(name)
        self._mark(text, Stage.START)
        try:
            yield
        finally:
            where.phases.pop()
            self.recorder.know_parameters()
            if not where.phases:
                gc.collect()
            self._mark(text, Stage.END)

    def _mark(self, text: int, stage: Stage) -> None:
        self._marks.add(text, stage, self.recorder.ledger.mark())

    def empty_cache(self) -> None:
        """Cycles are collected before it: by then Python would have done so, and scripts often say it."""
        gc.collect()
        self.recorder.ledger.empty_cache()

    def reset_peak(self) -> None:
        self._highest_reserved = self.highest_reserved_bytes
        self.recorder.ledger.allocator.statistics.reset_peak()

    @property
    def _statistics(self) -> Any:
        return self.recorder.ledger.allocator.statistics

    @property
    def allocated_bytes(self) -> int:
        return int(self._statistics.allocated)

    @property
    def reserved_bytes(self) -> int:
        return int(self._statistics.reserved)

    @property
    def peak_allocated_bytes(self) -> int:
        return int(self._statistics.allocated_bytes.peak[0])

    @property
    def peak_reserved_bytes(self) -> int:
        return int(self._statistics.reserved_bytes.peak[0])

    @property
    def peak_requested_bytes(self) -> int:
        """What the program held at most, before any rounding."""
        return int(self._statistics.requested_bytes.peak[0])

    @property
    def highest_reserved_bytes(self) -> int:
        """Of the whole run, whenever peaks were reset."""
        return max(self._highest_reserved, self.peak_reserved_bytes)

    @property
    def flops(self) -> int:
        return self.recorder.work.flops

    @property
    def bytes_moved(self) -> int:
        return self.recorder.work.bytes_moved

    def unseen(self) -> tuple[str, ...]:
        """In sentences: what this run takes on a real card beyond what is predicted, and what was taken as given."""
        said = filter(None, (*self.recorder.stated.sentences, caught()))
        return (*unseen_by(self.recorder.operators, self.card), *said)

    def _told(self) -> dict[str, str]:
        return {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "kernels of torch": ".".join(map(str, self.release)),
            "card_bytes": str(self.card.memory_bytes),
            "times": "No clock runs on a predicted device: times count events and phases, one microsecond each.",
            "not predicted": " ".join(self.unseen()),
        }

    def finish(self) -> Trace:
        self.recorder.know_parameters()
        about = About("predicted", on=self.card.name, facts={**self._told(), **self._facts})
        return trace_of(
            self.recorder.ledger,
            self.recorder.known,
            self._marks,
            self._interner,
            settings=self.settings.to_snapshot(),
            about=about,
        )


def _installed() -> tuple[int, int]:
    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


_inside: list[None] = []


@contextmanager
def _only_one() -> Iterator[None]:
    _inside.append(None)
    try:
        yield
    finally:
        _inside.pop()


@contextmanager
def _without_collection() -> Iterator[None]:
    """The garbage collector runs when Python sees fit, which no prediction can follow; so it runs where we say.

    What is there already is set aside, or else each collection would look through every library's objects.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_on:
            gc.enable()
