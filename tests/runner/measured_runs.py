"""Measured runs of a one-layer model on a fake GPU."""

from pathlib import Path
from typing import Any

from memviz.runner.execute import execute
from memviz.runner.plan import Plan, plan_of
from memviz.runner.record.memory_history import is_recording
from memviz.runner.request import Request
from memviz.runner.step import Outcome
from tests.runner.failing_gpu import FailingGpu

KIB = 1 << 10
OWN = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64, bias=False)

    def forward(self, input):
        return self.first(input)

def tiny():
    return Model(), {"input": torch.ones(8, 64)}
"""
WEIGHT = 4 * 64 * 64


def plan(folder: Path, source: str = OWN, **more: Any) -> Plan:
    path = folder / "own.py"
    path.write_text(source)
    known = {"on": "cuda", "optimizer": "sgd", "warmup": 0, "numerics": False, **more}
    return plan_of(Request(f"{path}:tiny", {"mode": "training"}, **known))


def run(gpu: FailingGpu, plan: Plan, **more: Any) -> Outcome:
    with gpu.in_torch():
        return execute(plan, lambda _: None, **more)


def is_quiet(gpu: FailingGpu) -> bool:
    return not is_recording() and not gpu.gpu.is_recording and not gpu.gpu.history


def hooks() -> int:
    from torch.optim import optimizer

    return len(optimizer._global_optimizer_pre_hooks) + len(optimizer._global_optimizer_post_hooks)
