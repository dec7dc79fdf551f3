"""Passes that repeat an earlier one: traces and figures as if they had run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from memviz.predictor.repetition import PassRepeater, key_of_inputs
from memviz.runner.outcome import Outcome
from memviz.runner.plan import plan_of
from memviz.runner.predicted_run import predict
from memviz.runner.request import Optimizer, Request

_SMALL = {"layers": "2"}
_FLUX = {"double_layers": "2", "single_layers": "2"}


def _both(monkeypatch: pytest.MonkeyPatch, request: Request) -> tuple[Outcome, Outcome, int]:
    """Predict with and without repetition, and count the repeated passes."""
    counts = []
    plain = PassRepeater._repeat

    def counted(self: PassRepeater, *args: Any) -> Any:
        counts.append(1)
        return plain(self, *args)

    monkeypatch.setattr(PassRepeater, "_repeat", counted)
    repeated = predict(plan_of(request), lambda phase: None)
    return repeated, predict(plan_of(request), lambda phase: None, repeats=False), len(counts)


def _assert_equal(one: Outcome, other: Outcome) -> None:
    first, second = one.run.as_json(), other.run.as_json()
    assert {**first, "took_seconds": 0} == {**second, "took_seconds": 0}
    mine, theirs = one.trace.devices[0], other.trace.devices[0]
    for rows in ("events", "event_labels", "annotations", "segments", "blocks", "block_labels"):
        for (name, column), (_, expected) in zip(
            getattr(mine, rows).columns(), getattr(theirs, rows).columns(), strict=True
        ):
            assert np.array_equal(column, expected), (rows, name)
    assert one.trace.strings == other.trace.strings


def _request(
    workload: str, settings: Mapping[str, str], optimizer: Optimizer, *optimizations: tuple[str, Mapping[str, str]]
) -> Request:
    return Request(workload, settings, optimizations, optimizer=optimizer, numerics=False)


def test_a_second_step_is_not_run_and_looks_as_if_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    request = _request("feed_forward", {**_SMALL, "mode": "training"}, "adamw")
    repeated, run, count = _both(monkeypatch, request)
    _assert_equal(repeated, run)
    assert count == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "repeats"),
    [
        (_request("feed_forward", {}, "none"), 1),
        (_request("gpt2", _SMALL, "adamw", ("gradient_accumulation", {"pieces": "4"})), 6),
        (_request("llama", {**_SMALL, "micro_batches": "4"}, "adamw"), 5),
        (_request("llama", _SMALL, "adamw", ("lora", {}), ("checkpointing", {"offload": "true"})), 1),
        (_request("llama", _SMALL, "adamw", ("activation_offload", {})), 1),
        (_request("mixtral", _SMALL, "adamw"), 1),
        (_request("flux", _FLUX, "none", ("weight_offload", {"granularity": "leaf"})), 1),
        # Gradients add up, weights are stepped within, cast weights rest in new memory, and a prefetch learns.
        (_request("llama", _SMALL, "none"), 0),
        (_request("llama", _SMALL, "adamw", ("optimizer_in_backward", {})), 0),
        (_request("flux", _FLUX, "none", ("layerwise_casting", {})), 0),
        (_request("flux", _FLUX, "none", ("weight_offload", {"ahead": "true"})), 0),
    ],
    ids=lambda value: " ".join([value.workload, *dict(value.optimizations)]) if isinstance(value, Request) else "",
)
def test_repeated_passes_look_as_if_they_had_run(
    monkeypatch: pytest.MonkeyPatch, request_: Request, repeats: int
) -> None:
    repeated, run, count = _both(monkeypatch, request_)
    _assert_equal(repeated, run)
    assert count == repeats


def test_inputs_of_unknown_kinds_have_no_key() -> None:
    assert key_of_inputs({"x": [1, "a", None]}) == key_of_inputs({"x": [1, "a", None]})
    assert key_of_inputs({"x": [1, object()]}) is None
