"""Purposes that an estimate inherits from its recording, in a file and back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memviz.analysis.purpose.categories import categories
from memviz.analysis.purpose.phases import phase_spans
from memviz.analysis.purpose.reasons import Certainty
from memviz.errors import TraceError
from memviz.trace.load import load_trace
from memviz.trace.memviz_labels import CERTAINTIES, to_text
from memviz.trace.model import Trace
from memviz.trace.strip import strip_paths
from memviz.trace.write import snapshot_dict, write_pickle
from tests.analysis.test_actions import checkpointed, network
from tests.replays import replay
from tests.traces import read


def estimate() -> Trace:
    return replay(checkpointed(network())).trace


def test_an_estimate_that_is_written_and_read_means_what_it_meant(tmp_path: Path) -> None:
    made = estimate()
    path = tmp_path / "estimate.pickle"
    with path.open("wb") as file:
        write_pickle(strip_paths(made), file)
    again = load_trace(path)
    assert again.devices[0].taken_over == made.devices[0].taken_over is not None
    assert phase_spans(again, again.devices[0]) == phase_spans(made, made.devices[0])
    assert categories(again, again.devices[0]) == categories(made, made.devices[0])


def test_a_recording_takes_over_nothing() -> None:
    assert "memviz" not in snapshot_dict(network())


def test_a_file_may_hold_each_certainty_and_no_other() -> None:
    assert len(Certainty) == CERTAINTIES


ONE, MANY = np.ones(1, np.uint8), np.ones(500, np.uint8)


@pytest.mark.parametrize(
    ("part", "columns", "words"),
    [
        ("events", {"category": to_text(ONE)}, "memviz"),
        ("events", {"certainty": None}, "memviz"),
        ("blocks", {"phase": to_text(ONE)}, "memviz"),
        ("spans", {"phase": to_text(np.zeros(2, np.uint8))}, "memviz"),
        ("spans", {"phase": to_text(MANY)}, "memviz"),
        ("spans", {"first": to_text(np.array([5, 1], "<i8"))}, "memviz"),
        ("spans", {"first": to_text(np.array([1, 1 << 40], "<i8"))}, "memviz"),
        ("spans", {"step": to_text(np.array([-1, 1], "<i4"))}, "memviz"),
        ("spans", {"step": "no base64"}, "memviz"),
        # More phases than events can begin.
        (
            "spans",
            {"phase": to_text(MANY), "first": to_text(np.zeros(500, "<i8")), "step": to_text(np.ones(500, "<i4"))},
            "do not follow one another",
        ),
    ],
)
def test_what_cannot_be_is_refused(part: str, columns: dict[str, Any], words: str) -> None:
    root = snapshot_dict(estimate())
    root["memviz"]["devices"][0]["taken_over"][part] |= columns
    with pytest.raises(TraceError, match=words):
        read(root)


@pytest.mark.parametrize("part", ["events", "blocks", "spans"])
def test_what_is_not_whole_is_left_out(part: str) -> None:
    root = snapshot_dict(estimate())
    del root["memviz"]["devices"][0]["taken_over"][part]
    assert read(root).devices[0].taken_over is None
