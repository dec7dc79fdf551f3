"""A ratchet: what is exact stays exact, and what is not is listed here with its cause."""

from __future__ import annotations

import pytest

from tests.truth.comparison import compare
from tests.truth.recordings import recording, recordings

EXACT = (True, True, True)
DIFFERENCES = {
    "train-mixed-precision": (
        (True, False, True),
        0,
        "a free comes a few allocations later or earlier, so a block of another size is taken for it",
    ),
}
"""What of live, allocated and reserved is exact, how many allocations are missing or too many, and why."""


@pytest.mark.parametrize("name", recordings())
def test_a_prediction_is_as_true_as_it_ever_was(name: str) -> None:
    result = compare(name)
    exact, apart, _ = DIFFERENCES.get(name, (EXACT, 0, ""))
    assert result.exact == exact
    assert abs(len(result.sizes) - len(result.recording.sizes)) == apart
    assert (result.first_difference is None) == (apart == 0)


@pytest.mark.parametrize("name", recordings())
def test_the_numbers_are_those_of_the_recording(name: str) -> None:
    """Its events alone come to its highest live bytes."""
    recorded = recording(name)
    live, highest, sizes = 0, 0, recorded.sizes
    for event in recorded.events:
        live += event if event > 0 else -sizes[-event - 1]
        highest = max(highest, live)
    assert highest == recorded.peaks.live
