"""The published tables on a card that is not there, with models small enough for a processor."""

from __future__ import annotations

import importlib
import time
from functools import partial
from typing import Any

import pytest

from memviz.runner.plan import plan_of
from memviz.runner.published import SEEDS
from memviz.runner.record.memory_history import is_recording
from memviz.runner.request import Request
from memviz.runner.workloads.layer_stacks import TransformerBlock
from tests.gpu import cost, seeds
from tests.gpu.building import all_drawn_on
from tests.gpu.not_there import NotThere
from tests.gpu.on_the_card import on_the_card
from tests.gpu.test_capture import TINY
from tests.runner.torch_storages import watching_torch


class WallClock:
    """In the place of a GPU's events, where there is no GPU."""

    clock = "wall clock"

    def __init__(self) -> None:
        self.moments: list[float] = []

    def lap(self) -> None:
        self.moments.append(time.perf_counter())

    def laps(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in zip(self.moments, self.moments[1:], strict=False))


SETTINGS = ",".join(f"{name}={value}" for name, value in TINY.items())


def test_every_published_table_is_measured():
    assert [each.seed for each in seeds.TABLES] == [each.name for each in SEEDS]
    names = [each.name for each in seeds.CASES]
    assert names == [f"{each.name}-{what}" for each in SEEDS for what in ("peaks", "seconds")]


@pytest.mark.parametrize("table", seeds.TABLES, ids=lambda each: each.seed)
def test_every_way_is_one_that_the_command_line_accepts(table):
    for settings, ways in table.ways.items():
        labels = [seeds._plan(table.workload, settings, way).label for way in ways]
        assert len(set(labels)) == len(ways)


@pytest.mark.slow
def test_a_table_takes_its_steps_on_the_card(monkeypatch):
    """A list that is joined at the end holds more than a flat buffer, which shows in the peaks of any device."""
    module = importlib.import_module("memviz.runner.published")
    monkeypatch.setattr(module, "_FLAT_GRADIENTS_STEPS", 1)
    tiny = {name: int(value) for name, value in TINY.items() if value.isdigit()}
    monkeypatch.setattr(module, "TransformerBlock", partial(TransformerBlock, **tiny))
    gpu, pretended = NotThere(), module.PredictedDevice
    with watching_torch(gpu), all_drawn_on(gpu.accelerator):
        rows = seeds.rows_of("flat-gradients", PredictedDevice=on_the_card(gpu.accelerator))
    assert module.PredictedDevice is pretended
    assert [row["figure"] for row in rows].count("reserved GiB") == 3
    by_case = {row["case"]: row["ours"] for row in rows[:3]}
    assert by_case["a list, then one cat"] > by_case["one flat buffer"] > 0


@pytest.mark.slow
def test_ways_are_timed_and_their_outputs_compared_with_the_noise():
    ways = (seeds.Way("plain", (("flat_gradients", {"how": "plain"}),)), seeds._joined("flat"))
    table = seeds.Table("flat-gradients", "transformer_block", {SETTINGS: ways}, 1, (1, 1))
    gpu = NotThere()
    with watching_torch(gpu), all_drawn_on(gpu.accelerator):
        (_, first), (_, second) = seeds.timed(table, SETTINGS, gpu.accelerator)
    assert first["seconds"] > 0
    assert (first["noise"]["bitwise"], second["noise"], second["apart"]["bitwise"]) == (True, None, True)


def test_a_twin_computes_in_the_dtype_of_the_run():
    way = seeds._joined("flat")
    plans = [seeds._plan("transformer_block", f"dtype={dtype}", way) for dtype in ("bf16", "fp32")]
    assert [seeds.small_of(plan).dtype for plan in plans] == ["bf16", "fp32"]


def test_the_twin_is_compared_with_its_own_noise(monkeypatch):
    monkeypatch.setattr(TransformerBlock, "small", lambda tiny: tiny)
    plan = seeds._plan("transformer_block", SETTINGS, seeds._joined("flat"))
    found = seeds.twin(plan, "cpu")
    assert found is not None
    assert (found["relative_l2"], found["noise_relative_l2"]) == (0, 0)
    assert found["verdict"]["words"]
    assert seeds.twin(seeds._plan("transformer_block", SETTINGS, seeds.Way("as it is")), "cpu") is None


@pytest.mark.slow
def test_every_way_of_recording_is_timed_and_none_stays_on(monkeypatch):
    monkeypatch.setattr(cost, "_STEPS", 1)
    monkeypatch.setattr(cost, "_ROUNDS", 1)
    plan = plan_of(Request("transformer_block", TINY, on="cuda"))
    gpu = NotThere()
    with watching_torch(gpu):
        rounds = cost.compared(plan, plan.workload.build(), gpu.accelerator, lambda api: WallClock())
    assert [set(each) for each in rounds] == [{"off", "no stacks", "python stacks", "all stacks", "memviz"}]
    assert not is_recording()
    assert not gpu.is_recording


def test_ratios_are_within_a_round_so_that_a_drifting_clock_does_not_matter():
    rounds: list[dict[str, Any]] = [{"off": pace, "memviz": 1.5 * pace} for pace in (1.0, 3.0, 2.0)]
    found = cost.as_ratios(rounds)
    assert (found["ratio"], found["seconds"]) == ({"memviz": 1.5}, {"off": 2.0, "memviz": 3.0})
