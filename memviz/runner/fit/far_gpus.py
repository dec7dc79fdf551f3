"""GPUs of Dask's workers, each of which measures one run at a time, whoever else asks the same cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memviz.dask_client import by_value, one_at_a_time
from memviz.errors import UsageError, first_line
from memviz.runner.fit.measured_ways import Gpu, Measure, measured_here
from memviz.runner.fit.predictions import code_state
from memviz.runner.jobs.worker_process import event_of, gpus_here
from memviz.runner.request import Request


def gpus_of_workers(client: Any, address: str) -> list[Gpu]:
    """Each once, though several workers may see it; UsageError where there is none, or not our memviz."""
    try:
        states = client.run(by_value(_state_there))
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
    found = _each_once(client, states)
    if not found:
        why = next(iter(states.values()))["why"]
        raise UsageError(
            f"--measure needs a GPU, and none of the {len(states)} workers of {address} has one. {why} "
            "Without --measure they predict."
        )
    return found


def _state_there() -> dict[str, Any]:
    """It travels as code, since the scheduler in between need not have memviz."""
    from memviz.runner.fit.far_gpus import state_there

    return state_there()


def state_there() -> dict[str, Any]:
    """What a worker says of itself."""
    return {"code": code_state(builds=False), **gpus_here()}


def _each_once(client: Any, states: Mapping[str, Any]) -> list[Gpu]:
    known: dict[str, Gpu] = {}
    for worker, state in states.items():
        several = len(state["gpus"]) > 1
        for gpu in state["gpus"]:
            key = gpu["uuid"] or worker
            measure = _asking(client, worker, key, gpu["uuid"] if several else "")
            known.setdefault(key, Gpu(gpu["name"], measure, worker))
    return list(known.values())


def _asking(client: Any, worker: str, key: str, uuid: str) -> Measure:
    def measure(request: Request) -> Any:
        there = by_value(_measured_there)
        asked = client.submit(
            there, request.as_json(), key, uuid, pure=False, workers=[worker], allow_other_workers=False
        )
        return event_of(asked.result(), Path())

    return measure


def _measured_there(request: dict[str, Any], key: str, uuid: str) -> dict[str, Any]:
    from memviz.runner.fit.far_gpus import measured_there

    return measured_there(request, key, uuid)


def measured_there(request: dict[str, Any], key: str, uuid: str) -> dict[str, Any]:
    """What a worker does, when nobody else of the cluster measures on this card."""
    with one_at_a_time(f"memviz measures on {key}"):
        return measured_here(request, uuid)
