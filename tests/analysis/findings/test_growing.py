from __future__ import annotations

from memviz.analysis.findings.finding import FindingKind
from memviz.analysis.lifetimes import lifetimes
from tests.analysis.findings.steps import Loop, MiB, of_kind
from tests.analysis.training import LOSS, STEP

KEPT = 60


def test_what_each_step_adds_is_told_by_its_line_and_how_much_a_step():
    loop = Loop()
    for step in range(4):
        loop.forward().make(KEPT + step, 5, LOSS).backward().step().without_gradient()
    trace = loop.trace()
    (finding,) = of_kind(trace, FindingKind.GROWING)
    assert finding.bytes == 15 * MiB
    assert finding.site == "train.py:30 loss"
    assert (
        finding.sentence
        == "What is made by train.py:30 loss and lives on grows by 5.00 MiB each step: 15.0 MiB in 3 steps."
    )
    assert lifetimes(trace.devices[0]).address[finding.rows].tolist() == [KEPT, KEPT + 1, KEPT + 2]


def test_unequal_steps_are_told_from_the_least_to_the_most():
    loop = Loop()
    for step in range(3):
        loop.forward().make(KEPT + step, 5 + step, LOSS).backward().step().without_gradient()
    (finding,) = of_kind(loop.trace(), FindingKind.GROWING)
    assert finding.bytes == 11 * MiB
    assert "grows by 5.00 MiB to 6.00 MiB each step" in finding.sentence


def test_optimizer_state_that_comes_with_the_first_step_does_not_grow():
    loop = Loop().forward().backward().make(KEPT, 200, STEP).step().without_gradient()
    loop.whole().whole().whole()
    assert of_kind(loop.trace(), FindingKind.GROWING) == []


def test_what_is_let_go_every_other_step_does_not_grow():
    loop = Loop()
    for step in range(5):
        loop.forward().make(KEPT, 5, LOSS).backward().step().without_gradient()
        if step % 2:
            loop.end(KEPT, 5).end(KEPT + 1, 5)
        else:
            loop.end(KEPT, 5).make(KEPT, 5, LOSS).end(KEPT, 5).make(KEPT + 1, 5, LOSS)
    assert of_kind(loop.trace(), FindingKind.GROWING) == []


def test_two_steps_are_too_few_to_say():
    loop = Loop()
    for step in range(2):
        loop.forward().make(KEPT + step, 5, LOSS).backward().step().without_gradient()
    assert of_kind(loop.trace(), FindingKind.GROWING) == []
