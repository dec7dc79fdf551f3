"""What recording costs: seconds of a step with the history off, with Python's stacks, with all, and as memviz records.

The ways take turns, several rounds of them, because a GPU's clock drifts; every figure is a ratio within its round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu.case import Case
from tests.gpu.results import Results
from tests.gpu.runs import run_named

NEEDS_GPU = True
AT_ONCE = 1
MODELS = ("ltx", "gpt2", "feed-forward", "block-plain", "llama")
_SMALL = ("ltx", "feed-forward")
_ROUNDS, _STEPS = 7, 4


def cases(_results: Results, *, small: bool) -> list[Case]:
    runs = [run_named(name) for name in (_SMALL if small else MODELS)]
    return [
        Case("cost", each.name, {"request": each.request, "rounds": 3 if small else _ROUNDS}, 20, each.gib,
             libraries=each.libraries)
        for each in runs
    ]  # fmt: skip


def prepare() -> None:
    from tests.gpu.capture import prepare as prepare_capture

    prepare_capture()


def run(case: Case, out: Path) -> dict[str, Any]:
    from memviz.runner.measure.accelerator import find_accelerator
    from memviz.runner.measure.timing import EventStopwatch
    from memviz.runner.plan import plan_of
    from memviz.runner.request import Request
    from memviz.runner.workloads.init_weights import drawn_on

    plan = plan_of(Request.from_json({**case.arguments["request"], "on": "cuda"}))
    accelerator = find_accelerator()
    model = drawn_on(accelerator, plan.workload.build)
    seconds = compared(plan, model, accelerator, EventStopwatch, case.arguments["rounds"])
    return {"label": plan.label, "describes": plan.workload.describe(), **as_ratios(seconds)}


Rounds = list[dict[str, float]]


def compared(plan: Any, model: Any, accelerator: Any, stopwatch: Callable[[Any], Any], rounds: int) -> Rounds:
    """Median seconds of a step, each way, round by round."""
    found: Rounds = []
    for _ in range(rounds + 1):
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


def _step(plan: Any, model: Any, device: Any) -> Any:
    from memviz.runner.step import Step, make_optimizer

    placed = device.place(model)
    for each in placed.parameters():
        each.grad = None
    return Step(plan.workload, device, placed, device.inputs(plan.workload), make_optimizer("none", placed))


def _off(accelerator: Any) -> AbstractContextManager[Any]:
    from memviz.runner.measure.cuda_device import CudaDevice

    return CudaDevice(accelerator=accelerator, record=False)


def _torch_alone(stacks: str) -> Callable[[Any], AbstractContextManager[Any]]:
    @contextmanager
    def way(accelerator: Any) -> Iterator[Any]:
        from memviz.runner.record.history import History

        with _off(accelerator) as device:
            history = History(accelerator, stacks=stacks)  # type: ignore[arg-type]
            history.start()
            try:
                yield device
            finally:
                history.stop()

    return way


def _memviz(accelerator: Any) -> AbstractContextManager[Any]:
    from memviz.runner.measure.cuda_device import CudaDevice

    return CudaDevice(accelerator=accelerator)


_WAYS = {
    "off": _off,
    "no stacks": _torch_alone("none"),
    "python stacks": _torch_alone("python"),
    "all stacks": _torch_alone("all"),
    "memviz": _memviz,
}
