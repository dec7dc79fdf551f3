import pytest

from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.lifetimes import lifetimes
from tests.analysis.findings.steps import GRADIENT, HIDDEN, OTHER, Loop, MiB, of_kind
from tests.analysis.training import ACCUMULATE, BACKWARD, CALL, LOSS, MAIN, NATIVE
from tests.facts import missing
from tests.traces import frame

LOGITS = 50


def logits_held_through_the_next_forward() -> Loop:
    loop = Loop()
    for step in range(3):
        loop.forward().make(LOGITS + step, 30, LOSS)
        if step:
            loop.end(LOGITS + step - 1, 30)
        loop.backward().step().without_gradient()
    return loop


def test_logits_that_the_next_forward_finds_live_are_told_with_their_line():
    trace = logits_held_through_the_next_forward().trace()
    (finding,) = of_kind(trace, FindingKind.KEPT_TOO_LONG)
    rows = lifetimes(trace.devices[0])
    assert finding.bytes == 30 * MiB
    assert finding.site == "train.py:30 loss"
    assert rows.address[finding.rows].tolist() == [LOGITS, LOGITS + 1]
    assert missing(finding.sentence, "30.0 MiB", "step 1", "train.py:30 loss", "next step’s forward") == []


def test_what_ends_with_its_step_or_at_the_start_of_the_next_is_not_kept_too_long():
    loop = Loop().whole()
    loop.forward().make(LOGITS, 30, LOSS).backward().step().without_gradient()
    # Let go after the first allocation of the next forward.
    loop.make(HIDDEN, 20, LOSS).end(LOGITS, 30).end(HIDDEN, 20).whole()
    assert of_kind(loop.trace(), FindingKind.KEPT_TOO_LONG) == []


def test_what_lives_on_for_several_steps_is_no_result_of_the_step_before():
    loop = Loop().forward().make(LOGITS, 30, LOSS).backward().step().without_gradient()
    loop.whole().whole().end(LOGITS, 30)
    assert of_kind(loop.trace(), FindingKind.KEPT_TOO_LONG) == []


@pytest.mark.parametrize("stack", [BACKWARD, ACCUMULATE])
def test_gradients_have_a_finding_of_their_own(stack):
    loop = Loop().whole().forward().backward(stack).step()
    loop.make(HIDDEN, 20, LOSS).make(OTHER, 20, LOSS).without_gradient().end(HIDDEN, 20).end(OTHER, 20).whole()
    assert of_kind(loop.trace(), FindingKind.KEPT_TOO_LONG) == []


def test_a_graph_that_one_name_holds_is_one_finding():
    """Logits keep all activations of their step until the next one makes new logits."""
    loop, places = Loop(), range(8)
    layers = [[NATIVE, frame("forward", "/p/model.py", 20 + place), CALL, MAIN] for place in places]
    for step in range(3):
        for place in places:
            loop.make(1000 * step + place, 10 + place, layers[place])
        loop.make(1000 * step + 500, 30, LOSS)
        if step:
            loop.end(1000 * step - 500, 30)
            for place in places:
                loop.end(1000 * (step - 1) + place, 10 + place)
        loop.make(GRADIENT, 100, ACCUMULATE).step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.KEPT_TOO_LONG)
    assert finding.bytes == (sum(10 + place for place in places) + 30) * MiB
    assert len(finding.rows) == 2 * (len(places) + 1)
    assert missing(finding.sentence, "train.py:30", "9 places") == []
