"""A CUDA device that is not there: PyTorch code runs on tensors without data, and its memory is kept account of.

Tensors of the `meta` device stand for those on the card and CPU tensors for those on the host, so that both stay
apart as they would be. Whatever takes memory on the card goes, in order, through the model of PyTorch's allocator.
Without a limit, whether it fits a card is a question to a replay of the trace; with one, the program meets it as it
would on the card.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from memviz.allocator.blocks import DeviceMemory
from memviz.allocator.recorded_requests import AllocatorCalls
from memviz.allocator.settings import Settings, parse_settings
from memviz.allocator.statistics import Statistics
from memviz.errors import UsageError
from memviz.memory import without_collection
from memviz.runner.predict.accuracy import unproven_of
from memviz.runner.predict.allocation_recorder import AllocationRecorder
from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.autocast import Autocast, followed
from memviz.runner.predict.cards import KnownCard, dtype_warnings
from memviz.runner.predict.compiled_code import nothing_scripted
from memviz.runner.predict.cuda_memory import (
    HistoryWindow,
    MemoryHistory,
    OutOfMemoryReport,
    PretendedOutOfMemory,
    card_memory,
)
from memviz.runner.predict.decompositions import jagged_attention_on, kernels_for, registered_kernels
from memviz.runner.predict.evidence import COLLECTIVES, Unproven
from memviz.runner.predict.fake_cuda import FakeCuda
from memviz.runner.predict.group.process_group import grouped
from memviz.runner.predict.group.ranks import GroupRank, Layout
from memviz.runner.predict.in_place import owners_of_a_lone_sum
from memviz.runner.predict.model_transfer import MoveTo, move_model
from memviz.runner.predict.named_devices import CUDA_0, META, NamedDevices
from memviz.runner.predict.predicted_trace import KeptTrace, PhaseMarks, trace_of
from memviz.runner.predict.prediction_errors import caught_refusal, forget_refusals
from memviz.runner.predict.program_threads import ChildProcesses, SharedAllocationMode
from memviz.runner.predict.saved_files import kept
from memviz.runner.predict.torch_patches import ProgramPhases, followed_by, nothing_compiled, phases_named
from memviz.runner.predict.workspaces import unseen_by
from memviz.runner.run_device import TakesInputs
from memviz.trace.intern import Interner
from memviz.trace.model import About, Category, Stage, Trace

RESERVED_IS_UNPROVEN = (
    "No recording of a rank was held against a prediction yet: what is live follows PyTorch's own code, but what is "
    "reserved depends on the order in which streams give memory back, and is not validated."
)
_DTYPES = {torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8"}
"""Those that some cards have no hardware for."""
_EVENTS_BETWEEN_COLLECTIONS = 1000
"""Events between collections of cycles, where a program empties the cache; they are slow once libraries are loaded."""


class PredictedDevice:
    """Use it in a `with` block, one at a time in a process. What is made inside belongs to the device."""

    def __init__(
        self,
        card: KnownCard,
        *,
        settings: Settings | None = None,
        release: tuple[int, int] | None = None,
        facts: Mapping[str, str] | None = None,
        assume: Mapping[str, Any] | None = None,
        limited: bool = False,
        rank: GroupRank | None = None,
        figures_only: bool = False,
    ) -> None:
        """`release` is the torch whose choices of kernels are followed, as (2, 6); by default the installed one.

        `assume` are the user's own answers where a program asks for values, by line: {"train.py:12": 3.0}.
        `limited`: the program has what a process gets of the card, and no more.
        `rank` is the process of a group that is predicted; the others are pretended.
        `figures_only`: without the stacks of allocations, which are for whoever looks at the trace.
        """
        self.card = card
        self.rank = rank
        self.layout = Layout()
        """Process groups of the program, as seen from this rank."""
        self.release = _installed() if release is None else release
        self.settings = Settings() if settings is None else settings
        self.torch_device = CUDA_0
        self._interner = Interner()
        memory = card_memory(card)
        limit = DeviceMemory(memory.usable_bytes, total=memory.total_bytes) if limited else None
        self.recorder = AllocationRecorder(
            card,
            self.settings,
            self._interner,
            Assumptions(assume),
            limit,
            release=self.release,
            figures_only=figures_only,
        )
        self.children = ChildProcesses(self.recorder)
        self._marks = PhaseMarks()
        self.limited = limited
        self._facts = dict(facts or {})
        self._inside = ExitStack()
        self._collected_at = -_EVENTS_BETWEEN_COLLECTIONS - 1
        self._highest = (0, 0, 0)
        """Requested, allocated and reserved, before peaks were reset."""
        self._peaks_from = 0
        self._report = OutOfMemoryReport(memory)
        self._history = MemoryHistory(self.recorder.ledger, self._trace)
        ledger = self.recorder.ledger
        ledger.out_of_memory = lambda failure: self._report.of(failure, ledger.allocator, len(ledger.history) - 1)

    is_predicted = True

    @property
    def name(self) -> str:
        return self.card.name

    def __enter__(self) -> Self:
        if _inside:
            raise UsageError("A predicted device is in use already; torch can pretend only one at a time.")
        owners_of_a_lone_sum()
        forget_refusals()
        with ExitStack() as stack:
            stack.enter_context(_only_one())
            # It would run when Python sees fit, which no prediction can follow.
            stack.enter_context(without_collection())
            stack.enter_context(followed_by(self.recorder))
            autocast = Autocast(self.release, lambda cast: self.recorder.know(cast, Category.AUTOCAST_WEIGHT_COPIES))
            kernels = kernels_for(self.card, self.release)
            kernels = {name: autocast.around(name, kernel) for name, kernel in kernels.items()}
            stack.enter_context(registered_kernels(kernels))
            stack.enter_context(followed(autocast))
            mode: Any = partial(SharedAllocationMode, self.recorder, kernels, autocast)
            named = NamedDevices(self.card.name, self.rank)
            cuda = FakeCuda(self, self.recorder, self._report, self._history, named)
            stack.enter_context(cuda.installed(mode))
            stack.enter_context(self.children.followed())
            stack.enter_context(nothing_compiled(self.recorder.assumptions))
            stack.enter_context(jagged_attention_on(self.card))
            stack.enter_context(nothing_scripted(self.recorder.assumptions))
            stack.enter_context(grouped(self.recorder, self.rank, self.layout, cuda.order))
            stack.enter_context(kept(self.recorder.host, self.recorder.assumptions, named))
            stack.enter_context(mode())
            position = self.recorder.position
            stack.enter_context(phases_named(ProgramPhases(self._mark, position), position))
            position.begins()
            self._inside = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.recorder.close()
        self._inside.close()

    def place(self, model: nn.Module, on_host: Collection[nn.Parameter] = ()) -> nn.Module:
        return move_model(self.recorder, model, MoveTo(META), on_host)

    def inputs(self, workload: TakesInputs) -> dict[str, Any]:
        made = workload.inputs(self.torch_device)
        self.know(made, Category.INPUT)
        return made

    def know(self, value: Any, category: Category) -> None:
        """Set the category of the tensors in a value (however nested), where only the caller knows it."""
        self.recorder.know(value, category)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Cycles of objects are collected where an outermost phase ends, and nowhere else."""
        phases = self.recorder.position.phases
        phases.append(name)
        self._mark(name, Stage.START)
        try:
            yield
        finally:
            phases.pop()
            self.recorder.know_parameters()
            if not phases:
                gc.collect()
            self._mark(name, Stage.END)

    def _mark(self, name: str, stage: Stage) -> None:
        self._marks.add(self._interner.string(name), stage, self.recorder.ledger.mark())

    def empty_cache(self) -> None:
        """Cycles are collected before it: by then Python would have done so, and scripts often say it.

        All of them after a stretch of work, the young ones where it is said again and again, as offloading does.
        """
        events = len(self.recorder.ledger.history)
        full = events - self._collected_at > _EVENTS_BETWEEN_COLLECTIONS
        gc.collect(2 if full else 1)
        if full:
            self._collected_at = events
        self.recorder.ledger.empty_cache()

    def reset_peak(self) -> None:
        self._highest = (self.highest_requested_bytes, self.highest_allocated_bytes, self.highest_reserved_bytes)
        self.recorder.ledger.allocator.statistics.reset_peak()
        self._peaks_from = len(self.recorder.ledger.history)

    @property
    def said_between(self) -> AllocatorCalls:
        return AllocatorCalls(tuple(self.recorder.ledger.emptied), self._peaks_from)

    def set_allocator_settings(self, text: str) -> None:
        """Change allocator settings while the program runs; the existing layout stays as it is."""
        self.change_settings(parse_settings(text))

    def change_settings(self, settings: Settings) -> None:
        self.settings = settings
        self.recorder.ledger.allocator.set_settings(settings)

    def memory_stats(self) -> dict[str, int]:
        return self._statistics.as_dict()

    @property
    def _statistics(self) -> Statistics:
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
        """Peak of the bytes that tensors requested, before any rounding."""
        return int(self._statistics.requested_bytes.peak[0])

    @property
    def highest_reserved_bytes(self) -> int:
        """Peak reserved bytes of the whole run, whenever peaks were reset."""
        return max(self._highest[2], self.peak_reserved_bytes)

    @property
    def highest_allocated_bytes(self) -> int:
        return max(self._highest[1], self.peak_allocated_bytes)

    @property
    def highest_requested_bytes(self) -> int:
        return max(self._highest[0], self.peak_requested_bytes)

    @property
    def windows(self) -> tuple[HistoryWindow, ...]:
        """The files that the program's own history was dumped to."""
        return tuple(self._history.windows)

    @property
    def out_of_memory(self) -> tuple[PretendedOutOfMemory, ...]:
        """Allocations that failed, whether or not the program continued."""
        return tuple(self._report.failures)

    @property
    def flops(self) -> int:
        return self.recorder.totals.flops

    @property
    def bytes_moved(self) -> int:
        return self.recorder.totals.bytes_moved

    @property
    def host_bytes(self) -> int:
        """Between the device and the host, both ways together."""
        return self.recorder.totals.from_host_bytes + self.recorder.host.arrived_bytes

    @property
    def link_bytes(self) -> int:
        """To the other devices of a group."""
        return self.recorder.totals.link_bytes

    @property
    def pinned_host_bytes(self) -> int:
        """Host memory held for pinned tensors after the run."""
        return self.recorder.pinned.held_bytes

    def unseen(self) -> tuple[str, ...]:
        """In sentences: what this run takes on a real card beyond what is predicted, and what was taken as given."""
        assumed = filter(None, (*self.recorder.assumptions.sentences, caught_refusal()))
        shared = (RESERVED_IS_UNPROVEN,) if COLLECTIVES in self.recorder.operators else ()
        return (*unseen_by(self.recorder.operators, self.card), *shared, *assumed)

    def warnings(self) -> tuple[str, ...]:
        """In sentences: dtypes that were used and that the card has no hardware for."""
        return dtype_warnings((_DTYPES.get(dtype, "") for dtype in self.recorder.dtypes), self.card)

    def unproven(self) -> tuple[Unproven, ...]:
        """Rules that its memory rests on and that no recording proves."""
        return unproven_of(self.recorder)

    def _own_facts(self) -> dict[str, str]:
        return {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "kernels of torch": ".".join(map(str, self.release)),
            "card_bytes": str(self.card.memory_bytes),
            "times": "No clock runs on a predicted device: times count events and phases, one microsecond each.",
            **({} if self.rank is None else {"rank": str(self.rank.number), "world size": str(self.rank.world_size)}),
            "not predicted": " ".join(self.unseen()),
        }

    def finish(self) -> Trace:
        return self._trace(None)

    def _trace(self, kept: KeptTrace | None) -> Trace:
        """Return the trace of the whole run, or of the part that a file saved now shows."""
        self.recorder.know_parameters()
        about = About("predicted", on=self.card.name, facts={**self._own_facts(), **self._facts})
        return trace_of(
            self.recorder.ledger,
            self.recorder.columns,
            self._marks,
            self._interner,
            settings=self.settings.to_snapshot(),
            about=about,
            kept=kept,
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
