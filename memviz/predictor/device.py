"""A pretended CUDA device: PyTorch code runs on tensors without data, and its memory is accounted for.

Tensors of the `meta` device represent those on the card, and CPU tensors those on the host. Every allocation on the
card goes, in order, through the model of PyTorch's allocator. Without a memory limit, a replay of the trace decides
whether it fits a card; with one, the program runs out of memory as it would on the card.
"""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

import torch
from torch import nn

from memviz.allocator.blocks import AllocationFailed, DeviceMemory, Platform, address_space
from memviz.allocator.context import NCCL_FACT, communicators_text, libraries_fact, overhead_on
from memviz.allocator.recorded_requests import AllocatorCalls
from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import Settings, parse_settings, settings_from_environment
from memviz.errors import UsageError
from memviz.memory import without_collection
from memviz.predictor.accuracy import unproven_of
from memviz.predictor.assumptions import Assumptions, caught_refusal, forget_refusals
from memviz.predictor.autocast import Autocast, follow_autocast
from memviz.predictor.cards import KnownCard, dtype_warnings
from memviz.predictor.compat import LateDynamo, Patches, follow_release
from memviz.predictor.compiled import Compiler, Compiles
from memviz.predictor.cuda.machine import CUDA_0, META, NamedDevices
from memviz.predictor.cuda.memory import HistoryWindow, MemoryHistory, OutOfMemoryReport, PretendedOutOfMemory
from memviz.predictor.cuda.peers import Peers
from memviz.predictor.decompositions import (
    jagged_attention_on,
    kernels_for,
    reference_counts_of_first_term,
    registered_kernels,
)
from memviz.predictor.group.process_group import follow_group
from memviz.predictor.group.ranks import GroupRank, Layout
from memviz.predictor.hooks import (
    ChildProcesses,
    ProgramPhases,
    follow_backward,
    follow_compile,
    follow_modules,
    follow_optimizers,
    follow_resizing,
    follow_torchscript,
)
from memviz.predictor.ledger import HistoryPart, PhaseMark, trace_of
from memviz.predictor.modes import AllocationMode, follow_cuda
from memviz.predictor.recorder import AllocationRecorder, MoveTo, move_model
from memviz.predictor.repetition import PassRepeater
from memviz.predictor.rules import COLLECTIVES, Unproven, unseen_by
from memviz.predictor.saved_files import follow_files
from memviz.predictor.trained_layers import TrainedBlockRepeater
from memviz.trace.intern import Interner
from memviz.trace.memviz_labels import HOLDERS_CUT_FACT, LOCAL_WORLD_FACT, RANK_FACT, WORLD_FACT
from memviz.trace.model import About, Category, Stage, Trace

if TYPE_CHECKING:
    from memviz.predictor.holders import HolderLog

