"""Measurements of the configurations that a search chose, on the GPUs of this machine or of Dask workers.

A GPU measures one configuration at a time, since two would share its memory and speed.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from memviz.errors import UsageError, first_line
from memviz.runner.fit.search import Trial
from memviz.runner.jobs.worker_process import RunEvent, Worker, environment_of, event_of, gpus_here, message_of
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from memviz.runner.run import Run

_NO_GPU = "--measure needs a GPU"

Measure = Callable[[Request], RunEvent]


@dataclass(frozen=True)
class Gpu:
    """A card on which runs are measured, and how."""

    name: str
    measure: Measure
    where: str = ""
    """The address of its worker; empty for this machine."""


@dataclass(frozen=True)
class Measurement:
    way: Trial
    gpu: str
    """The card's name."""
    where: str
    run: Run | None
    why: str = ""
    """Reason for a missing run."""


def trials_to_measure(front: Iterable[Trial], count: int) -> list[Trial]:
    """Those that fit as predicted, the cheapest first."""
    return [trial for trial in front if trial.fits][:count]


def select_gpus(gpus: Sequence[Gpu], card: str) -> list[Gpu]:
    """Those that the plan is for, or all where there is none."""
    return [gpu for gpu in gpus if gpu.name.startswith(card)] or list(gpus)


def measured(
    ways: Sequence[Trial], gpus: Sequence[Gpu], tell: Callable[[int], None] = lambda done: None
) -> list[Measurement]:
    """Measure in the order of `ways`. `tell` gets the number done, from one thread at a time."""
    left, done = list(enumerate(ways)), dict[int, Measurement]()
    lock = threading.Lock()

    def work(gpu: Gpu) -> None:
        while True:
            with lock:
                if not left:
                    return
                number, trial = left.pop(0)
            answer = _measured_on(gpu, trial)
            with lock:
                done[number] = answer
                tell(len(done))

    threads = [threading.Thread(target=work, args=(gpu,), daemon=True) for gpu in gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            # In pieces: a person who presses Ctrl-C is heard by this thread alone.
            thread.join(0.2)
    return [done[number] for number in sorted(done)]


def _measured_on(gpu: Gpu, trial: Trial) -> Measurement:
    request = replace(trial.candidate.request, on="cuda", numerics=False)
    try:
        event = gpu.measure(request)
    except Exception as error:  # a lost Dask worker, or any failure on another machine
        return Measurement(trial, gpu.name, gpu.where, None, f"Its worker did not answer: {first_line(error)}")
    if event.run is None:
        return Measurement(trial, gpu.name, gpu.where, None, event.text or "It ended without an answer.")
    return Measurement(trial, event.run.device, gpu.where, event.run)


def check_can_be_measured(request: Request) -> None:
    if plan_of(request).parallel.gpus > 1:
        raise UsageError("--measure has one GPU for each way: leave --gpus and --parallel out.")


def gpus_of_this_machine() -> list[Gpu]:
    """UsageError with the reason where there is none."""
    status = gpus_here()
    if not status["gpus"]:
        raise UsageError(f"{_NO_GPU}. {status['why']} With --scheduler the workers of Dask measure that have one.")

    def on(uuid: str) -> Measure:
        return lambda request: event_of(measured_here(request.as_json(), uuid), Path())

    several = len(status["gpus"]) > 1
    return [Gpu(gpu["name"], on(gpu["uuid"] if several else "")) for gpu in status["gpus"]]


def measured_here(request: dict[str, Any], uuid: str) -> dict[str, Any]:
    """How the run ended, in a process of its own that sees this card alone; with no uuid, those it would see anyway."""
    wanted = Request.from_json(request)
    environment = {**environment_of(wanted), **({"CUDA_VISIBLE_DEVICES": uuid} if uuid else {})}
    with (
        tempfile.TemporaryDirectory(prefix="memviz-") as folder,
        Worker(Path(folder), environment=environment) as worker,
    ):
        *_, last = worker.run([wanted])
    return message_of(last)


# -- for programs


def measured_json(each: Measurement, label: str) -> dict[str, Any]:
    run = each.run
    return {
        "label": label,
        "mode": "measured",
        "device": each.gpu,
        "worker": each.where,
        "failed": each.why,
        "peak_allocated_bytes": None if run is None else run.peak_allocated_bytes,
        "peak_reserved_bytes": None if run is None else run.peak_reserved_bytes,
        "predicted_peak_reserved_bytes": each.way.prediction.peak_reserved_bytes,
        "seconds": None if run is None or run.seconds is None else asdict(run.seconds),
        "notes": [] if run is None else list(run.notes),
    }
