"""A ratchet: exact predictions stay exact, and each difference is listed here with its cause."""

import pytest

from memviz.predictor.rules import CUBLAS, RULES, PredictorRule, Standing
from tests.truth.comparison import compare
from tests.truth.recordings import recording, recordings

DIFFERENCES: dict[str, tuple[tuple[bool, bool, bool], int | None, str]] = {
    "convolutions-checked": ((True, True, True), 3, "cuDNN's buffers of convolutions and batch norm are missing."),
    "forward-many-segments": ((True, False, False), None, "Some fifty steps were before it, here one."),
    "train-weights-first": ((True, False, False), None, "Some forty steps were before it, here one."),
    "written-pairs-train-128": ((True, True, True), 2066, "An index on the host is copied before the result is made."),
}
"""Exactness of live, allocated and reserved, the first allocation that differs, and why."""
QUICK = {"forward-complete", "train-mixed-precision", "small-complete"}


def marked(value: object, name: str, of: str) -> object:
    """Mark what other programs than the quick ones are predicted for as slow."""
    return pytest.param(value, id=name, marks=() if set(of.split(", ")) <= QUICK else pytest.mark.slow)


@pytest.mark.parametrize("name", [marked(name, name, name) for name in recordings()])
def test_a_prediction_is_as_true_as_it_ever_was(name: str) -> None:
    result = compare(name)
    exact, first, _ = DIFFERENCES.get(name, ((True, True, True), None, ""))
    assert result.exact == exact
    assert result.first_difference == first


@pytest.mark.parametrize("name", recordings())
def test_the_numbers_are_those_of_the_recording(name: str) -> None:
    """The bytes before the first event plus the events sum to the peak of live bytes."""
    recorded = recording(name)
    sizes = [*recorded.freed, *recorded.sizes]
    live = highest = recorded.before + sum(recorded.freed)
    for event in recorded.events:
        live += event if event > 0 else -sizes[-event - 1]
        highest = max(highest, live)
    assert highest == recorded.peaks.live


@pytest.mark.parametrize(
    "rule", [marked(rule, rule.name, rule.because) for rule in RULES if rule.standing is Standing.PROVED]
)
def test_what_is_called_proved_is(rule: PredictorRule) -> None:
    """Programs that use the rule allocate the recorded sizes in order."""
    for name in rule.because.split(", "):
        result = compare(name)
        assert result.first_difference is None
        assert rule.name in result.rules or not (rule.operators or rule is CUBLAS)