RESERVED_IS_UNPROVEN = (
    "No prediction of a rank was compared with a recording yet: live memory follows PyTorch's own code, but reserved "
    "memory depends on the order in which streams free memory, and is not validated."
)
_MOST_CARDS = 16
_DTYPES = {torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8", torch.float8_e5m2: "fp8"}
_EVENTS_BETWEEN_COLLECTIONS = 1000
"""Events between collections of cycles, where a program empties the cache; they are slow once libraries are loaded."""


class TakesInputs(Protocol):
    """Part of a workload that a device calls for inputs."""

    def inputs(self, device: torch.device) -> dict[str, Any]: ...


class RunDevice(Protocol):
    """Bytes are those of PyTorch's allocator on this device; peaks count from the last `reset_peak`."""

    @property
    def name(self) -> str: ...

    is_predicted: bool

    @property
    def torch_device(self) -> torch.device:
        """Device on which tensors are created."""

    def place(self, model: nn.Module, on_host: Collection[nn.Parameter] = ()) -> nn.Module:
        """`model.to(device)`, tensor by tensor in torch's own order; tied weights stay tied.

        Weights of `on_host` stay in host memory.
        """

    def inputs(self, workload: TakesInputs) -> dict[str, Any]:
        """Made there, and known as inputs."""

    def phase(self, name: str) -> AbstractContextManager[None]:
        """'forward', 'backward', 'optimizer step', 'warm-up' ...; they nest."""

    def empty_cache(self) -> None: ...

    def reset_peak(self) -> None: ...

    @property
    def allocated_bytes(self) -> int: ...

    @property
    def reserved_bytes(self) -> int: ...

    @property
    def peak_allocated_bytes(self) -> int: ...

    @property
    def peak_reserved_bytes(self) -> int: ...

    def finish(self) -> Trace:
        """Return the trace until now, with stacks, phases, modules and categories."""


class HighestBytes(NamedTuple):
    requested: int = 0
    allocated: int = 0
    reserved: int = 0


class _Counter:
    """A figure of the allocator's statistics, in bytes; where there are several cards, of the first."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, device: PredictedDevice, owner: type[PredictedDevice] | None = None) -> int:
        return int(getattr(device.recorder.ledger.cards[0].allocator.statistics, self._name))


class PredictedDevice:
    """Use it in a `with` block, one at a time in a process."""

    def __init__(
        self,
        card: KnownCard,
        *,
        settings: Settings | None = None,
        release: tuple[int, int] | None = None,
        assume: Mapping[str, Any] | None = None,
        limited: bool = False,
        rank: GroupRank | None = None,
        figures_only: bool = False,
        platform: Platform = "linux",
        as_process: bool = False,
        notes_holders: bool = False,
        goes_beyond_card: bool = False,
        compiles: Compiles = False,
        gpus: int = 1,
    ) -> None:
        """`release` is the torch release whose kernel choices are followed, as (2, 6); by default the installed one.

        `assume` are the user's answers for lines that read values: {"train.py:12": 3.0}.
        `limited`: limit memory to what a process gets on the card.
        `rank` is the predicted process of a group; the others are simulated.
        `figures_only`: leave out the stacks of allocations, which only a viewer of the trace needs.
        `platform`: order the addresses of segments as its driver does.
        `as_process`: a whole program runs. Without `settings` it has those of PYTORCH_CUDA_ALLOC_CONF when it first
        allocates, and it finds `nvidia-smi`.
        `notes_holders`: find what holds each allocation, at each backward, optimizer step, and at the end.
        `goes_beyond_card`: where memory runs out, note it, and go on without a limit.
        `compiles`: compile what the program gives to torch.compile, and predict the compiled code.
        `gpus`: how many such cards the process has.
        """
        if not 1 <= gpus <= _MOST_CARDS:
            raise UsageError(f"The number of cards must be 1 to {_MOST_CARDS}, not {gpus}.")
        if gpus > 1 and (rank is not None or compiles):
            other = "compiled code" if rank is None else "a process group, where each process has one card"
            raise UsageError(f"Several cards per process cannot be combined with {other}.")
        self.card = card
        self.rank = rank
        self.platform = platform
        self._as_process = as_process
        self._from_environment = settings_from_environment(os.environ) if as_process and settings is None else None
        self.layout = Layout()
        """Process groups of the program, as seen from this rank."""
        major, minor = str(torch.__version__).split(".")[:2]
        self.release = (int(major), int(minor)) if release is None else release
        self.settings = settings or self._from_environment or Settings()
        self.torch_device = CUDA_0
        self._interner = Interner(lock=RLock())
        memory = CardMemory(card.memory_bytes, overhead_on(card.name))
        limits = (memory.usable_bytes, memory.total_bytes) if limited else (None, None)
        self.recorder = AllocationRecorder(
            card,
            self.settings,
            self._interner,
            Assumptions(assume),
            [DeviceMemory(limits[0], total=limits[1], addresses=address_space(platform, at)) for at in range(gpus)],
            release=self.release,
            figures_only=figures_only,
        )
        self._marks: list[PhaseMark] = []
        self._notes_holders = notes_holders
        self._holders: HolderLog | None = None
        self.passes = PassRepeater(self.recorder, self._marks)
        self.blocks = TrainedBlockRepeater(self.recorder, self._marks)
        self.compiler = Compiler(self.recorder, nn.Module.__call__, compiles) if compiles else None
        self.children = ChildProcesses(self.recorder)
        self.limited = limited
        self._patches = Patches()
        self._collected_at = -_EVENTS_BETWEEN_COLLECTIONS - 1
        self._highest = [HighestBytes()] * gpus
        """Requested, allocated and reserved peaks of each card, before peaks were reset."""
        self._peaks_from = [0] * gpus
        self._report = OutOfMemoryReport(memory)
        self._history = MemoryHistory(self.recorder.ledger, self._trace)
        ledger = self.recorder.ledger
        self.goes_beyond_card = goes_beyond_card
        if goes_beyond_card:
            ledger.goes_beyond_card = self._lift_limit
        ledger.out_of_memory = self._out_of_memory

    is_predicted = True
    in_use: ClassVar[PredictedDevice | None] = None
    """The one that torch pretends now."""

    @property
    def name(self) -> str:
        return self.card.name

    def __enter__(self) -> Self:
        if PredictedDevice.in_use is not None:
            raise UsageError("A predicted device is already in use; only one is possible at a time.")
        forget_refusals()
        try:
            self._patch(self._patches)
        except BaseException:
            self._patches.close()
            raise
        return self

    def _patch(self, patches: Patches) -> None:
        patches.put(PredictedDevice, "in_use", self)
        # It would run when Python sees fit, which no prediction can follow.
        patches.enter_context(without_collection())
        if self._as_process and self.compiler is None:
            LateDynamo.follow(patches)
        reference_counts_of_first_term()
        recorder, position, assumptions = self.recorder, self.recorder.position, self.recorder.assumptions
        phases = ProgramPhases(self._mark, position)
        follow_modules(patches, recorder, phases, self.blocks, self.compiler)
        follow_optimizers(patches, recorder, phases)
        follow_backward(patches, phases)
        follow_resizing(patches, recorder)
        follow_release(patches, self.release)
        autocast = Autocast(self.release, lambda cast: self.label(cast, Category.AUTOCAST_WEIGHT_COPIES))
        kernels = kernels_for(self.card, self.release, autocast.half_type)
        kernels = {name: autocast.wrap(name, kernel) for name, kernel in kernels.items()}
        patches.enter_context(registered_kernels(kernels))
        follow_autocast(patches, autocast)
        devices = NamedDevices(self.card.name, self.rank, len(recorder.ledger.cards))
        peers = Peers(recorder, devices) if devices.several else None
        operators = partial(AllocationMode, recorder, kernels, autocast, peers)
        order = follow_cuda(
            patches,
            self,
            devices,
            report=self._report,
            history=self._history,
            operators=operators,
            children=self.children if self._as_process else None,
            peers=peers,
        )
        if (at_start := self._from_environment) is not None:
            begin = recorder.ledger.first_used

            def first_used() -> None:
                settings = settings_from_environment(os.environ)
                if settings != at_start:
                    self.change_settings(settings)
                if begin is not None:
                    begin()

            recorder.ledger.first_used = first_used
        self.children.follow(patches)
        follow_compile(patches, recorder, self.compiler)
        if self.compiler is not None:
            self.compiler.follow(patches)
        follow_torchscript(patches, assumptions)
        patches.enter_context(jagged_attention_on(self.card))
        follow_group(patches, recorder, self.rank, self.layout, order)
        follow_files(patches, recorder, devices)
        recorder.host_memory.workers.follow(patches)
        patches.enter_context(operators())
        position.skip_earlier_nodes()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.recorder.close()
        self._patches.close()

    def place(self, model: nn.Module, on_host: Collection[nn.Parameter] = ()) -> nn.Module:
        return move_model(self.recorder, model, MoveTo(META), on_host)

    def inputs(self, workload: TakesInputs) -> dict[str, Any]:
        tensors = workload.inputs(self.torch_device)
        self.label(tensors, Category.INPUT)
        return tensors

    def label(self, value: Any, category: Category) -> None:
        """Set the category of the tensors in a value (however nested), where only the caller knows it."""
        self.recorder.label(value, category)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark a phase; cycles of objects are collected only where an outermost phase ends."""
        phases = self.recorder.position.phases
        phases.append(name)
        self._mark(name, Stage.START)
        try:
            yield
        finally:
            phases.pop()
            self.recorder.label_parameters()
            if not phases:
                before = len(self.recorder.ledger.history)
                gc.collect()
                self.passes.is_on &= len(self.recorder.ledger.history) == before
            self._mark(name, Stage.END)

    def address_of(self, tensor: torch.Tensor) -> int | None:
        """Return the address of a tensor's storage on the card; None if it has none there."""
        if not tensor.is_meta or tensor.layout is not torch.strided:
            return None
        allocation = self.recorder.ledger.allocation_of(tensor.untyped_storage())
        return None if allocation is None else allocation.block.address

    def mark(self, name: str) -> None:
        self._mark(name, Stage.START)
        self._mark(name, Stage.END)
        if self._notes_holders:
            self._note_holders()

    def _mark(self, name: str, stage: Stage) -> None:
        self._marks.append((self._interner.string(name), stage, self.recorder.ledger.mark()))
        if self._notes_holders:
            from memviz.predictor.holders import MOMENTS

            if (name, stage) in MOMENTS:
                self._note_holders()

    def _note_holders(self) -> None:
        if self._holders is None:
            # Imported only if holders are requested, or memory runs out.
            from memviz.predictor.holders import HolderLog

            self._holders = HolderLog(self.recorder.ledger, self._interner, lambda: self.recorder.workspaces.live)
        self._holders.note()

    def empty_cache(self) -> None:
        """Collect cycles, then empty the cache.

        All cycles after a stretch of work, the young ones where calls follow one another, as in offloading.
        """
        events = len(self.recorder.ledger.history)
        full = events - self._collected_at > _EVENTS_BETWEEN_COLLECTIONS
        gc.collect(2 if full else 1)
        if full:
            self._collected_at = events
        self.recorder.ledger.empty_cache()

    def reset_peak(self, card: int = 0) -> None:
        self._highest[card] = self.highest_bytes(card)
        record = self.recorder.ledger.cards[card]
        record.allocator.statistics.reset_peak()
        self._peaks_from[card] = len(record.history)

    def highest_bytes(self, card: int = 0) -> HighestBytes:
        """Peaks of the whole run, whenever peaks were reset."""
        now = self.recorder.ledger.cards[card].allocator.statistics
        peaks = (now.peak_requested, now.peak_allocated, now.peak_reserved)
        return HighestBytes(*map(max, self._highest[card], peaks))

    def allocator_calls(self, card: int = 0) -> AllocatorCalls:
        return AllocatorCalls(tuple(self.recorder.ledger.cards[card].emptied), self._peaks_from[card])

    def set_allocator_settings(self, text: str) -> None:
        """Change allocator settings while the program runs; the existing layout stays as it is."""
        self.change_settings(parse_settings(text))

    def change_settings(self, settings: Settings, card: int | None = None) -> None:
        self.settings = settings
        cards = self.recorder.ledger.cards
        for record in cards if card is None else (cards[card],):
            record.allocator.set_settings(settings)

    def memory_stats(self, card: int = 0) -> dict[str, int]:
        return self.recorder.ledger.cards[card].allocator.statistics.as_dict()

    allocated_bytes = _Counter("allocated")
    reserved_bytes = _Counter("reserved")
    peak_allocated_bytes = _Counter("peak_allocated")
    peak_reserved_bytes = _Counter("peak_reserved")
    peak_requested_bytes = _Counter("peak_requested")
    """Peak of the bytes that tensors requested, before any rounding."""

    @property
    def windows(self) -> tuple[HistoryWindow, ...]:
        """Files that the program dumped its own history to."""
        return tuple(self._history.windows)

    @property
    def out_of_memory(self) -> tuple[PretendedOutOfMemory, ...]:
        """Allocations that failed, whether or not the program continued."""
        return tuple(self._report.failures)

    def _out_of_memory(self, failure: AllocationFailed) -> BaseException:
        if self._as_process:
            self._note_holders()
        return self._report.error_for(failure, self.recorder.ledger)

    def _lift_limit(self, failure: AllocationFailed) -> bool:
        allocator = self.recorder.ledger.allocator
        self._report.note(failure, self.recorder.ledger)
        allocator.device.memory = allocator.limit = None
        return True

    @property
    def flops(self) -> int:
        return self.recorder.totals.flops

    @property
    def bytes_moved(self) -> int:
        return self.recorder.totals.bytes_moved

    @property
    def host_bytes(self) -> int:
        """Bytes copied between the device and the host, both ways."""
        return self.recorder.totals.from_host_bytes + self.recorder.host.arrived_bytes

    @property
    def link_bytes(self) -> int:
        """Bytes sent to other devices of the group."""
        return self.recorder.totals.link_bytes

    @property
    def pinned_host_bytes(self) -> int:
        """Host memory held for pinned tensors after the run."""
        return self.recorder.pinned.retained_bytes

    def unseen(self) -> tuple[str, ...]:
        """Return sentences on memory that is not predicted, and on assumed values."""
        assumed = filter(None, (*self.recorder.assumptions.sentences, caught_refusal()))
        shared = (RESERVED_IS_UNPROVEN,) if COLLECTIVES in self.recorder.operators else ()
        return (*unseen_by(self.recorder.operators, self.card), *shared, *assumed)

    def warnings(self) -> tuple[str, ...]:
        """Return sentences on dtypes that the card has no hardware for."""
        return dtype_warnings((_DTYPES.get(dtype, "") for dtype in self.recorder.dtypes), self.card)

    def unproven(self, card: int = 0) -> tuple[Unproven, ...]:
        """Return the rules that the run rests on and that no recording proves."""
        return unproven_of(self.recorder, card)

    def _facts(self) -> dict[str, str]:
        of_rank = {}
        if (rank := self.rank) is not None:
            # "world size" is the name in files of before; programs may read it.
            world = dict.fromkeys((WORLD_FACT, "world size"), str(rank.world_size))
            of_rank = {RANK_FACT: str(rank.number), **world, LOCAL_WORLD_FACT: str(rank.cards)}
        return {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "kernels of torch": ".".join(map(str, self.release)),
            "card_bytes": str(self.card.memory_bytes),
            "times": "No clock runs on a predicted device: times count events and phases, one microsecond each.",
            **of_rank,
            **({NCCL_FACT: communicators_text(used)} if (used := self.layout.communicators.values()) else {}),
            **libraries_fact(sys.modules),
            **self.recorder.host_memory.workers.peak.facts,
            **({HOLDERS_CUT_FACT: str(self._holders.cut)} if self._holders is not None and self._holders.cut else {}),
            "not predicted": " ".join(self.unseen()),
        }

    def finish(self) -> Trace:
        if self._notes_holders:
            self._note_holders()
        return self._trace(())

    def _trace(self, parts: Sequence[HistoryPart]) -> Trace:
        """Return the trace of the whole run, or of the parts that a file saved now shows."""
        self.recorder.label_parameters()
        about = About("predicted", on=self.card.name, facts=self._facts())
        return trace_of(
            self.recorder.ledger,
            self.recorder.columns,
            self._marks,
            self._interner,
            settings=self.settings.to_snapshot(),
            about=about,
            parts=parts,
            # Moments count the events of the whole run.
            holders=(lambda card: None) if parts or self._holders is None else self._holders.columns,
            host=(lambda times: None) if parts else self.recorder.host_memory.columns,
        )
