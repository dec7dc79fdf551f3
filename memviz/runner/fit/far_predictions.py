"""Predictions on many machines: workers of Dask that have memviz and PyTorch too.

Each of their threads keeps a process of its own that predicts, as this machine does. What such a process makes of a
request does not depend on the machine, so an answer is kept here like one of our own; workers with another version of
memviz or of a library are refused, since theirs would not be the same.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from memviz.dask_client import by_value
from memviz.errors import UsageError, first_line
from memviz.runner.fit.predictions import code_state
from memviz.runner.jobs.worker_process import RunEvent, Worker, event_of, message_of
from memviz.runner.request import Request

_OF_THIS_THREAD = threading.local()


class FarWorker:
    """In the place of a process of this machine."""

    is_alive = True

    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, requests: Sequence[Request], *, figures_only: bool) -> Iterator[RunEvent]:
        assert figures_only
        messages = self._client.submit(by_value(_asked_there), [one.as_json() for one in requests], pure=False).result()
        yield from (event_of(message, Path()) for message in messages)

    def close(self) -> None:
        """Its processes are kept for the next question, and end with the workers of Dask."""

    kill = close


def _asked_there(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """It travels as code, since the scheduler in between need not have memviz."""
    from memviz.runner.fit.far_predictions import predicted_there

    return predicted_there(requests)


def predicted_there(requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a worker does: how each of the requests ended."""
    worker = getattr(_OF_THIS_THREAD, "worker", None)
    if worker is None or not worker.is_alive:
        worker = _OF_THIS_THREAD.worker = Worker(Path(tempfile.mkdtemp(prefix="memviz-")))
    wanted = [Request.from_json(request) for request in requests]
    last = {event.number: event for event in worker.run(wanted, figures_only=True)}
    return [message_of(last[number]) for number in range(len(wanted))]


def predict_alike(client: Any) -> bool:
    """Whether each of the workers would answer as this machine does, to the build of its PyTorch."""
    return set(client.run(code_state).values()) == {code_state()}


def threads_of(client: Any, address: str) -> int:
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
