"""Copies of weights, gradients in forwards, wider copies and large temporaries: what shows in what tensors are for."""

from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.reasons import Certainty
from tests.analysis.findings.steps import HIDDEN, OTHER, Loop, MiB, of_kind
from tests.analysis.training import BACKWARD, BUILD, CALL, FORWARD, MAIN, MOVE, NATIVE
from tests.facts import missing
from tests.traces import frame

CAST = [frame("at::_ops::_to_copy::call(at::Tensor const&)", "??", 0), frame("forward", "/p/model.py", 20), CALL, MAIN]
COPIED = [NATIVE, frame("deepcopy", "/p/average.py", 5), MAIN]
SIZES = (64, 30, 10, 30, 10)


def _weights(*stacks: list[dict], sizes: tuple[int, ...] = SIZES) -> Loop:
    loop = Loop(has_weight=False)
    for number, stack in enumerate(stacks):
        for place, size in enumerate(sizes):
            loop.make(1000 * (number + 1) + place, size, stack)
    return loop.whole().whole()


def test_a_second_copy_of_the_weights_is_told_as_probable():
    trace = _weights(MOVE, COPIED).trace()
    (finding,) = of_kind(trace, FindingKind.DUPLICATED_WEIGHTS)
    assert finding.bytes == sum(SIZES) * MiB
    assert f"allocations of {sum(SIZES)} MiB together made by average.py:5 deepcopy" in finding.sentence
    assert finding.site == "average.py:5 deepcopy"
    assert finding.certainty is Certainty.PROBABLE
    assert len(finding.rows) == 2 * len(SIZES)


def test_layers_of_one_network_that_are_alike_are_no_copy():
    assert of_kind(_weights(MOVE, sizes=(30, 10, 20, 30, 10, 20)).trace(), FindingKind.DUPLICATED_WEIGHTS) == []
    assert of_kind(_weights(MOVE, BUILD, sizes=(30, 10)).trace(), FindingKind.DUPLICATED_WEIGHTS) == []
    assert of_kind(_weights(MOVE, BUILD, sizes=(30, 10, 30, 10)).trace(), FindingKind.DUPLICATED_WEIGHTS) == []


def test_gradients_that_outlive_the_step_are_told():
    loop = Loop().whole().forward().backward().step().forward().without_gradient().backward().step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.GRADIENTS_IN_FORWARD)
    assert finding.bytes == 100 * MiB
    assert finding.sentence.startswith("100 MiB of gradients are live during the forward of step 3")


def test_gradients_that_are_added_up_over_forwards_are_in_use():
    loop = Loop().whole().forward().backward()
    loop.forward().make(70, 1, BACKWARD).end(70, 1).end(OTHER, 20).end(HIDDEN, 20).step().without_gradient().whole()
    assert of_kind(loop.trace(), FindingKind.GRADIENTS_IN_FORWARD) == []


def test_gradients_that_are_let_go_before_the_forward_are_not_told():
    assert of_kind(Loop().whole().whole().trace(), FindingKind.GRADIENTS_IN_FORWARD) == []


def _cast(copy_mib: int, stack: list[dict]) -> Loop:
    loop = Loop().forward().make(70, 15, FORWARD).make(71, copy_mib, stack)
    return loop.end(70, 15).end(71, copy_mib).backward().step().without_gradient()


def test_a_copy_in_twice_the_precision_is_told_with_its_source():
    trace = _cast(30, CAST).trace()
    (finding,) = of_kind(trace, FindingKind.WIDER_COPIES)
    assert finding.bytes == 30 * MiB
    assert finding.site == "model.py:20 forward"
    assert finding.certainty is Certainty.PROBABLE
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [70, 71]


def test_another_operator_or_another_size_is_no_wider_copy():
    assert of_kind(_cast(30, FORWARD).trace(), FindingKind.WIDER_COPIES) == []
    assert of_kind(_cast(31, CAST).trace(), FindingKind.WIDER_COPIES) == []


def test_a_copy_into_half_the_precision_is_no_wider_copy():
    """A softmax in single precision, and its copy for a product; a block of a quarter is live, too."""
    loop = Loop().forward().make(70, 15, FORWARD).make(72, 60, FORWARD).make(71, 30, CAST)
    loop.end(70, 15).end(72, 60).end(71, 30).backward().step().without_gradient()
    assert of_kind(loop.trace(), FindingKind.WIDER_COPIES) == []


def test_without_operators_a_result_of_twice_the_size_is_no_copy():
    """An exp after a cast, or a cat."""
    line = [frame("forward", "/p/model.py", 20), CALL, MAIN]
    loop = Loop().forward().make(70, 15, line).make(71, 30, line).end(70, 15).end(71, 30).backward().step()
    assert of_kind(loop.trace(), FindingKind.WIDER_COPIES) == []


def test_a_temporary_that_makes_the_peak_is_told_by_how_much_it_does():
    loop = Loop().forward().make(70, 300, BACKWARD).end(70, 300).backward().step().without_gradient().whole()
    (finding,) = of_kind(loop.trace(), FindingKind.LARGE_TEMPORARY)
    # With it 440 MiB are live; without it the gradient makes 240.
    assert finding.bytes == 200 * MiB
    assert missing(finding.sentence, "temporary of 300 MiB", "MmBackward0 (backward)", "200 MiB lower") == []


def test_of_several_temporaries_the_sentence_names_the_one_that_is_live_at_the_peak():
    loop = Loop().make(70, 300, BACKWARD).end(70, 300).make(71, 300, FORWARD).make(70, 200, BACKWARD).end(70, 200)
    (finding,) = of_kind(loop.trace(), FindingKind.LARGE_TEMPORARY)
    assert finding.sentence.startswith("A temporary of 200 MiB made by MmBackward0 (backward) causes the peak")


def test_what_lives_long_or_makes_no_peak_is_no_large_temporary():
    small = Loop().forward().backward().make(70, 80, BACKWARD).end(70, 80).step().without_gradient().whole()
    assert [finding.bytes for finding in of_kind(small.trace(), FindingKind.LARGE_TEMPORARY)] == [40 * MiB]
    long = Loop().make(70, 300, FORWARD).whole().whole().end(70, 300)
    assert of_kind(long.trace(), FindingKind.LARGE_TEMPORARY) == []
