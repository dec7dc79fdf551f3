"""Measurements of the configurations that a search chose, on the GPUs of this machine or of Dask workers.

A GPU measures one configuration at a time, since two would share its memory and speed, also if others use the same
cluster. Dask workers predict, too. A prediction does not depend on the machine, so answers are cached here like local
ones; workers with other versions of memviz or a library are refused.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from memviz.dask_client import by_value, one_at_a_time
from memviz.errors import UsageError, first_line
from memviz.runner.fit.predictions import code_state, wait_for
from memviz.runner.fit.search import Trial
from memviz.runner.jobs.worker_process import RunEvent, Worker, environment_of, event_of, gpus_here, message_of
from memviz.runner.plan import plan_of
from memviz.runner.request import Request, Run

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
    wait_for(threads)
    return [done[number] for number in sorted(done)]


def _measured_on(gpu: Gpu, trial: Trial) -> Measurement:
    request = replace(trial.candidate.request, on="cuda", numerics=False)
    try:
        event = gpu.measure(request)
    except Exception as error:  # a lost Dask worker, or any failure on another machine
        return Measurement(trial, gpu.name, gpu.where, None, f"Its worker did not answer: {first_line(error)}")
    if event.run is None:
        return Measurement(trial, gpu.name, gpu.where, None, event.text or "Its worker ended without a result.")
    return Measurement(trial, event.run.device, gpu.where, event.run)


def check_can_be_measured(request: Request) -> None:
    if plan_of(request).parallel.gpus > 1:
        raise UsageError("--measure runs each configuration on one GPU: drop --gpus and --parallel.")


def gpus_of_this_machine() -> list[Gpu]:
    """UsageError with the reason where there is none."""
    status = gpus_here()
    if not status["gpus"]:
        raise UsageError(f"--measure needs a GPU. {status['why']} With --scheduler, Dask workers with a GPU measure.")

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


# -- workers of Dask


def worker_gpus(client: Any, address: str) -> list[Gpu]:
    """Return each GPU once, though several workers may see it; UsageError where there is none, or not our memviz."""
    states = _on_every_worker(client, address, by_value(_on_worker), "state_of_worker", task="measure")
    _refuse_other_code({worker: state["code"] for worker, state in states.items()}, address, builds=False)
    gpus: dict[str, Gpu] = {}
    for worker, state in states.items():
        several = len(state["gpus"]) > 1
        for gpu in state["gpus"]:
            key = gpu["uuid"] or worker
            measure = _measure_on(client, worker, key, gpu["uuid"] if several else "")
            gpus.setdefault(key, Gpu(gpu["name"], measure, worker))
    if not gpus:
        why = next(iter(states.values()))["why"]
        raise UsageError(
            f"--measure needs a GPU, and none of the {len(states)} workers of {address} has one. {why} "
            "Without --measure, they predict."
        )
    return list(gpus.values())


def worker_threads(client: Any, address: str) -> int:
    """Return how many predict at once; UsageError where their predictions would differ from ours."""
    _refuse_other_code(_on_every_worker(client, address, code_state, task="predict"), address, builds=True)
    return max(1, sum(int(threads) for threads in client.nthreads().values()))


def _on_every_worker(client: Any, address: str, function: Any, *arguments: Any, task: str) -> dict[str, Any]:
    try:
        states: dict[str, Any] = client.run(function, *arguments)
    except Exception as error:
        raise UsageError(
            f"The workers of {address} cannot {task} ({first_line(error)}). They need the installation of this "
            "machine: memviz with the libraries to run models, as in `pip install .[run]` in a checkout."
        ) from None
    return states


def _refuse_other_code(codes: Mapping[str, str], address: str, *, builds: bool) -> None:
    own = code_state(builds=builds)
    other = [worker for worker, code in codes.items() if code != own]
    if other:
        libraries = "torch, diffusers or transformers" if builds else "release of torch, diffusers or transformers"
        raise UsageError(
            f"{len(other)} of {len(codes)} workers of {address} have another memviz, or another {libraries} than this "
            f"machine, {other[0]} the first. Install the same there."
        )


def _on_worker(name: str, *arguments: Any) -> Any:
    """Call a function of this module on a worker. It is sent as code, since the scheduler need not have memviz."""
    from memviz.runner.fit import measurement

    return getattr(measurement, name)(*arguments)


def state_of_worker() -> dict[str, Any]:
    """Versions and GPUs of the worker it runs on."""
    return {"code": code_state(builds=False), **gpus_here()}


def _measure_on(client: Any, worker: str, key: str, uuid: str) -> Measure:
    def measure(request: Request) -> Any:
        arguments = ("measure_on_worker", request.as_json(), key, uuid)
        options = {"pure": False, "workers": [worker], "allow_other_workers": False}
        answer = client.submit(by_value(_on_worker), *arguments, **options)
        return event_of(answer.result(), Path())

    return measure


def measure_on_worker(request: dict[str, Any], key: str, uuid: str) -> dict[str, Any]:
    """Measure one run when no other task of the cluster measures on this card."""
    with one_at_a_time(f"memviz measures on {key}"):
        return measured_here(request, uuid)


_OF_THIS_THREAD = threading.local()


class DaskWorker:
    """A worker of Dask in place of a process of this machine."""

    is_alive = True

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, requests: Sequence[Request], *, figures_only: bool) -> Iterator[RunEvent]:
        assert figures_only
        arguments = ("predict_on_worker", [one.as_json() for one in requests])
        messages = self._client.submit(by_value(_on_worker), *arguments, pure=False).result()
        yield from (event_of(message, Path()) for message in messages)

    def close(self) -> None:
        """Keep its process for the next search; it ends with the worker of Dask."""

    kill = close


def predict_on_worker(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outcome of each request, from a process that this thread of the worker keeps."""
    worker = getattr(_OF_THIS_THREAD, "worker", None)
    if worker is None or not worker.is_alive:
        worker = _OF_THIS_THREAD.worker = Worker(Path(tempfile.mkdtemp(prefix="memviz-")))
    wanted = [Request.from_json(request) for request in requests]
    last = {event.number: event for event in worker.run(wanted, figures_only=True)}
    return [message_of(last[number]) for number in range(len(wanted))]


def same_versions(client: Any) -> bool:
    """Return True if every worker has this machine's code and build of PyTorch."""
    return set(client.run(code_state).values()) == {code_state()}
