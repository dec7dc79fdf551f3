"""Stacks of a training loop, as torch records them."""

from __future__ import annotations

from typing import Any

from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.trace.model import Trace
from tests.traces import alloc, event, frame, free, trace_of

SITE = "/home/u/.venv/lib/python3.12/site-packages"
MODULE = f"{SITE}/torch/nn/modules/module.py"
OPTIMIZER = f"{SITE}/torch/optim/optimizer.py"
NATIVE = frame("at::_ops::mm::call(at::Tensor const&)", "??", 0)
ENGINE = frame("torch::autograd::Engine::thread_main(int)", "??", 0)
NODE = frame("torch::autograd::generated::MmBackward0::apply(int)", "??", 0)
CALL = frame("_call_impl", MODULE, 1790)
WRAPPER = frame("wrapper", OPTIMIZER, 526)
MAIN = frame("main", "/p/train.py", 50)

FORWARD = [NATIVE, frame("forward", "/p/model.py", 12), CALL, MAIN]
OTHER_FORWARD = [NATIVE, frame("forward", "/p/model.py", 13), CALL, MAIN]
BACKWARD = [NATIVE, NODE, ENGINE]
ACCUMULATE = [NATIVE, frame("torch::autograd::AccumulateGrad::apply(int)", "??", 0), ENGINE]
STEP = [NATIVE, frame("step", f"{SITE}/torch/optim/adam.py", 247), WRAPPER, MAIN]
BUILD = [NATIVE, frame("__init__", f"{SITE}/torch/nn/modules/linear.py", 106), MAIN]
MOVE = [NATIVE, frame("convert", MODULE, 1360), frame("_apply", MODULE, 930), frame("to", MODULE, 1254), MAIN]
LOSS = [NATIVE, frame("loss", "/p/train.py", 30), MAIN]
RECOMPUTE = [
    NATIVE,
    frame("forward", "/p/model.py", 12),
    CALL,
    frame("unpack_hook", f"{SITE}/torch/utils/checkpoint.py", 1135),
    NODE,
    ENGINE,
]
WORKSPACE = [frame("at::cuda::getNewWorkspace()", "", 0), *FORWARD]

# As with stacks="python": no C++ frames, so nothing on autograd's own thread.
CALL_BACKWARD = [
    frame("_make_grads", f"{SITE}/torch/autograd/__init__.py", 220),
    frame("backward", f"{SITE}/torch/_tensor.py", 600),
    MAIN,
]


def python_only(stack: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in stack if each["filename"].endswith(".py")]


class Recording:
    """A recording with a fresh address per allocation, so that a test only gives the order."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def alloc(self, address: int, stack: list[dict[str, Any]] | None, size: int = 100) -> Recording:
        self.events.append(alloc(address, size, frames=stack or [], time_us=10 * len(self.events) + 10))
        return self

    def free(self, address: int, stack: list[dict[str, Any]] | None = None, size: int = 100) -> Recording:
        for action in ("free_requested", "free_completed"):
            event = {"action": action, "addr": address, "size": size, "stream": 0, "frames": stack or []}
            self.events.append({**event, "time_us": 10 * len(self.events) + 10})
        return self


def kept_layers(count: int) -> Recording:
    """A forward that keeps two blocks a layer, at two lines of one file, and its backward that has begun."""
    lines = [[NATIVE, frame("forward", "/p/model.py", line), CALL, MAIN] for line in (12, 15)]
    events = Recording()
    for layer in range(count):
        events.alloc(2 * layer, lines[0], 300).alloc(2 * layer + 1, lines[1], 200)
    return events.alloc(900, BACKWARD, 10)


MiB = 1 << 20
WEIGHT, HIDDEN, OTHER, GRADIENT, SCRATCH = 1, 10, 11, 20, 30
Stack = list[dict[str, Any]]


class Loop:
    """A weight of 100 MiB, and steps that each keep 40 MiB from forward to backward."""

    def __init__(self, *, has_weight: bool = True) -> None:
        self.events: list[Any] = []
        if has_weight:
            self.make(WEIGHT, 100, BUILD)

    def make(self, address: int, mib: int, stack: Stack, **more: Any) -> Loop:
        self.events.append(alloc(address, mib * MiB, frames=stack, **more))
        return self

    def end(self, address: int, mib: int, stack: Stack | None = None) -> Loop:
        self.events += free(address, mib * MiB, frames=stack or [])
        return self

    def ask(self, action: str, address: int, mib: int, **more: Any) -> Loop:
        self.events.append(event(action, address, mib * MiB, **more))
        return self

    def forward(self) -> Loop:
        return self.make(HIDDEN, 20, FORWARD).make(OTHER, 20, FORWARD)

    def backward(self, stack: Stack = ACCUMULATE) -> Loop:
        self.make(SCRATCH, 1, BACKWARD).end(SCRATCH, 1).make(GRADIENT, 100, stack)
        return self.end(OTHER, 20).end(HIDDEN, 20)

    def step(self) -> Loop:
        return self.make(SCRATCH, 1, STEP).end(SCRATCH, 1)

    def without_gradient(self) -> Loop:
        return self.end(GRADIENT, 100)

    def whole(self) -> Loop:
        return self.forward().backward().step().without_gradient()

    def trace(self, segments: list[dict[str, Any]] | None = None) -> Trace:
        return trace_of(self.events, segments)


def of_kind(trace: Trace, kind: FindingKind) -> list[Finding]:
    return [finding for finding in findings(trace, trace.devices[0]) if finding.kind is kind]


LOGITS = 50


def logits_held_through_the_next_forward() -> Loop:
    loop = Loop()
    for step in range(3):
        loop.forward().make(LOGITS + step, 30, LOSS)
        if step:
            loop.end(LOGITS + step - 1, 30)
        loop.backward().step().without_gradient()
    return loop
