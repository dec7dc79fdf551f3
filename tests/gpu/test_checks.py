"""Of the questions put to a card, those parts that can be tried without one."""

from __future__ import annotations

import pytest

from memviz.runner.pretend.cards import CARDS, card_named
from memviz.runner.pretend.device import PretendedDevice
from tests.gpu.check import ABOUT, asked
from tests.gpu.checks.card import known_as
from tests.gpu.checks.operators import MADE, _rise
from tests.gpu.parts import PARTS, part_named


@pytest.mark.parametrize(
    ("said", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB"),
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100 40GB"),
        ("NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA L4", "NVIDIA L4"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA Nothing", None),
    ],
)
def test_a_card_is_known_by_what_its_driver_says(said, card):
    found = known_as(said)
    assert (None if found is None else found.name) == card


def test_every_card_of_ours_is_known_by_its_own_name():
    assert [known_as(each.name) for each in CARDS] == list(CARDS)


@pytest.mark.parametrize("name", MADE)
def test_each_operator_can_be_predicted(name):
    assert _rise(PretendedDevice(card_named("A100 80GB")), MADE[name]) >= 0


def test_the_rise_is_that_of_the_second_time_alone():
    """16 MiB of heads, in and out: gradients of three, the result, its gradient, and what the kernel keeps by row."""
    mib = 1 << 20
    one = 2 * 16 * 2048 * 64 * 2
    rise = _rise(PretendedDevice(card_named("H100"), release=(2, 11)), MADE["attention backward"])
    assert 5 * one <= rise <= 5 * one + mib


def test_an_answer_is_right_where_it_is_the_expected_one():
    assert [asked("a", 1, each)["ok"] for each in (1, 2)] == [True, False]
    assert asked("a", "< 2", 1.5, ok=True)["ok"]


def test_every_part_and_every_question_has_its_function():
    for name in PARTS:
        part = part_named(name)
        assert callable(part.cases) and callable(part.prepare) and callable(part.run)
    assert all(
        callable(getattr(__import__(module, fromlist=["x"]), name.replace("-", "_"))) for name, module in ABOUT.items()
    )
