"""Small spaces whole, of large ones a quarter that finds nearly all of the front."""

from __future__ import annotations

import random
from itertools import product

import pytest

from memviz.runner.fit.guesses import Guesses
from memviz.runner.fit.search import trials_of
from tests.runner.fit.ways import hypervolume

SIZES = (4, 6, 3, 2, 4)


class MadeUpSpace:
    """Of 576 combinations, some of which cannot run, with costs and peaks as toggles have them: shares that multiply,
    and some that help only where another is on."""

    def __init__(self, seed: int) -> None:
        luck = random.Random(seed)
        self.names = tuple("abcde")
        self.options = tuple(tuple(range(size)) for size in SIZES)
        self.saves = [[1.0, *(luck.uniform(0.55, 1.0) for _ in range(size - 1))] for size in SIZES]
        self.costs = [[0.0, *(luck.uniform(0.0, 0.4) for _ in range(size - 1))] for size in SIZES]
        self.lonely = luck.randrange(5)
        cannot = {place for place in self.all() if luck.random() < 0.1 and any(place)}
        self.candidates = {place: None for place in self.all() if place not in cannot}

    def all(self) -> list[tuple[int, ...]]:
        return list(product(*(range(size) for size in SIZES)))

    def value(self, place: tuple[int, ...]) -> tuple[float, float]:
        peak, cost = 0.1, 1.0
        share = 1.0
        for dimension, number in enumerate(place):
            cost += self.costs[dimension][number]
            if dimension != self.lonely or sum(map(bool, place)) > 1:
                share *= self.saves[dimension][number]
        return cost, peak + share

    def first(self) -> list[tuple[int, ...]]:
        alone = [tuple(n if d == e else 0 for e in range(5)) for d, size in enumerate(SIZES) for n in range(1, size)]
        return [place for place in [(0,) * 5, *alone, (1,) * 5] if place in self.candidates]


def tried(space: MadeUpSpace, trials: int) -> list[tuple[float, float]]:
    guesses, given, values = Guesses(SIZES, list(space.candidates), space.first()), set[tuple[int, ...]](), []
    for _ in range(trials):
        place = guesses.next()
        assert place in space.candidates
        assert place not in given
        given.add(place)
        values.append(space.value(place))
        guesses.learn(place, values[-1])
    return values


@pytest.mark.parametrize("seed", range(20))
def test_a_quarter_of_a_large_space_finds_the_front(seed: int) -> None:
    space = MadeUpSpace(seed)
    worst = (3.5, 1.2)
    best = hypervolume((space.value(place) for place in space.candidates), worst)
    found = hypervolume(tried(space, trials_of(len(space.candidates))), worst)
    assert found >= 0.99 * best


def test_what_cannot_run_is_not_tried_again_and_all_is_given_in_the_end() -> None:
    space = MadeUpSpace(0)
    guesses = Guesses(SIZES, list(space.candidates))
    given = []
    while (place := guesses.next()) is not None:
        given.append(place)
        guesses.learn(place, None if len(given) % 3 == 0 else space.value(place))
    assert sorted(given) == sorted(space.candidates)


def test_a_small_space_is_tried_whole_and_a_large_one_in_part() -> None:
    assert [trials_of(size) for size in (1, 300, 400, 500, 1000, 10**6)] == [1, 300, 125, 125, 250, 300]
