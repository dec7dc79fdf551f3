"""The actions proposed for each finding, and the live bytes that they predict."""

import pytest

from memviz.analysis.actions.proposals import ActionKind, autocast, kinds_of, proposal
from memviz.analysis.findings.finding import Facts, FindingKind
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from tests.analysis.actions.test_checkpoint import MiB, network
from tests.analysis.findings.steps import GRADIENT, SCRATCH, Loop, of_kind
from tests.analysis.findings.test_kept_too_long import logits_held_through_the_next_forward
from tests.analysis.training import BACKWARD, CALL, ENGINE, FORWARD, MAIN, NATIVE, NODE
from tests.traces import frame


def test_what_is_kept_too_long_ends_before_the_next_forward():
    trace = logits_held_through_the_next_forward().trace()
    device = trace.devices[0]
    (finding,) = of_kind(trace, FindingKind.KEPT_TOO_LONG)
    made = proposal(trace, device, finding, ActionKind.FREE_EARLIER)
    assert made is not None and made.trace is not None
    # The weight and saved activations, plus the logits of one step instead of two.
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
    late = Loop(has_weight=False)
    late.end(1, 10).forward().backward().step().without_gradient().whole()
    trace = late.trace()
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    assert proposal(trace, trace.devices[0], finding, ActionKind.HALF_PRECISION) is None


def test_an_action_of_another_finding_is_refused():
    trace = network(steps=2)
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    with pytest.raises(UsageError, match="There is no expandable_segments for activations-1"):
        proposal(trace, trace.devices[0], finding, ActionKind.EXPANDABLE_SEGMENTS)


@pytest.mark.parametrize("operator", ["_to_copy", "_scaled_dot_product_flash_attention"])
def test_what_shows_half_precision_is_not_halved_again(operator):
    """A copy of twice the size, or an attention that knows nothing else."""
    stack = [frame(f"at::_ops::{operator}::call()", "??", 0), frame("forward", "/p/model.py", 20), CALL, MAIN]
    loop = Loop().forward().make(70, 10, FORWARD).make(71, 20, stack).end(70, 10).backward().end(71, 20)
    trace = loop.step().without_gradient().whole().trace()
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    for kind in (ActionKind.HALF_PRECISION, ActionKind.AUTOCAST):
        assert proposal(trace, trace.devices[0], finding, kind) is None


def test_autocast_halves_products_and_copies_their_weights():
    """Two products keep 20 MiB each, a sum 10; the gradient of 100 MiB shows the size of the product's weight."""
    product = [frame("at::_ops::addmm::call()", "??", 0), frame("forward", "/p/model.py", 20), CALL, MAIN]
    total = [frame("at::_ops::add_Tensor::call()", "??", 0), frame("forward", "/p/model.py", 21), CALL, MAIN]
    weight = [NATIVE, NODE, ENGINE]
    loop = Loop().make(70, 20, product).make(71, 20, product).make(72, 10, total)
    loop.make(SCRATCH, 1, BACKWARD).end(SCRATCH, 1).end(72, 10).end(71, 20).make(GRADIENT, 100, weight).end(70, 20)
    trace = loop.step().without_gradient().forward().trace()
    made = autocast(Facts(trace, trace.devices[0]))
    assert made is not None and made.trace is not None
    before, after = timeline(trace.devices[0]).live, timeline(made.trace.devices[0]).live
    assert before[4] == (100 + 20 + 20 + 10) * MiB
    # The weight's copy comes first.
    assert after[2:6].tolist() == [150 * MiB, 160 * MiB, 170 * MiB, 180 * MiB]
    assert after[1] == 100 * MiB
    # With the gradient the copy is gone.
    at = int((made.trace.devices[0].events.size == 100 * MiB).nonzero()[0][1])
    assert after[at + 1] == (100 + 10 + 100) * MiB
