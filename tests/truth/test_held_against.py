"""The shipped figures of recordings equal those of the comparison."""

import json
from statistics import median

import pytest

from memviz.predictor.accuracy import (
    COVERAGE,
    DATA,
    MEASURES,
    Measure,
    error_of,
    expected_error,
    measured_peaks,
)
from memviz.predictor.cards import card_named
from tests.benchmarks.published import points
from tests.truth.held_against import BEGIN, END, README, RECORDINGS, readme_table, row
from tests.truth.intervals import CLASSES, classes, coverage
from tests.truth.recordings import recording, recordings


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
        pair = one.allocated or one.reserved
        assert pair is not None and pair[0] == measured[source, pairs]
        if one.source == "huggingface/transformers":
            errors.append(100 * abs(pair[1] - pair[0]) / pair[0])
    assert errors and median(errors) <= 0.1 and max(errors) <= 1.2


def test_the_readme_says_what_is_shipped() -> None:
    """If not: `python -m tests.truth.held_against`."""
    text = README.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == readme_table()


@pytest.mark.parametrize("kind", ["training", "inference"])
@pytest.mark.parametrize("measure", MEASURES)
def test_what_is_said_of_a_class_covers_its_recordings(kind: str, measure: Measure) -> None:
    peaks = [one for one in measured_peaks() if one.kind == kind and not one.is_published and one.whole]
    found = expected_error(["bmm", "sum_dim_IntList"], trains=kind == "training", card=card_named("RTX 4090"))
    said = getattr(found, measure)
    assert sum((error_of(one, measure) or 0) <= said + 1e-4 for one in peaks) >= COVERAGE * len(peaks)
    assert found.recordings == len(peaks)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("measure", MEASURES)
def test_an_interval_covers_repositories_that_it_does_not_know(name: str, measure: Measure) -> None:
    """All peaks but one in so few, and `COVERAGE` of many."""
    covered, count = coverage(classes()[name], measure)
    assert covered >= min(count - 1, COVERAGE * count)


def test_every_recording_names_its_repository() -> None:
    for name, shipped in _shipped().items():
        assert recording(name).source.startswith(f"github.com/{shipped['source']} at ")
