"""Seconds as an interval, from the work and the card."""

import pytest

from memviz.predictor.cards import CARDS
from memviz.runner.fit import cost
from memviz.runner.fit.cost import CardSpeed, Work, cost_of

SPEED = CardSpeed(half_tflops=100, single_tflops=20, memory_gb_per_second=1000, host_gb_per_second=10)


@pytest.mark.parametrize(
    ("work", "low"),
    [
        (Work(200 * 10**12, 0, 0), 2.0),
        (Work(0, 500 * 10**9, 0), 0.5),
        (Work(0, 0, 30 * 10**9), 3.0),
        (Work(200 * 10**12, 500 * 10**9, 30 * 10**9), 3.0),
    ],
)
def test_at_best_the_slowest_of_the_three_decides(work: Work, low: float) -> None:
    assert cost_of(work, SPEED, "bf16").seconds_low == pytest.approx(low)


def test_at_worst_they_come_one_after_the_other_and_none_at_its_best() -> None:
    cost = cost_of(Work(30 * 10**12, 500 * 10**9, 4 * 10**9), SPEED, "bf16")
    assert cost.seconds_high == pytest.approx(1.0 + 1.0 + 1.0)
    assert cost.seconds_low is not None
    assert cost.seconds_low < cost.rank < cost.seconds_high


def test_a_number_format_that_nobody_knows_widens_the_interval() -> None:
    half, single, either = (cost_of(Work(10**12, 0, 0), SPEED, dtype) for dtype in ("bf16", "fp32", ""))
    assert (either.seconds_low, either.seconds_high) == (half.seconds_low, single.seconds_high)


def test_a_card_whose_limits_are_not_known_gets_no_seconds_and_still_an_order() -> None:
    small, large = (cost_of(Work(flops, 10, 0), None) for flops in (100, 200))
    assert small.seconds_low is small.seconds_high is None
    assert small.rank < large.rank


def test_every_speed_is_of_a_card_that_is_known() -> None:
    assert set(cost._SPEEDS) <= {card.name for card in CARDS}
    for speed in cost._SPEEDS.values():
        assert speed.half_tflops > speed.single_tflops > 1
        assert speed.memory_gb_per_second > speed.host_gb_per_second
