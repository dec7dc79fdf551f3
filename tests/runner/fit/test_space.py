"""The configurations that a search tries, and what each costs."""

from dataclasses import replace
from functools import cache

import pytest

from memviz.predictor.cards import CARDS
from memviz.runner.fit import cost
from memviz.runner.fit import space as fit_space
from memviz.runner.fit.cost import KEEPS, CardSpeed, Cost, Keep, Work, cost_of, speed_of
from memviz.runner.fit.fit import trial_label
from memviz.runner.fit.predictions import Prediction
from memviz.runner.fit.search import Trial
from memviz.runner.fit.space import LAYOUT, Candidate, Space, layouts_of, space_of, with_layout
from memviz.runner.plan import Plan, plan_of
from memviz.runner.request import Request

TRAINING = Request("gpt2", {"layers": "1", "narrow": "4"}, optimizer="adamw")
INFERENCE = Request("feed_forward", {"layers": "1"})


@cache
def training_space(keep: Keep) -> Space:
    """Return one space for all tests that only read it; its candidates are computed once."""
    return space_of(TRAINING, keep)


@cache
def inference_space() -> Space:
    return space_of(INFERENCE, "nothing")


def names_on(space: Space) -> set[str]:
    return {name for candidate in space.candidates.values() for name, _ in candidate.request.optimizations}


def test_the_first_is_the_way_that_was_asked_for() -> None:
    space = training_space("outputs")
    first, everything, *others = space.first()
    assert space.candidates[first].request == TRAINING
    changed = [space.candidates[place].request for place in others]
    assert {name for name, _ in changed[1].optimizations} == {"checkpointing", "chunked_cross_entropy"}
    assert all(len(each.optimizations) + (each.optimizer != "adamw") == 1 for each in changed if each is not changed[1])
    together = {name for name, _ in space.candidates[everything].request.optimizations}
    # The option named first is on; options incompatible with it are off.
    assert together >= {"checkpointing", "flat_gradients", "split_feed_forward"}
    assert "chunked_feed_forward" not in together


def test_what_must_stay_decides_what_may_change() -> None:
    outputs, training, nothing = map(training_space, KEEPS)
    assert {candidate.keeps for candidate in outputs.candidates.values()} == {"outputs"}
    assert {candidate.keeps for candidate in training.candidates.values()} == {"outputs", "training"}
    assert "layerwise_casting" not in names_on(outputs) | names_on(training)
    optimizers = {candidate.request.optimizer for candidate in outputs.candidates.values()}
    assert optimizers == {"adamw", "adamw-fused", "adamw-for-loop"}
    assert any(candidate.request.optimizer == "sgd" for candidate in training.candidates.values())
    sizes = [sum(map(len, each.options)) for each in (outputs, training, nothing)]
    assert sizes[0] < sizes[1] < sizes[2]


@pytest.mark.slow
def test_half_precision_is_a_change_of_training_and_weights_in_fewer_bits_keep_nothing() -> None:
    def keeps_of(space: Space) -> set[str]:
        candidates = space.candidates.values()
        return {
            candidate.keeps
            for candidate in candidates
            if candidate.request.settings.get("dtype") == "bf16" and not candidate.request.optimizations
        }

    assert keeps_of(space_of(Request("feed_forward", {"mode": "training"}), "nothing")) == {"training"}
    space = inference_space()
    assert keeps_of(space) == {"nothing"}
    casts = [each for each in space.candidates.values() if "layerwise_casting" in dict(each.request.optimizations)]
    assert {each.keeps for each in casts} == {"nothing"}
    # What has no effect in inference is not tried there.
    assert names_on(space).isdisjoint({"checkpointing", "flat_gradients"})


def test_what_was_asked_for_is_always_on() -> None:
    given = Request("gpt2", {"layers": "2"}, (("checkpointing", {"every": "2"}),))
    for candidate in space_of(given, "outputs").candidates.values():
        assert dict(candidate.request.optimizations)["checkpointing"] == {"every": "2"}


@pytest.mark.slow
def test_what_must_stay_is_relative_to_what_was_asked_for() -> None:
    lora, cast = Request("gpt2", {"layers": "1"}, (("lora", {}),), optimizer="adamw"), ("layerwise_casting", {})
    space = space_of(lora, "outputs")
    plain = {name for candidate in space.candidates.values() for name, _ in candidate.request.optimizations}
    assert {"lora", "checkpointing", "chunked_cross_entropy"} <= plain and "eight_bit_states" not in plain
    assert {candidate.keeps for candidate in space.candidates.values()} == {"outputs"}
    of_class = {candidate.keeps for candidate in space_of(lora, "training").candidates.values()}
    assert of_class == {"outputs", "training"}
    quantized = space_of(replace(INFERENCE, optimizations=(cast,)), "outputs")
    assert len(quantized.candidates) > 1
    assert {candidate.keeps for candidate in quantized.candidates.values()} == {"outputs"}


