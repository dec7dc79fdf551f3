"""The shipped figures of recordings equal those of the comparison."""

from __future__ import annotations

import json
from statistics import median

import pytest

from memviz.predictor.accuracy import DATA, expected_error, measured_peaks
from memviz.predictor.cards import card_named
from tests.benchmarks.published import points
from tests.truth.held_against import BEGIN, END, README, RECORDINGS, readme_table, row
from tests.truth.recordings import recordings


def _shipped() -> dict[str, dict[str, object]]:
    return {known["name"]: known for known in json.loads(DATA.read_text())[RECORDINGS]}


def test_every_recording_is_shipped() -> None:
    assert sorted(_shipped()) == recordings()


@pytest.mark.slow
@pytest.mark.parametrize("name", recordings())
def test_its_figures_are_those_of_the_comparison(name: str) -> None:
    """If not: `python -m tests.truth.held_against`."""
    assert _shipped()[name] == row(name)


def test_published_peaks_are_those_of_the_table_and_language_models_are_met_within_its_gates() -> None:
    """Median 0.1 %, worst 1.2 %."""
    measured = {(point.source, tuple(point.settings.items())): point.measured for point in points()}
    errors = []
    for one in (one for one in measured_peaks() if one.is_published):
        source, *settings = one.name.split()
        pairs = tuple((name, value) for name, value in (setting.split("=") for setting in settings))
        assert one.allocated is not None and one.allocated[0] == measured[source, pairs]
        errors.append(100 * abs(one.allocated[1] - one.allocated[0]) / one.allocated[0])
    assert errors and median(errors) <= 0.1 and max(errors) <= 1.2


def test_the_readme_says_what_is_shipped() -> None:
    """If not: `python -m tests.truth.held_against`."""
    text = README.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == readme_table()


def test_what_is_said_of_a_class_is_the_worst_of_its_recordings() -> None:
    for kind in ("training", "inference"):
        pairs = [one.reserved for one in measured_peaks() if one.kind == kind and not one.is_published and one.reserved]
        worst = max(abs(predicted - measured) / measured for measured, predicted in pairs)
        found = expected_error(["bmm", "sum_dim_IntList"], trains=kind == "training", card=card_named("RTX 4090"))
        assert found.reserved == pytest.approx(100 * worst, abs=1e-3) and found.recordings == len(pairs)
