"""What is proposed against which finding, and what is live then."""

from __future__ import annotations

import pytest

from memviz.analysis.actions.action import ActionKind
from memviz.analysis.actions.proposals import kinds_of, proposal
from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from tests.analysis.actions.test_checkpoint import MiB, network
from tests.analysis.findings.steps import Loop, of_kind
from tests.analysis.findings.test_kept_too_long import logits_held_through_the_next_forward


def test_what_is_kept_too_long_ends_before_the_next_forward():
    trace = logits_held_through_the_next_forward().trace()
    device = trace.devices[0]
    (finding,) = of_kind(trace, FindingKind.KEPT_TOO_LONG)
    made = proposal(trace, device, finding, ActionKind.FREE_EARLIER)
    assert made is not None and made.trace is not None
    # The weight and what the forward keeps, beside the logits of one step in place of two.
    before, after = timeline(device).live, timeline(made.trace.devices[0]).live
    recorded = device.events
    assert before[1:][(recorded.action == 0) & (recorded.size == 30 * MiB)].tolist() == [
        170 * MiB,
        200 * MiB,
        200 * MiB,
    ]
    changed = made.trace.devices[0].events
    assert after[1:][(changed.action == 0) & (changed.size == 30 * MiB)].tolist() == [170 * MiB] * 3


def test_activations_can_be_checkpointed_or_halved():
    trace = network(steps=2)
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    assert kinds_of(finding) == (ActionKind.CHECKPOINT, ActionKind.AUTOCAST, ActionKind.HALF_PRECISION)
    halved = proposal(trace, trace.devices[0], finding, ActionKind.HALF_PRECISION)
    assert halved is not None and halved.trace is not None
    whole = timeline(trace.devices[0]).live
    assert (2 * timeline(halved.trace.devices[0]).live == whole).all()


def test_what_was_there_before_the_recording_cannot_be_halved():
    late = Loop()
    late.events = []
    late.end(1, 10).forward().backward().step().without_gradient().whole()
    trace = late.trace()
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    assert proposal(trace, trace.devices[0], finding, ActionKind.HALF_PRECISION) is None


def test_an_action_of_another_finding_is_refused():
    trace = network(steps=2)
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    with pytest.raises(UsageError, match="Against activations-1 there is no expandable_segments"):
        proposal(trace, trace.devices[0], finding, ActionKind.EXPANDABLE_SEGMENTS)
