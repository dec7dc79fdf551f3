"""The process in which runs happen: `python -m memviz.runner.jobs.worker`, driven by `worker_process.py`.

One line of JSON comes in: the requests and the folder for their files. Lines of JSON go out, one for each event.
Output of a model or a user's file goes to standard error, so that it cannot be taken for a message. A search
needs figures alone: no file is written, and runs that differ only in allocator settings are replayed.
"""

from __future__ import annotations

import json
import math
import os
import queue
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memviz.errors import MemvizError, UsageError, without_frames
from memviz.memory import without_collection
from memviz.runner.jobs.limits import MEMORY, most_bytes
from memviz.runner.measure.accelerator import host_is_full, is_out_of_memory
from memviz.runner.request import ALLOCATOR_SETTINGS, Request
from memviz.units import bytes_text, count_text

if TYPE_CHECKING:
    from torch import nn

    from memviz.runner.plan import Plan
    from memviz.runner.request import Run
    from memviz.runner.step import Outcome
    from memviz.runner.workloads.workload import FromConfiguration


class SearchPredictions:
    def __init__(self, send: Callable[..., None]) -> None:
        self._send = send
        self._done: tuple[Request, Outcome] | None = None
        self.requests = ""
        """Hash of the memory requests of the last prediction; empty where they were replayed."""

    def run(self, number: int, request: Request) -> None:
        run = self.run_of(request, lambda phase: self._send("phase", number, phase=phase))
        self._send("done", number, run=run.as_json(), requests=self.requests)

    def run_of(self, request: Request, tell: Callable[[str], None]) -> Run:
        with without_collection():
            from memviz.predictor.estimate import requests_of
            from memviz.runner.execute import predict_again, predict_plan
            from memviz.runner.plan import plan_of

        plan = plan_of(request)
        # Of many GPUs, another rank may reserve most under other settings.
        is_alone = plan.parallel.gpus == 1
        if is_alone and self._done is not None and without_settings(request) == without_settings(self._done[0]):
            self.requests = ""
            return predict_again(plan, self._done[1])
        self._done = None
        refuse_if_too_large(plan, most_bytes())
        outcome = predict_plan(plan, tell, figures_only=True)
        self._done = (request, outcome)
        self.requests = requests_of(outcome.trace)
        return outcome.run


def without_settings(request: Request) -> Request:
    """The same for all that differ in allocator settings alone."""
    others = tuple((name, knobs) for name, knobs in request.optimizations if name != ALLOCATOR_SETTINGS)
    return replace(request, label="", optimizations=others)


# -- the size of a run, estimated before anything of that size is built
#
# A prediction holds no weights, so what it costs this machine is objects: modules and a tensor without data for each
# parameter when the model is built, and what is noted of each module's calls when its steps are taken. Blocks of one
# kind are equal, so models of one and of two determine the size of a million.

_BYTES_PER_OBJECT = 1_600
_BYTES_PER_CALL = 600
"""Measured on stacks of 2,000 to 8,000 feed-forward layers, and rounded down."""
_PYTORCH_BYTES = 350 << 20
"""Host memory of the process before it builds a model."""
_FEW_BLOCKS = 256
_FEW_PASSES = 1_000
"""Up to these counts a model is built within a second, so its size is not estimated first."""
_DEPTH_WORDS = {
    "double_layers": "double layers",
    "single_layers": "single layers",
    "depth": "layers at the smallest size",
}


class RunTooLarge(UsageError):
    """The run would take more of this machine than a run may."""


@dataclass(frozen=True)
class Size:
    parameters: int
    objects: int
    calls: int

    @property
    def bytes(self) -> int:
        return _PYTORCH_BYTES + self.objects * _BYTES_PER_OBJECT + self.calls * _BYTES_PER_CALL


