"""What makes it close whether a run fits."""

from __future__ import annotations

from dataclasses import replace

from memviz.runner.expected_error import ExpectedError
from tests.ui.run.test_results import headline, in_doubt, variant


def test_where_what_is_not_counted_makes_it_close_that_is_said() -> None:
    error = ExpectedError(0.0, 1.0, 4.0, 7, 63, "training", not_counted=("cuDNN workspaces",), least_growth=1.38)
    known = replace(in_doubt(10.84, "close"), expected_error=error)
    said = headline((variant("Baseline", known),)).reason
    assert error.uncounted_words in said and "23.50 GiB to 23.75 GiB usable" in said
    near = replace(in_doubt(23.2, "close"), expected_error=error)
    assert "not counted" not in headline((variant("Baseline", near),)).reason
