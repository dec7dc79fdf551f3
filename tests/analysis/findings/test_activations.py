from collections.abc import Callable

from memviz.analysis.findings.finding import Finding, FindingKind
from memviz.analysis.lifetimes import lifetimes
from tests.analysis.findings.steps import GRADIENT, HIDDEN, OTHER, Loop, MiB, of_kind
from tests.analysis.training import BACKWARD, FORWARD, RECOMPUTE
from tests.traces import frame

LARGE, AGAIN = 12, 13
TO_COPY = [frame("at::_ops::_to_copy::call(at::Tensor const&)", "??", 0), *FORWARD[1:]]


def test_what_a_backward_lets_go_waits_for_it():
    loop = Loop()
    for _ in range(2):
        loop.forward().make(LARGE, 60, FORWARD).make(GRADIENT, 100, BACKWARD).end(LARGE, 60)
        loop.end(OTHER, 20).end(HIDDEN, 20).step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.ACTIVATIONS)
    assert finding.sentence.endswith("are activations saved for backward.")
    assert finding.bytes == 100 * MiB


def test_a_recording_that_ends_before_its_backward_says_that_it_does_not_reach_it():
    loop = Loop().forward()
    for metadata in loop.events[-2:]:
        metadata["user_metadata"] = "activation"
    trace = loop.trace()
    (finding,) = of_kind(trace, FindingKind.ACTIVATIONS)
    assert finding.bytes == 40 * MiB
    assert "backward" in finding.sentence and "recording" in finding.sentence
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [HIDDEN, OTHER]


def test_what_a_forward_lets_go_by_itself_waits_for_nothing():
    loop = Loop().forward()
    for metadata in loop.events[-2:]:
        metadata["user_metadata"] = "activation"
    loop.end(HIDDEN, 20).end(OTHER, 20)
    assert of_kind(loop.trace(), FindingKind.ACTIVATIONS) == []


def trained(forward_and_backward: Callable[[Loop], None]) -> Finding:
    loop = Loop()
    for _ in range(2):
        loop.forward()
        forward_and_backward(loop)
        loop.end(OTHER, 20).end(HIDDEN, 20).step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.ACTIVATIONS)
    return finding


def test_who_checkpoints_already_is_not_told_to():
    def checkpointed(loop: Loop) -> None:
        loop.make(LARGE, 60, FORWARD).make(AGAIN, 5, RECOMPUTE).make(GRADIENT, 100, BACKWARD)
        loop.end(AGAIN, 5).end(LARGE, 60)

    def plain(loop: Loop) -> None:
        loop.make(LARGE, 60, FORWARD).make(GRADIENT, 100, BACKWARD).end(LARGE, 60)

    assert trained(checkpointed).remedy == "Use half precision."
    assert trained(plain).remedy.startswith("Use gradient checkpointing")


def test_who_mixes_precisions_already_is_not_told_to():
    def mixed(loop: Loop) -> None:
        loop.make(LARGE, 60, TO_COPY).make(GRADIENT, 100, BACKWARD).end(LARGE, 60)

    assert trained(mixed).remedy == "Use gradient checkpointing."
