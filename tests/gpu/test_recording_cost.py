"""The cost of recording: step time without history, with Python stacks, with all stacks, and with memviz.

The variants take turns for several rounds, because a GPU's clock drifts; every figure is a ratio within its round.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from statistics import median

import pytest
from torch import nn

from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.measure.cuda_device import CudaDevice, EventStopwatch
from memviz.runner.measure.measured_run import drawn_on
from memviz.runner.plan import Plan, plan_of
from memviz.runner.record.memory_history import RecordedHistory, StackKind
from memviz.runner.step import RunStep, make_optimizer
from tests.gpu.conftest import Gpu
from tests.gpu.runs import RUNS
from tests.gpu.test_runs import show

_ROUNDS, _STEPS = 7, 4
Device = AbstractContextManager[CudaDevice]


def unrecorded(accelerator: Accelerator) -> Device:
    return CudaDevice(accelerator=accelerator, record=False)


def torch_alone(stacks: StackKind) -> Callable[[Accelerator], Device]:
    @contextmanager
    def device_with_history(accelerator: Accelerator) -> Iterator[CudaDevice]:
        with unrecorded(accelerator) as device:
            history = RecordedHistory(accelerator, stacks=stacks)
            history.start()
            try:
                yield device
            finally:
                history.stop()

    return device_with_history


WAYS: dict[str, Callable[[Accelerator], Device]] = {
    "off": unrecorded,
    "no stacks": torch_alone("none"),
    "python stacks": torch_alone("python"),
    "all stacks": torch_alone("all"),
    "memviz": lambda accelerator: CudaDevice(accelerator=accelerator),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ltx", "gpt2", "feed-forward", "block-plain"])
def test_seconds_with_each_kind_of_recording(name: str, gpu: Gpu):
    run = next(run for run in RUNS if run.name == name)
    if run.library:
        pytest.importorskip(run.library)
    plan, accelerator = plan_of(replace(run.request, on="cuda")), find_accelerator()
    model = drawn_on(accelerator, plan.workload.build)
    rounds: list[dict[str, float]] = []
    for _ in range(_ROUNDS + 1):
        rounds.append({})
        for name, way in WAYS.items():
            with way(accelerator) as device:
                rounds[-1][name] = seconds_of_a_step(plan, model, device, accelerator)
    # The first round loads kernels, and cuBLAS looks for its algorithms.
    ratios = {name: median(seconds[name] / seconds["off"] for seconds in rounds[1:]) for name in WAYS}
    show(run.name, seconds=median(seconds["off"] for seconds in rounds[1:]), ratios=ratios)


def seconds_of_a_step(plan: Plan, model: nn.Module, device: CudaDevice, accelerator: Accelerator) -> float:
    placed = device.place(model)
    placed.zero_grad(set_to_none=True)
    step = RunStep(plan.workload, device, placed, device.inputs(plan.workload), make_optimizer("none", placed))
    step()
    watch = EventStopwatch(accelerator.api)
    watch.lap()
    for _ in range(_STEPS):
        step()
        watch.lap()
    return median(watch.laps())
