"""What recording costs: seconds of a step with the history off, with Python's stacks, with all, and as memviz records.

The ways take turns, several rounds of them, because a GPU's clock drifts; every figure is a ratio within its round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from torch import nn

from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.measure.cuda_device import CudaDevice, EventStopwatch
from memviz.runner.measure.measured_run import drawn_on
from memviz.runner.plan import Plan, plan_of
from memviz.runner.record.memory_history import RecordedHistory
from memviz.runner.request import Request
from memviz.runner.step import RunStep, make_optimizer
from tests.gpu.case import Case
from tests.gpu.runs import run_named

_MODELS = {"ltx": True, "gpt2": False, "feed-forward": True, "block-plain": False, "llama": False}
"""And whether each belongs to the short round."""
_ROUNDS, _STEPS = 7, 4

CASES = tuple(
    Case("cost", each.name, {"request": each.request}, 20, each.gib, libraries=each.libraries, small=small)
    for each, small in ((run_named(name), small) for name, small in _MODELS.items())
)


def run(case: Case, _out: Path) -> dict[str, Any]:
    plan = plan_of(Request.from_json({**case.arguments["request"], "on": "cuda"}))
    accelerator = find_accelerator()
    model = drawn_on(accelerator, plan.workload.build)
    seconds = compared(plan, model, accelerator, EventStopwatch)
    return {"label": plan.label, "describes": plan.workload.describe(), **as_ratios(seconds)}


Rounds = list[dict[str, float]]


def compared(plan: Plan, model: nn.Module, accelerator: Accelerator, stopwatch: Callable[[Any], Any]) -> Rounds:
    """Median seconds of a step, each way, round by round."""
    found: Rounds = []
    for _ in range(_ROUNDS + 1):
        found.append({})
        for name, way in _WAYS.items():
            with way(accelerator) as device:
                step = _step(plan, model, device)
                step()
                watch = stopwatch(accelerator.api)
                watch.lap()
                for _ in range(_STEPS):
                    step()
                    watch.lap()
                found[-1][name] = median(watch.laps())
    # The first round loads kernels, and cuBLAS looks for its algorithms.
    return found[1:]


def as_ratios(rounds: Rounds) -> dict[str, Any]:
    ways = [name for name in rounds[0] if name != "off"]
    return {
        "rounds": len(rounds),
        "seconds": {name: median(each[name] for each in rounds) for name in rounds[0]},
        "ratio": {name: median(each[name] / each["off"] for each in rounds) for name in ways},
        "ratios": {name: [each[name] / each["off"] for each in rounds] for name in ways},
    }


def _step(plan: Plan, model: nn.Module, device: CudaDevice) -> RunStep:
    placed = device.place(model)
    for parameter in placed.parameters():
        parameter.grad = None
    return RunStep(plan.workload, device, placed, device.inputs(plan.workload), make_optimizer("none", placed))


def _off(accelerator: Accelerator) -> AbstractContextManager[CudaDevice]:
    return CudaDevice(accelerator=accelerator, record=False)


def _torch_alone(stacks: str) -> Callable[[Accelerator], AbstractContextManager[CudaDevice]]:
    @contextmanager
    def way(accelerator: Accelerator) -> Iterator[CudaDevice]:
        with _off(accelerator) as device:
            history = RecordedHistory(accelerator, stacks=stacks)  # type: ignore[arg-type]
            history.start()
            try:
                yield device
            finally:
                history.stop()

    return way


_WAYS = {
    "off": _off,
    "no stacks": _torch_alone("none"),
    "python stacks": _torch_alone("python"),
    "all stacks": _torch_alone("all"),
    "memviz": lambda accelerator: CudaDevice(accelerator=accelerator),
}
