"""Measured runs on a ZeroGPU Space, where a GPU is lent for the length of one function.

No process of ours ever sees that GPU: the function itself runs in a process that the Space makes, and uses again for
others. So each run is one call, recording and timing and all, whose answer is plain values and the name of a file.
The history is of the process, and is switched off and cleared before the function returns (`MemoryHistory.stop`).
What must be set before CUDA starts cannot be set in a process that was used before.

The Space uses a process again where the function returned, and ends it where it raised. After an error that a card
does not recover from the function has to raise, and then its answer does not arrive; nor does it where the time is up
and the process is ended. So every message is also written to a file, line by line, next to the traces.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from memviz.errors import UsageError
from memviz.runner.jobs.worker_process import RunEvent, environment_of, event_of
from memviz.runner.request import Request

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SECONDS = 120
_ON_ZERO_GPU = "SPACES_ZERO_GPU"
LENT_DEVICE = "a GPU of this Space"
_TO_SPARE_SECONDS = 5.0
"""Reserve for returning the answer."""
_WAITS = "waiting for a GPU and measuring"
_NO_SETTINGS = (
    "This Space lends its GPU to a process that has already started CUDA, too late for allocator settings. Predict "
    "this variant, or measure it on your own machine."
)

FEWEST_SECONDS = 30
MOST_SECONDS = 120
_START_SECONDS = 20.0
"""Imports, the driver, the first kernels."""
_TIMED_SECONDS = 5.0
_OUTPUTS_SECONDS = 25.0
"""The reduced model, with and without the optimizations."""
_BYTES_A_SECOND = 1 << 30
"""Weights are drawn twice and copied to the GPU and back: slowly, where half a machine is lent."""
_FLOPS_A_SECOND = 10e12
_TIMED_STEPS = 4


def is_zero_gpu(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get(_ON_ZERO_GPU, "").lower() in ("1", "true", "t")


def on_gpu(
    function: F, *, seconds: int | Callable[..., int] = DEFAULT_SECONDS, environment: Mapping[str, str] = os.environ
) -> F:
    """`seconds` may be a function of the same arguments. Arguments and result are pickled: never return a tensor of
    the GPU. The package is part of such a Space and of nothing else, so it is looked for only there.

    This happens while the page starts. If that package fails, the page starts all the same, and reports it to
    users who request the GPU."""
    if not is_zero_gpu(environment):
        return function
    try:
        spaces = importlib.import_module("spaces")
        wrapped: F = spaces.GPU(duration=seconds)(function)
    except (Exception, SystemExit) as error:
        why = f"{type(error).__name__}: {error}"

        def refuse(*_: Any) -> Any:
            raise UsageError(f"This Space cannot lend a GPU, because its package `spaces` could not be used ({why}).")

        return cast(F, refuse)
    return wrapped


def reserved_seconds(_number: int, request: dict[str, Any], _folder: str) -> int:
    """For how many seconds the GPU is lent, since a visitor's quota pays for what is reserved.

    A guess from above, made without the GPU: what does not end in that time is ended by the Space, so seconds are only
    measured while enough is left. Takes what the lent function takes, and of an unknown run the most.
    """
    try:
        return _estimated_seconds(request)
    except Exception:
        return MOST_SECONDS


def _estimated_seconds(request: dict[str, Any]) -> int:
    import torch

    from memviz.runner.plan import plan_of
    from memviz.runner.workloads.workload import FromConfiguration

    plan = plan_of(Request.from_json(request))
    workload = plan.workload
    if not isinstance(workload, FromConfiguration):
        return MOST_SECONDS
    with torch.device("meta"):
        weights = list(workload.build().parameters())
        passes = workload.micro_batches * (3 if workload.training else 1)
        inputs = workload.inputs(torch.device("meta"))
    # Tokens, or other rows that each weight is used once for; channels come last where there are any.
    tensors = [tensor for tensor in inputs.values() if isinstance(tensor, torch.Tensor)]
    widths = [tensor.shape[-1] if tensor.is_floating_point() and tensor.dim() > 1 else 1 for tensor in tensors]
    rows = max((tensor.numel() // width for tensor, width in zip(tensors, widths, strict=True)), default=1)
    step = 2 * sum(weight.numel() for weight in weights) * rows * passes
    steps = 2 * plan.request.warmup + plan.request.steps + _TIMED_STEPS
    seconds = _START_SECONDS + _TIMED_SECONDS
    seconds += 4 * sum(weight.numel() * weight.element_size() for weight in weights) / _BYTES_A_SECOND
    seconds += steps * step / _FLOPS_A_SECOND
    seconds += _OUTPUTS_SECONDS if plan.optimizations and plan.request.numerics else 0
    return max(FEWEST_SECONDS, min(MOST_SECONDS, math.ceil(seconds)))


class Spoiled(Exception):
    """Raised so that the process serves no other visitor."""


def _measured(number: int, request: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    """Return all messages that a process of its own would have sent."""
    from memviz.runner.jobs.worker import answer

    messages: list[dict[str, Any]] = []
    until = time.monotonic() + reserved_seconds(number, request, folder) - _TO_SPARE_SECONDS
    with _message_file(Path(folder), number).open("w", encoding="utf-8") as lines:

        def send(kind: str, number: int, **rest: Any) -> None:
            messages.append({"kind": kind, "number": number, **rest})
            lines.write(json.dumps(messages[-1]) + "\n")
            lines.flush()

        answer(number, Request.from_json(request), Path(folder), send, until=until)
    _see_that_the_next_can_use_it()
    return messages


def _see_that_the_next_can_use_it() -> None:
    """An error of a kernel stays with the process, and every later call to the card ends in it."""
    from memviz.runner.measure.accelerator import find_accelerator

    try:
        accelerator = find_accelerator()
    except UsageError:
        return
    try:
        accelerator.try_it()
    except Exception as error:
        raise Spoiled(str(error)) from error
    if accelerator.history_is_on is not None and accelerator.history_is_on():
        raise Spoiled("The memory history could not be turned off.")


def _message_file(folder: Path, number: int) -> Path:
    return folder / f"run-{number}.said"


measured = on_gpu(_measured, seconds=reserved_seconds)
"""A Space looks for such functions before the page is up, so this is made on import."""


class ZeroGpuWorker:
    """A `Worker` for one order on a lent GPU."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._cancelled = threading.Event()

    def run(self, requests: Sequence[Request], first: int = 0, *, figures_only: bool = False) -> Iterator[RunEvent]:
        for number, request in enumerate(requests, first):
            if self._cancelled.is_set():
                yield RunEvent("failed", number, what="cancelled", text="Cancelled.")
            elif environment_of(request):
                yield RunEvent("failed", number, what="refused", text=_NO_SETTINGS)
            else:
                yield RunEvent("phase", number, phase=_WAITS)
                yield self._last_event(number, request)

    def _last_event(self, number: int, request: Request) -> RunEvent:
        request_json = request.as_json()
        try:
            messages = measured(number, request_json, str(self.folder))
        except UsageError as error:
            return RunEvent("failed", number, what="refused", text=str(error))
        except Exception as error:
            messages = self._messages(number)
            if not messages:
                # The Space's own words: no GPU is free, or the time that it lends is used up.
                return RunEvent("failed", number, what="refused", text=f"No GPU was available: {error}")
            if messages[-1]["kind"] not in ("done", "failed"):
                return self._ended_early(number, request_json, messages, error)
        finally:
            _message_file(self.folder, number).unlink(missing_ok=True)
        return event_of(messages[-1], self.folder)

    def _messages(self, number: int) -> list[dict[str, Any]]:
        """Read the messages until the process ended, perhaps in the middle of a line."""
        messages = []
        with suppress(OSError, ValueError):
            for line in _message_file(self.folder, number).read_text(encoding="utf-8").splitlines():
                messages.append(json.loads(line))
        return messages

    def _ended_early(
        self, number: int, request_json: dict[str, Any], messages: list[dict[str, Any]], error: Exception
    ) -> RunEvent:
        """Return the event of a run that the Space ended, with the figures measured until then."""
        phase = next((message["phase"] for message in reversed(messages) if message["kind"] == "phase"), "starting")
        lent = reserved_seconds(number, request_json, str(self.folder))
        reason = (
            f"The Space ended the run ({error}) while {phase}. It lends its GPU for {lent} seconds to a run of this "
            "size, and ends longer ones; a crash ends the same way. Try a smaller run."
        )
        figures = next((message for message in reversed(messages) if message["kind"] == "figures"), None)
        if figures is None:
            return RunEvent("failed", number, what="timeout", text=reason)
        event = event_of({**figures, "kind": "done"}, self.folder)
        return replace(event, text=" ".join(filter(None, (event.text, reason))))

    def cancel(self) -> None:
        """Skip the runs that have not begun. A run on a lent GPU cannot be stopped."""
        self._cancelled.set()

    kill = close = cancel
