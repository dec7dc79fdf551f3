"""`with memviz.recording("run.pickle", model=model, optimizer=optimizer):` around a few steps of any program.

The file is a snapshot as PyTorch writes it, which every viewer opens; what the model and the optimizer add, which
tensor is what, in which module and phase it was made, stands in it under our own key.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memviz.allocator.context import LOADING_FACT, NCCL_FACT, Communicator, communicators_text, libraries_fact
from memviz.errors import MemvizError, UsageError
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.record.log import Log, labelled
from memviz.runner.record.memory_history import HistorySnapshot, RecordedHistory, StackKind
from memviz.trace import memviz_labels
from memviz.trace.intern import Interner
from memviz.trace.limits import Limits
from memviz.trace.memviz_labels import HOLDERS_CUT_FACT
from memviz.trace.model import About, Note, Stage, Trace
from memviz.trace.snapshot import read_snapshot
from memviz.trace.write import replacing

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


def write_snapshot(path: Path, snapshot: dict[str, Any]) -> None:
    """Whole or not at all."""
    with replacing(path) as file:
        # The newest protocol that the reader inside PyTorch's own page knows.
        pickle.dump(snapshot, file, protocol=4)


def with_labels(snapshot: dict[str, Any], trace: Trace) -> dict[str, Any]:
    """The snapshot with the trace's labels and annotations. Nothing that torch wrote is left out or changed."""
    annotations = [
        {"name": trace.strings[name], "stage": Stage(stage).name, "device": device.device, "time_us": time}
        for device in trace.devices
        if device.kind == "gpu"
        for name, stage, time in zip(*(column.tolist() for _, column in device.annotations.columns()), strict=True)
    ]
    has_more = len(annotations) > len(snapshot.get("external_annotations", ()))
    keys: dict[str, Any] = {"external_annotations": annotations} if has_more else {}
    labels = memviz_labels.dump(trace)
    if labels is not None:
        keys[memviz_labels.KEY] = labels
    return {**snapshot, **keys}


