"""A run and its repetition under other settings, both by the model: then replay has to say exactly what came of it."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from memviz.allocator.settings import parse_settings
from memviz.runner.predict.cards import card_named
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.trace.model import Trace
from tests.gpu.comparing import gpu_of, requests_of
from tests.gpu.what_if import CASES, beside, limit_of
from tests.replays import replay

MiB = 1 << 20
TOTAL = 1 << 34


@cache
def ran(conf: str = "") -> Trace:
    """Sizes that do not fit into each other's places."""
    with PredictedDevice(card_named("H100"), settings=parse_settings(conf) if conf else None) as device:
        for number in range(12):
            kept = [
                torch.empty((11 + 7 * number % 23) * MiB + part, dtype=torch.uint8, device="cuda") for part in range(4)
            ]
            torch.empty(130 * MiB + number * MiB, dtype=torch.uint8, device="cuda")
            del kept
        return device.finish()


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:128"])
def test_what_replay_says_is_what_comes_of_it(conf):
    found = beside(ran(), ran(conf), conf=conf, fraction=None, total=TOTAL)
    assert found["settings"] == conf
    assert found["same_requests_until"] is None
    assert found["reserved"]["measured"] == found["reserved"]["predicted"]
    assert (found["first_other_segment"], found["segments"]["measured"]) == (None, found["segments"]["predicted"])
    assert found["ran_out"] == {"measured": None, "predicted": None}


def test_a_wrong_answer_shows():
    found = beside(ran(), ran(), conf="expandable_segments:True", fraction=None, total=TOTAL)
    assert found["reserved"]["measured"] != found["reserved"]["predicted"]
    assert found["first_other_segment"] == 0


def test_with_less_memory_it_says_at_which_request_it_ends():
    plain = replay(ran())
    limit = plain.peak_allocated_bytes * 9 // 10
    found = beside(ran(), ran(), conf=None, fraction=limit / TOTAL, total=TOTAL)
    predicted = found["ran_out"]["predicted"]
    assert found["ran_out"]["measured"] is None
    assert predicted["asked"] == requests_of(gpu_of(ran()))[predicted["served"]]
    assert found["reserved"]["predicted"] <= limit


def test_limits_lie_between_the_peaks_or_below_both():
    base = {"peak_allocated_bytes": 100 * MiB, "peak_reserved_bytes": 140 * MiB}
    assert [limit_of(base, share) for share in (0.5, -0.1, None)] == [120 * MiB, 90 * MiB, None]


def test_settings_are_there_before_the_process_starts():
    by_name = {each.name: each for each in CASES}
    assert by_name["lengths-expandable"].environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert by_name["lengths-tight"].environment == {}
    assert by_name["lengths-tight"].of == ("capture", "lengths")
