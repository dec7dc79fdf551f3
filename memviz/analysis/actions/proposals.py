"""What could be done about a finding."""

from __future__ import annotations

from dataclasses import replace

from memviz.analysis.actions.action import ActionKind, Proposal
from memviz.analysis.actions.autocast import autocast
from memviz.analysis.actions.checkpoint import checkpoint
from memviz.analysis.actions.free_earlier import free_earlier
from memviz.analysis.actions.half_precision import half_precision
from memviz.analysis.findings.facts import Facts
from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.errors import UsageError
from memviz.trace.model import DeviceTrace, Trace
from memviz.units import bytes_text

_EXPANDABLE = Proposal(
    ActionKind.EXPANDABLE_SEGMENTS,
    "expandable segments",
    ("The same requests with expandable_segments:True, in memory without end.",),
    None,
)
_OF_KIND: dict[FindingKind, tuple[ActionKind, ...]] = {
    FindingKind.ACTIVATIONS: (ActionKind.CHECKPOINT, ActionKind.AUTOCAST, ActionKind.HALF_PRECISION),
    FindingKind.KEPT_TOO_LONG: (ActionKind.FREE_EARLIER,),
    FindingKind.GRADIENTS_IN_FORWARD: (ActionKind.FREE_EARLIER,),
    FindingKind.PINNED_SEGMENTS: (ActionKind.EXPANDABLE_SEGMENTS,),
    FindingKind.SPIKE: (ActionKind.EXPANDABLE_SEGMENTS,),
}


def kinds_of(finding: Finding) -> tuple[ActionKind, ...]:
    return _OF_KIND.get(finding.kind, ())


def proposal(trace: Trace, device: DeviceTrace, finding: Finding, kind: ActionKind) -> Proposal | None:
    """None where this trace does not have what it takes."""
    if kind not in kinds_of(finding):
        raise UsageError(f"Against {finding.key} there is no {kind}.")
    facts = Facts(trace, device)
    made = _made(facts, finding, kind)
    limit = limit_of_start(facts)
    if made is None or made.trace is None or not limit:
        return made
    return replace(made, assumptions=(*made.assumptions, limit))


def limit_of_start(facts: Facts) -> str:
    """An edit changes only what was recorded. Empty where the recording is complete."""
    start = facts.line.start_bytes
    if not start:
        return ""
    return f"Recording started with {bytes_text(start)} allocated, which the estimate leaves as they are."


def _made(facts: Facts, finding: Finding, kind: ActionKind) -> Proposal | None:
    match kind:
        case ActionKind.CHECKPOINT:
            return checkpoint(facts)
        case ActionKind.AUTOCAST:
            return autocast(facts)
        case ActionKind.HALF_PRECISION:
            return half_precision(facts)
        case ActionKind.FREE_EARLIER:
            return free_earlier(facts, finding.rows)
        case ActionKind.EXPANDABLE_SEGMENTS:
            return _EXPANDABLE