def without_stacks(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Keep only the fields that labels and host memory need, which are read several times as fast."""
    needed = ("action", "addr", "size", "device_free", "time_us")
    traces: list[list[dict[str, Any]]] = snapshot.get("device_traces", [])
    shorter = [[{key: event[key] for key in needed if key in event} for event in events] for events in traces]
    return {**snapshot, "device_traces": shorter}


class Recording:
    """One memory history with its log. `trace` is set at its end."""

    def __init__(
        self,
        history: RecordedHistory,
        device: int,
        facts: Mapping[str, str],
        *,
        follow_phases: bool = True,
        holders: bool = False,
    ) -> None:
        from memviz.runner.record.model_hooks import ModelHooks

        self.history = history
        self.device = device
        self.facts = facts
        clock_us = history.accelerator.clock_us
        self.log = Log(history.counts) if clock_us is None else Log(history.counts, clock_us)
        self.hooks = ModelHooks(self.log, history.accelerator.kind, follow_phases=follow_phases, failed=history.failed)
        self.trace: Trace | None = None
        self.log.annotated = self._annotated
        self._notes_holders = holders
        history.when_out_of_memory = lambda _: self.ran_out()

    def label(self, model: nn.Module | None = None, optimizer: Optimizer | None = None) -> None:
        """For a model or an optimizer that is made only within the recording."""
        if model is not None:
            self.hooks.model(model)
        if optimizer is not None:
            self.hooks.optimizer(optimizer)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Names a stretch of the program; 'forward', 'backward' and 'optimizer step' are phases of training."""
        return self.log.during(name)

    def mark(self, name: str) -> None:
        with self.log.during(name):
            self.history.host.sample()
        if self._notes_holders:
            self.note_holders()

    def ran_out(self) -> None:
        """Look at all that the failing allocation found live, before its error lets go of it."""
        self.hooks.see_all()
        self.note_holders()

    def note_holders(self) -> None:
        """Note which variable, container or autograd graph keeps each tensor alive."""
        note_holders(self.log, self.history.accelerator.kind)

    def _annotated(self, name: str, stage: Stage) -> None:
        if self._notes_holders:
            from memviz.predictor.holders import MOMENTS

            if (name, stage) in MOMENTS:
                self.note_holders()

    def take(self, source: str = "") -> tuple[HistorySnapshot, Trace]:
        self.look()
        return self._read(self.history.take_last(), source)

    def look(self) -> None:
        """Log all tensors that are live now."""
        if self.history.counts() is None:
            # Without counts earlier tensors cannot be placed in time, only those that are live now.
            self.log.tensors_seen.clear()
        self.hooks.see_all()
        # When memory ran out holders were noted already, before the error let go of them.
        if self._notes_holders and not self.history.ended_out_of_memory():
            self.note_holders()

    def finish(self, source: str = "") -> tuple[HistorySnapshot, Trace]:
        """Take the last snapshot and switch the history off, after a last look."""
        self.hooks.close()
        taken = self.history.take_last()
        self.history.stop()
        return self._read(taken, source)

    def end(self) -> None:
        try:
            self.hooks.close()
        finally:
            self.history.stop()

    def _read(self, taken: HistorySnapshot, source: str) -> tuple[HistorySnapshot, Trace]:
        return taken, trace_of_snapshot(self.history, taken, self.log, self.device, facts=self.facts, source=source)


class Unrecorded(Recording):
    """A recording that is off: same methods, but it keeps nothing. `trace` stays None."""

    def __init__(self) -> None:
        self.trace = None

    def label(self, model: nn.Module | None = None, optimizer: Optimizer | None = None) -> None: ...

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def mark(self, name: str) -> None: ...

    def take(self, source: str = "") -> tuple[HistorySnapshot, Trace]:
        raise UsageError("No snapshot was taken: this recording is off.")


def note_holders(log: Log, kind: str) -> None:
    """Note what keeps each tensor of an accelerator alive, as far as that is found in two seconds."""
    from memviz.predictor.holders import IN_CPP, MOST_SECONDS, find_holders
    from memviz.runner.record.model_hooks import addresses

    device = _predicted_device()

    def storage_of(tensor: Any) -> int | None:
        try:
            return next(addresses(tensor, kind), None) if device is None else device.address_of(tensor)
        except Exception:
            # A subclass may have no storage, and raise any error.
            return None

    if log.holder_seconds <= 0:
        log.holders_cut += 1
        return
    begun = time.monotonic()
    found = find_holders(None, storage_of, seconds=min(MOST_SECONDS, log.holder_seconds))
    log.hold(found, None if found.is_cut else IN_CPP)
    log.holders_cut += found.is_cut
    log.holder_seconds -= time.monotonic() - begun


marked: list[Any] = []
"""Recordings whose method `mark` is called by `memviz.mark`."""


def _predicted_device() -> Any:
    predictor = sys.modules.get("memviz.predictor.device")
    return None if predictor is None else predictor.PredictedDevice.in_use


def mark(name: str) -> None:
    """Name a moment of the program, such as `memviz.mark("after eval")`.

    It is an annotation of the recording or prediction that is on. What keeps each tensor is noted as well, under
    `python -m memviz record` always, else where that has `holders=True`. Without either it does nothing.
    """
    if (device := _predicted_device()) is not None:
        device.mark(name)
    for recording in marked:
        recording.mark(name)


def _facts_of_process() -> dict[str, str]:
    """Return facts on memory outside the allocator; each process group of NCCL makes a communicator when used."""
    world = getattr(sys.modules.get("torch.distributed.distributed_c10d"), "_world", None)
    groups = getattr(world, "pg_map", {}).items()
    used = [Communicator(group.size()) for group, (backend, *_) in groups if "nccl" in str(backend)]
    nccl = {NCCL_FACT: communicators_text(used)} if used else {}
    loading = {LOADING_FACT: mode} if (mode := os.environ.get(LOADING_FACT)) else {}
    return {**nccl, **loading, **libraries_fact(sys.modules)}


def trace_of_snapshot(
    history: RecordedHistory,
    taken: HistorySnapshot,
    log: Log,
    device: int | None,
    *,
    facts: Mapping[str, str],
    source: str = "",
    counted: int | None = None,
) -> Trace:
    """Return a snapshot as a Trace with the log's labels, of one GPU or, where that is None, of all.

    Moments of the log are those of `device`, or else of `counted`; on other GPUs only the last is known.
    """
    accelerator = history.accelerator
    trace = trace_of(taken.snapshot, About("measured", source=source))
    # A predicted card is alone in its trace, so its index on the machine does not matter.
    gpus = [gpu.device for gpu in trace.devices if gpu.kind == "gpu"]
    if device is not None and accelerator.clock_us is None:
        gpus = [device]
    cut = {HOLDERS_CUT_FACT: str(log.holders_cut)} if log.holders_cut else {}
    about = replace(
        trace.about,
        on=", ".join(dict.fromkeys(accelerator.name_of(number) for number in gpus)),
        facts={**dict(accelerator.versions), **history.facts, **_facts_of_process(), **cut, **facts},
    )
    trace = replace(trace, about=about, notes=(*trace.notes, *notes_of(history, taken)))
    devices = (
        replace(gpu, host=history.host.over(gpu.events)) if gpu.device in gpus and gpu.kind == "gpu" else gpu
        for gpu in trace.devices
    )
    trace = replace(trace, devices=tuple(devices))
    for number in gpus:
        trace = labelled(trace, number, log, taken.counts if device is not None or number == counted else None)
    return trace


@contextmanager
def recording(
    path: str | os.PathLike[str] | None = None,
    *,
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    stacks: StackKind = "python",
    max_entries: int | None = None,
    device: int | None = None,
    overwrite: bool = False,
    accelerator: Accelerator | None = None,
    enabled: bool = True,
    holders: bool = False,
) -> Iterator[Recording]:
    """Records what happens inside, and writes it when that ends, an error included.

    Args:
        path: The file to write; without one there is only the recording's `trace` afterwards.
        model: Whose tensors, modules and phases are to be named.
        optimizer: Whose state and steps are to be named.
        stacks: Frames of Python, of Python and C++ ("all", some times slower), or "none".
        max_entries: How many events to keep; by default what fits a quarter of the free host memory.
        device: The GPU whose tensors are named; by default the current one. Histories cover all GPUs.
        overwrite: Whether a file that is there already may be replaced.
        accelerator: For programs that bring their own.
        enabled: False does nothing and needs nothing, so that a switch of the program's may stand here.
        holders: Note which variable, container or autograd graph keeps each tensor: where each backward begins, after
            each optimizer step, at each `memviz.mark` and at the end, for two seconds at most each time. Where memory
            runs out that is noted in any case.

    Raises:
        UsageError: There is no GPU, a recording is on already, or the file cannot be written.
    """
    if not enabled:
        yield Unrecorded()
        return
    target = None if path is None else free_path(Path(path), overwrite=overwrite)
    accelerator = accelerator or find_accelerator()
    accelerator.wake()
    index = int(accelerator.api.current_device()) if device is None else device
    history = RecordedHistory(accelerator, stacks=stacks, max_entries=max_entries, device=index)
    done = Recording(history, index, facts={}, holders=holders)
    try:
        history.start()
        marked.append(done)
        done.label(model, optimizer)
        try:
            yield done
        except BaseException as error:
            try:
                done.history.failed(error)
                _finish(done, target)
            except Exception as other:
                error.add_note(f"memviz could not save the recording: {other}")
            else:
                if target is not None:
                    error.add_note(f"memviz wrote the recording until now to {target}.")
            raise
        _finish(done, target)
    finally:
        marked[:] = [one for one in marked if one is not done]
        done.end()


def _finish(done: Recording, target: Path | None) -> None:
    done.look()
    taken, done.trace = done.finish(target.name if target else "")
    if target is not None:
        write_snapshot(target, with_labels(taken.snapshot, done.trace))


def free_path(path: Path, *, overwrite: bool) -> Path:
    """Checked before the program runs: afterwards it is too late."""
    if path.exists() and not overwrite:
        raise UsageError(
            f"{path} already exists. Choose another file, or overwrite it (--overwrite, in Python overwrite=True)."
        )
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{path} cannot be written: {folder} is not a writable folder.")
    return path


def trace_of(snapshot: dict[str, Any], about: About) -> Trace:
    """Read torch's own snapshot without limits of size, as it is no untrusted file."""
    no_limit = 2**62
    try:
        return read_snapshot(
            snapshot, about, Interner(), Limits(memory_bytes=no_limit, events=no_limit, items=no_limit)
        )
    except MemvizError as error:
        raise UsageError(f"Nothing was allocated on the GPU while it was recorded ({error})") from None


def notes_of(history: RecordedHistory, taken: HistorySnapshot) -> tuple[Note, ...]:
    lost = history.lost(taken)
    if not lost:
        return ()
    text = f"The history was full: it kept the last {lost:,} events and lost the first."
    remedy = f"Record less, or keep more than {history.max_entries:,} events (max_entries)."
    return (Note("history_full", text, remedy, level="warning"),)
