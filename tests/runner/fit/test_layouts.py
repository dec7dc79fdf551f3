"""Along which axes GPUs are parted where only their number is given."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from memviz.runner.fit.cost import Cost, Work, cost_of, speed_of
from memviz.runner.fit.fit import way_label
from memviz.runner.fit.predictions import Prediction
from memviz.runner.fit.search import Trial
from memviz.runner.fit.space import LAYOUT, Candidate, Space, layouts_of, space_of, with_layout
from memviz.runner.plan import Plan, plan_of
from memviz.runner.request import Request


def asked(gpus: int, **axes: str) -> Request:
    settings = {"batch": "2", "sequence": "128", "layers": "2"}
    return Request("llama", settings, optimizer="adamw", parallel={"gpus": str(gpus), **axes})


@cache
def searched() -> Space:
    return space_of(asked(8), "outputs")


def plans(gpus: int) -> list[Plan]:
    request = asked(gpus)
    return [plan_of(with_layout(request, option)) for option in layouts_of(plan_of(request))]


def sequences_of_all(plan: Plan) -> int:
    workload, parallel = plan.workload, plan.parallel
    return workload.batch * plan.passes * parallel.data * parallel.shard  # type: ignore[attr-defined,no-any-return]


def test_every_way_to_part_them_is_tried_and_each_does_the_same_work() -> None:
    ways = plans(4)
    assert {plan.parallel.parts for plan in ways} == {
        *("4 data", "2 data x 2 shard", "2 pipeline x 2 data", "2 pipeline x 2 shard", "4 pipeline"),
        *("2 shard x 2 tensor", "2 pipeline x 2 tensor", "4 tensor"),
    }
    assert {sequences_of_all(plan) for plan in (*ways, plan_of(asked(4)))} == {8}


def test_parts_of_a_matrix_stay_in_a_machine_and_copies_are_of_one() -> None:
    ways = [plan.parallel for plan in plans(64)]
    assert max(way.tensor for way in ways) == 8
    both = [way for way in ways if way.data > 1 and way.shard > 1]
    assert both and {way.shard * way.tensor for way in both} == {8}


@pytest.mark.slow
def test_what_was_said_stays() -> None:
    assert layouts_of(plan_of(asked(8, tensor="2"))) == layouts_of(plan_of(Request("llama"))) == ()
    space = searched()
    first = space.candidates[next(iter(space.first()))]
    assert (first.request, first.layout) == (asked(8), "")
    others = [way for way in space.candidates.values() if way.layout]
    assert {way.keeps for way in others} == {"outputs"} and space.names[-1] == LAYOUT
    assert next(way for way in others if way.layout == "8 tensor").request.settings["batch"] == "16"


def test_the_way_that_was_asked_for_has_a_name_among_the_others() -> None:
    space, work = searched(), Cost(0, 0, 0, None, None)
    ways = [Trial(candidate, Prediction(), work) for candidate in space.candidates.values()]
    alone = [way_label(way) for way in ways if not way.candidate.request.optimizations]
    assert {"8 shard + adamw", "8 shard + adamw-fused", "8 tensor + adamw"} <= set(alone)
    assert way_label(replace(ways[0], candidate=Candidate(Request("llama", optimizer="adamw"), "outputs"))) == "adamw"


def test_what_is_sent_and_waited_for_costs_time() -> None:
    speed = speed_of("NVIDIA A100 80GB")
    one = cost_of(Work(0, 0, 0, link_bytes=300_000_000_000), speed)
    other = cost_of(Work(0, 0, 0, link_bytes=300_000_000_000, leaves_machine=True, stretch=1.5), speed)
    assert (one.seconds_low, other.seconds_low) == (1.0, 1.5)
    assert one.seconds_high and other.seconds_high and other.seconds_high == 1.5 * 6 * one.seconds_high
