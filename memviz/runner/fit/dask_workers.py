"""Dask workers that predict, or that measure on their GPUs, for a search.

A prediction does not depend on the machine, so answers are cached here like local ones; workers with other versions of
memviz or a library are refused. A GPU measures one run at a time, whoever else uses the same cluster.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from memviz.dask_client import by_value, one_at_a_time
from memviz.errors import UsageError, first_line
from memviz.runner.fit.measurement import Gpu, Measure, measured_here
from memviz.runner.fit.predictions import code_state
from memviz.runner.jobs.worker_process import RunEvent, Worker, event_of, gpus_here, message_of
from memviz.runner.request import Request


def worker_gpus(client: Any, address: str) -> list[Gpu]:
    """Each once, though several workers may see it; UsageError where there is none, or not our memviz."""
    try:
        states = client.run(by_value(_remote_state))
    except Exception as error:
        raise UsageError(
            f"The workers of {address} cannot measure ({first_line(error)}). They need what this machine has: "
            "memviz with what runs models, as in `pip install .[run]` in a checkout."
        ) from None
    ours = code_state(builds=False)
    other = [worker for worker, state in states.items() if state["code"] != ours]
    if other:
        raise UsageError(
            f"{len(other)} of {len(states)} workers of {address} have another memviz, or another release of torch, "
            f"diffusers or transformers than this machine, {other[0]} the first. Install the same there."
        )
    found = _unique_gpus(client, states)
    if not found:
        why = next(iter(states.values()))["why"]
        raise UsageError(
            f"--measure needs a GPU, and none of the {len(states)} workers of {address} has one. {why} "
            "Without --measure they predict."
        )
    return found


def _remote_state() -> dict[str, Any]:
    """Report the state of the worker it runs on. It is sent as code, since the scheduler need not have memviz."""
    from memviz.runner.fit.dask_workers import state_of_worker

    return state_of_worker()


def state_of_worker() -> dict[str, Any]:
    """Versions and GPUs of the worker it runs on."""
    return {"code": code_state(builds=False), **gpus_here()}


def _unique_gpus(client: Any, states: Mapping[str, Any]) -> list[Gpu]:
    known: dict[str, Gpu] = {}
    for worker, state in states.items():
        several = len(state["gpus"]) > 1
        for gpu in state["gpus"]:
            key = gpu["uuid"] or worker
            measure = _measure_on(client, worker, key, gpu["uuid"] if several else "")
            known.setdefault(key, Gpu(gpu["name"], measure, worker))
    return list(known.values())


def _measure_on(client: Any, worker: str, key: str, uuid: str) -> Measure:
    def measure(request: Request) -> Any:
        there = by_value(_remote_measure)
        asked = client.submit(
            there, request.as_json(), key, uuid, pure=False, workers=[worker], allow_other_workers=False
        )
        return event_of(asked.result(), Path())

    return measure


def _remote_measure(request: dict[str, Any], key: str, uuid: str) -> dict[str, Any]:
    from memviz.runner.fit.dask_workers import measure_on_worker

    return measure_on_worker(request, key, uuid)


def measure_on_worker(request: dict[str, Any], key: str, uuid: str) -> dict[str, Any]:
    """Measure one run when no other task of the cluster measures on this card."""
    with one_at_a_time(f"memviz measures on {key}"):
        return measured_here(request, uuid)


_OF_THIS_THREAD = threading.local()


class DaskWorker:
    """In the place of a process of this machine."""

    is_alive = True

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, requests: Sequence[Request], *, figures_only: bool) -> Iterator[RunEvent]:
        assert figures_only
        messages = self._client.submit(
            by_value(_remote_predict), [one.as_json() for one in requests], pure=False
        ).result()
        yield from (event_of(message, Path()) for message in messages)

    def close(self) -> None:
        """Its processes are kept for the next question, and end with the workers of Dask."""

    kill = close


def _remote_predict(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predict on the worker it runs on. It is sent as code, since the scheduler need not have memviz."""
    from memviz.runner.fit.dask_workers import predict_on_worker

    return predict_on_worker(requests)


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


def worker_threads(client: Any, address: str) -> int:
    """How many predict at once; UsageError where theirs would not be ours."""
    try:
        states = client.run(code_state)
    except Exception as error:
        raise UsageError(
            f"The workers of {address} cannot predict ({first_line(error)}). They need what this machine has: "
            "memviz with what runs models, as in `pip install .[run]` in a checkout."
        ) from None
    ours = code_state()
    other = [worker for worker, state in states.items() if state != ours]
    if other:
        raise UsageError(
            f"{len(other)} of {len(states)} workers of {address} have another memviz, torch, diffusers or "
            f"transformers than this machine, {other[0]} the first. Install the same there."
        )
    return max(1, sum(int(threads) for threads in client.nthreads().values()))