def refuse_if_too_large(plan: Plan, limit: int) -> None:
    """Raise RunTooLarge if the estimate exceeds the limit. For a user's file only the limit of the run applies."""
    from memviz.runner.workloads.workload import FromConfiguration

    workload = plan.workload
    if not isinstance(workload, FromConfiguration):
        return
    depths, passes = _depths(workload), _passes(plan)
    if all(depth <= _FEW_BLOCKS for depth in depths.values()) and passes <= _FEW_PASSES:
        return
    size = size_of(plan, workload)
    if size.bytes > limit:
        parts = [f"{count_text(depth)} {_DEPTH_WORDS.get(name, name)}" for name, depth in depths.items()]
        parts += [f"{count_text(size.parameters)} parameters"]
        parts += [f"{count_text(passes)} passes"] if passes > 1 else []
        raise RunTooLarge(
            f"{workload.name}: {', '.join(parts)} would take about {bytes_text(size.bytes)} of host memory; "
            f"the limit of a run is {bytes_text(limit)}. Reduce the run, or raise {MEMORY}."
        )


def refuse_if_reduced_model_is_too_large(plan: Plan, limit: int) -> None:
    """The reduced model has real numbers, twice: as it is, and as it is optimized."""
    import torch

    from memviz.runner.workloads.workload import FromConfiguration

    if not isinstance(plan.workload, FromConfiguration):
        return
    with torch.device("meta"):
        model: nn.Module = plan.workload.small().build()
    needed = _PYTORCH_BYTES + 2 * sum(weight.numel() * weight.element_size() for weight in model.parameters())
    if needed > limit:
        raise RunTooLarge(
            f"Its reduced model would take about {bytes_text(needed)} of host memory; the limit of a run is "
            f"{bytes_text(limit)}. Choose a width that is a multiple of a power of two, which can be divided."
        )


def size_of(plan: Plan, workload: FromConfiguration) -> Size:
    """Estimate a run: exact in parameters and objects, about right in bytes."""
    import torch

    from memviz.runner.request import least_value_of_knob

    def count(depths: dict[str, int]) -> tuple[int, int, int]:
        with torch.device("meta"):
            model = replace(workload, **depths).build()  # type: ignore[arg-type]
        weights = list(model.parameters())
        return sum(weight.numel() for weight in weights), len(weights), sum(1 for _ in model.modules())

    depths = _depths(workload)
    lowest = {name: least_value_of_knob(workload, name) for name in depths}
    first = count(lowest)
    total = list(first)
    for name, depth in depths.items():
        beyond = depth - lowest[name]
        if beyond > 0:
            more = count({**lowest, name: lowest[name] + 1})
            total = [constant + beyond * (two - one) for constant, one, two in zip(total, first, more, strict=True)]
    parameters, tensors, modules = total
    return Size(parameters, tensors + modules, modules * _passes(plan))


def _depths(workload: FromConfiguration) -> dict[str, int]:
    """Return the depths that are set, by knob. Published depths are small."""
    values: dict[str, Any] = {name: getattr(workload, name) for name in workload.depths}
    return {name: value for name, value in values.items() if value is not None}


def _passes(plan: Plan) -> int:
    return (plan.request.warmup + plan.request.steps) * plan.passes


# -- answering

_LAST_FRAMES = 3

Send = Callable[..., None]
"""`send(kind, number, **rest)`"""


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    # Linux ends this process, not the page, when the machine runs out of memory.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")

    def send(kind: str, number: int, **rest: Any) -> None:
        out.write(json.dumps({"kind": kind, "number": number, **rest}) + "\n")
        out.flush()

    predictions = SearchPredictions(send)
    orders: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        """Queue each order. End the process when stdin closes, since no client is left to read the answer."""
        for line in sys.stdin:
            orders.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        message = json.loads(orders.get())
        folder = Path(message["folder"])
        if not message["requests"]:
            warm_up()
        requests = [Request.from_json(request) for request in message["requests"]]
        for number, request in zip(message["numbers"], requests, strict=True):
            if message["figures_only"]:
                _report_failure(number, send, folder, partial(predictions.run, number, request))
            else:
                answer(number, request, folder, send, until=time.monotonic() + message["seconds"])
        send("idle", -1)


def warm_up() -> None:
    """Import what every run needs, and what takes longest of what most models need."""
    with without_collection():
        import memviz.runner.execute
        import memviz.runner.output_check.comparison  # noqa: F401

        with suppress(ImportError):
            from diffusers import LTXVideoTransformer3DModel  # noqa: F401


def answer(number: int, request: Request, folder: Path, send: Send, *, until: float = math.inf) -> None:
    """Answer one request, from `starting` to `done` or `failed`; at `until` the client gives up."""
    # Torch takes seconds to import, so the first word of progress goes out before.
    send("phase", number, phase="starting")
    _report_failure(number, send, folder, partial(_run, number, request, folder, send, until))


