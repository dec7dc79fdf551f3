"""Small hand-written training loops: weights, forwards, backwards, optimizer steps and a test's additions."""

from __future__ import annotations

from typing import Any

from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.findings.ranking import findings
from memviz.trace.model import Trace
from tests.analysis.training import ACCUMULATE, BACKWARD, BUILD, FORWARD, STEP
from tests.traces import alloc, event, free, trace_of

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