@pytest.mark.slow
def test_a_space_that_is_too_large_to_look_at_is_drawn_from_and_begins_as_ever(monkeypatch) -> None:
    whole = training_space("nothing")
    assert len(whole.candidates) > 600
    monkeypatch.setattr(fit_space, "MOST_CANDIDATES", 600)
    drawn = space_of(TRAINING, "nothing")
    assert len(drawn.candidates) == 600
    assert list(drawn.first()) == list(whole.first())
    again = space_of(TRAINING, "nothing")
    assert list(again.candidates) == list(drawn.candidates)
    for candidate in drawn.candidates.values():
        plan_of(candidate.request)


def test_those_that_differ_in_the_allocators_settings_alone() -> None:
    space = space_of(Request("feed_forward", {}), "outputs")
    at = space.names.index("allocator_settings")
    for place in list(space.candidates)[:50]:
        (other,) = space.with_other_settings(place)
        assert {dimension for dimension, (one, two) in enumerate(zip(place, other, strict=True)) if one != two} == {at}
        assert space.with_other_settings(other) == [place]


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
        *("4 shard, offloaded to the CPU", "2 data x 2 shard, offloaded to the CPU"),
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


@pytest.mark.slow
def test_the_way_that_was_asked_for_has_a_name_among_the_others() -> None:
    space, work = searched(), Cost(0, 0, 0, None, None)
    ways = [Trial(candidate, Prediction(), work) for candidate in space.candidates.values()]
    alone = [trial_label(way) for way in ways if not way.candidate.request.optimizations]
    assert {"8 shard + adamw", "8 shard + adamw-fused", "8 tensor + adamw"} <= set(alone)
    assert trial_label(replace(ways[0], candidate=Candidate(Request("llama", optimizer="adamw"), "outputs"))) == "adamw"


def test_what_is_sent_and_waited_for_costs_time() -> None:
    speed = speed_of("NVIDIA A100 80GB")
    one = cost_of(Work(0, 0, 0, link_bytes=300_000_000_000), speed)
    other = cost_of(Work(0, 0, 0, link_bytes=300_000_000_000, leaves_machine=True, stretch=1.5), speed)
    assert (one.seconds_low, other.seconds_low) == (1.0, 1.5)
    assert one.seconds_high and other.seconds_high and other.seconds_high == 1.5 * 6 * one.seconds_high


SPEED = CardSpeed(half_tflops=100, single_tflops=20, memory_gb_per_second=1000, host_gb_per_second=10)


def test_at_best_the_slowest_of_the_three_decides_and_at_worst_they_come_one_after_the_other() -> None:
    tera, giga = 10**12, 10**9
    works = [Work(200 * tera, 0, 0), Work(0, 500 * giga, 0), Work(0, 0, 30 * giga), Work(200 * tera, giga, 30 * giga)]
    assert [cost_of(work, SPEED, "bf16").seconds_low for work in works] == pytest.approx([2.0, 0.5, 3.0, 3.0])
    cost = cost_of(Work(30 * 10**12, 500 * 10**9, 4 * 10**9), SPEED, "bf16")
    assert cost.seconds_high == pytest.approx(1.0 + 1.0 + 1.0)
    assert cost.seconds_low is not None
    assert cost.seconds_low < cost.rank < cost.seconds_high


def test_an_unknown_number_format_widens_the_interval_and_an_unknown_card_gets_no_seconds_and_still_an_order() -> None:
    half, single, either = (cost_of(Work(10**12, 0, 0), SPEED, dtype) for dtype in ("bf16", "fp32", ""))
    assert (either.seconds_low, either.seconds_high) == (half.seconds_low, single.seconds_high)
    small, large = (cost_of(Work(flops, 10, 0), None) for flops in (100, 200))
    assert small.seconds_low is small.seconds_high is None
    assert small.rank < large.rank


def test_every_speed_is_of_a_card_that_is_known() -> None:
    assert set(cost._SPEEDS) <= {card.name for card in CARDS}
    for speed in cost._SPEEDS.values():
        assert speed.half_tflops > speed.single_tflops > 1
        assert speed.memory_gb_per_second > speed.host_gb_per_second