def _report_failure(number: int, send: Send, folder: Path, run: Callable[[], None]) -> None:
    """Run, and send what it fails with; of a run that had begun also its trace, which shows what was live."""
    from memviz.runner.step import Interrupted
    from memviz.trace.write import replacing, write_pickle

    try:
        run()
    except Interrupted as ended:
        file, cause = "", ended.__cause__
        assert cause is not None
        if ended.trace is not None:
            with suppress(MemvizError), replacing(folder / f"run-{number}-until-it-failed.pickle") as out:
                write_pickle(ended.trace, out)
                file = f"run-{number}-until-it-failed.pickle"
        failure = _failure_of(cause, getattr(ended, "__notes__", ()))
        if ended.live_bytes and failure["what"] in ("out of memory", "exception"):
            failure["text"] += f" {bytes_text(ended.live_bytes)} were live at that time."
        send("failed", number, **failure, file=file)
    except MemvizError as error:
        send("failed", number, what="refused", text=str(error))
    except MemoryError:
        send("failed", number, what="host memory", text="This machine has no host memory left for the prediction.")
    except Exception as error:
        send("failed", number, **_failure_of(error, getattr(error, "__notes__", ())))


def _failure_of(error: BaseException, notes: Sequence[str]) -> dict[str, str]:
    """Return the kind of a failure, its text, and the last lines of Python that ran, for the model's author."""
    full, is_of_memory = host_is_full(error), is_out_of_memory(error)
    is_refused = isinstance(error, ValueError) and not is_of_memory
    what = "host memory" if full else "out of memory" if is_of_memory else "refused" if is_refused else "exception"
    message = without_frames(str(error)) if is_refused else _failure_words(error)
    frames = traceback.extract_tb(error.__traceback__)[-_LAST_FRAMES:]
    where = " > ".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames)
    return {"what": what, "text": full or " ".join([message, *notes]), "where": where}


def _run(number: int, request: Request, folder: Path, send: Send, until: float) -> None:
    with without_collection():
        from memviz.runner.execute import execute
        from memviz.runner.output_check.comparison import check_outputs
        from memviz.runner.plan import plan_of
        from memviz.runner.request import file_of_rank
        from memviz.runner.step import torch_warnings

    def tell(phase: str) -> None:
        send("phase", number, phase=phase)

    def show(done: Outcome) -> None:
        """Send the figures so far, which remain if this process ends now."""
        send("figures", number, run=done.run.as_json(), **_write_run(done.trace, done.run, path))

    plan = plan_of(request)
    refuse_if_too_large(plan, most_bytes())
    path = folder / f"run-{number}.pickle"
    done = execute(plan, tell, until=until, recorded=show)
    if done.run.mode == "predicted":
        # Its figures can be read while the trace is written.
        send("figures", number, run=done.run.as_json())
    written = _write_run(done.trace, done.run, path)
    for rank, other in done.others.items():
        _write_run(other.trace, other.run, file_of_rank(path, rank, done.run.rank))
    if not request.numerics or not plan.optimizations:
        send("done", number, run=done.run.as_json(), **written)
        return
    # The figures are there; the outputs come after, and a failure there loses nothing.
    send("figures", number, run=done.run.as_json(), **written)
    with torch_warnings() as warned:
        try:
            refuse_if_reduced_model_is_too_large(plan, most_bytes())
            numerics = check_outputs(plan, tell, done.run.mode, pinned=done.run.pinned_host_bytes)
        except MemvizError as error:
            numerics = {"error": str(error)}
        except Exception as error:
            numerics = {"error": f"{_failure_words(error)} {warned.about(error)}".rstrip()}
    run = replace(done.run, numerics=numerics)
    send("done", number, run=run.as_json(), **_write_run(done.trace, run, path))


def _write_run(trace: Any, run: Any, path: Path) -> dict[str, str]:
    """Its file, or why there is none: a full disk costs the trace and not the figures."""
    from memviz.runner.request import save_run

    try:
        save_run(trace, run, path)
    except MemvizError as error:
        return {"file": path.name if path.exists() else "", "text": f"Its trace was not saved: {error}"}
    return {"file": path.name}


def _failure_words(error: BaseException) -> str:
    return without_frames(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
