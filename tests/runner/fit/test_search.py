"""The search for configurations, and its Pareto front."""

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.results.fit import cheapest_fitting, front_of_trials
from memviz.runner.fit.fit import FitAnswer, changes_of, short_label, trial_json, trial_label
from memviz.runner.fit.predictions import Ask, Hear, KeptPredictions, Others, Prediction, Predictor
from memviz.runner.fit.search import MOST_ALL, Guesses, Searched, Trial, search, trials_of
from memviz.runner.fit.space import Candidate, space_of
from memviz.runner.request import Request
from tests.runner.fit.ways import hypervolume, way

SIZES = (4, 6, 3, 2, 4)


class MadeUpSpace:
    """A search space of 576 combinations, some invalid: savings multiply, and some options help only with another."""

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


class Teller:
    """A Predictor stand-in that answers at once, in another order each time."""

    def __init__(self, kept: KeptPredictions, luck: int) -> None:
        self.kept, self.made, self._luck = kept, 0, random.Random(luck)

    def all(self, ask: Ask, hear: Hear, others: Others, *, until: float | None = None) -> None:
        pending: list[Request] = []
        while (request := ask()) is not None or pending:
            pending += [request] if request is not None else []
            if request is None or len(pending) == 3:
                heard = pending.pop(self._luck.randrange(len(pending)))
                hear(heard, self.one(heard))

    def one(self, request: Request) -> Prediction:
        known = self.kept.get(request)
        if known is None:
            self.made += 1
            names = repr(request.optimizations).encode()
            known = Prediction(peak_reserved_bytes=1 + crc32(names) % 1000, flops=1 + crc32(names[::-1]) % 1000)
            self.kept.add(request, known)
        return known


@pytest.mark.slow
def test_the_same_search_asked_again_predicts_nothing_and_finds_the_same(tmp_path: Path) -> None:
    space = space_of(Request("gpt2", {"layers": "2"}, optimizer="adamw"), "outputs")
    assert len(space.candidates) > MOST_ALL
    found, made = [], []
    for luck in (1, 2):
        teller = Teller(KeptPredictions(tmp_path), luck)
        searched = search(space, cast(Predictor, teller))
        found.append({repr(way.candidate.request) for way in searched.ways})
        made.append(teller.made)
    assert found[0] == found[1]
    assert made == [len(found[0]), 0]
    assert searched.planned == searched.tried
    assert KeptPredictions(tmp_path).order_of("another search") == ()


def test_a_search_ends_once_many_tries_gain_nothing_but_makes_those_that_were_asked_for(tmp_path: Path) -> None:
    class Plain(Teller):
        def one(self, request: Request) -> Prediction:
            changes = len(request.optimizations)
            return super().one(request) if changes < 2 else Prediction(peak_reserved_bytes=2000, flops=2000 + changes)

    space = space_of(Request("gpt2", {"layers": "2"}, optimizer="adamw"), "outputs")
    single = sum(len(options) - 1 for options in space.options)
    searched = search(space, cast(Predictor, Plain(KeptPredictions(tmp_path), 1)))
    assert searched.is_settled and not searched.is_stopped
    assert single < searched.tried == searched.planned < trials_of(len(space.candidates))
    whole = search(space, cast(Predictor, Plain(KeptPredictions(tmp_path), 1)), tries=trials_of(len(space.candidates)))
    assert not whole.is_settled and whole.tried == whole.planned == trials_of(len(space.candidates))


@pytest.mark.slow
def test_what_is_refused_is_kept_apart_the_request_first_and_does_not_count_as_a_try(tmp_path: Path) -> None:
    class Refusing(Teller):
        def one(self, request: Request) -> Prediction:
            is_refused = len(request.optimizations) in (0, 2)
            return Prediction(refused=f"Not {request.optimizations}.") if is_refused else super().one(request)

    space = space_of(Request("gpt2", {"layers": "2"}, optimizer="adamw"), "outputs")
    searched = search(space, cast(Predictor, Refusing(KeptPredictions(tmp_path), 1)), tries=40)
    assert searched.refused[0] == "Not ()." and len(searched.ways) == 40
    assert searched.tried == searched.planned == 40 + len(searched.refused)


def answer_of(*ways: Trial) -> FitAnswer:
    return FitAnswer(Request("feed_forward"), "nothing", 24, Searched(ways, len(ways), len(ways)), None)


def test_what_fits_is_chosen_before_what_is_close_at_the_same_cost() -> None:
    changed = "split_feed_forward"
    close, fits, dearer = way(1.0, 5), way(1.0, 6, changed), way(1.1, 4, changed)
    close = replace(close, prediction=replace(close.prediction, fit="close"))
    assert answer_of(close, fits, dearer).chosen is fits
    assert answer_of(close, dearer).chosen is close
    ways = [trial_json(each) for each in (close, fits, dearer)]
    assert (cheapest_fitting(ways), cheapest_fitting([ways[0], ways[2]])) == (1, 0)


def test_the_strictest_class_in_which_any_fits_leads_on() -> None:
    ways = way(3, 9, fits=False), way(2, 7, keeps="training"), way(1, 5, keeps="nothing"), way(1, 8, keeps="training")
    answer, drawn = answer_of(*ways), front_of_trials([trial_json(each) for each in ways])
    assert (answer.chosen, answer.shown, answer.front("training")) == (ways[3], "training", (ways[3], ways[1]))
    assert (drawn.keeps, drawn.numbers) == ("training", (3, 1))
    assert (answer_of(ways[0]).chosen, answer_of(ways[0]).shown) == (None, "outputs")


def test_an_option_without_effect_is_predicted_once_and_named_all_the_same(tmp_path: Path) -> None:
    """Here the flash kernel, which is what PyTorch chooses anyway."""

    class Attentive(Teller):
        def one(self, request: Request) -> Prediction:
            self.made += 1
            others = [(name, knobs) for name, knobs in request.optimizations if knobs.get("backend") != "flash"]
            state = crc32(repr(others).encode())
            return Prediction(1 + state % 1000, 1 + state % 1000, flops=1 + state % 997, requests=str(state))

    space = space_of(Request("flux"), "outputs")
    assert len(space.candidates) <= MOST_ALL
    teller = Attentive(KeptPredictions(tmp_path), 1)
    searched = search(space, cast(Predictor, teller))
    assert len(searched.ways) == searched.tried == len(space.candidates)
    assert teller.made < 0.75 * len(space.candidates)
    for trial in searched.ways:
        expected = teller.one(trial.candidate.request)
        assert trial.prediction.peak_reserved_bytes == expected.peak_reserved_bytes
        knobs = dict(trial.candidate.request.optimizations).get("attention_backend", {})
        if knobs.get("backend") == "flash" and trial.prediction.command:
            assert "attention_backend:backend=flash" in trial.prediction.command
            assert "flash" in trial.prediction.code
    assert any(trial.prediction.command for trial in searched.ways)
    one, other = (Prediction(requests="the same", flops=flops) for flops in (1, 2))
    assert one.is_twin(one) and not one.is_twin(other)


def test_what_is_replayed_with_another_is_tried_with_it(tmp_path: Path) -> None:
    asked: list[Request] = []

    class Replaying(Teller):
        def all(self, ask: Ask, hear: Hear, others: Others, *, until: float | None = None) -> None:
            while (request := ask()) is not None:
                asked.append(request)
                for one in (request, *others(request)):
                    self.one(one)
                hear(request, self.one(request))

    space = space_of(Request("flux"), "outputs")
    teller = Replaying(KeptPredictions(tmp_path), 1)
    searched = search(space, cast(Predictor, teller))
    assert searched.tried == len(space.candidates) == teller.made == 2 * len(asked)


POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30)


SPLIT, CHECKPOINTED, SETTINGS = "split_feed_forward", "checkpointing", "allocator_settings"


@pytest.mark.parametrize(
    ("ways", "chosen", "front"),
    [
        # Cheapest first, each next one dearer and smaller.
        ([way(3, 10), way(1, 30), way(2, 30, CHECKPOINTED), way(2, 20, SPLIT), way(4, 12)], 1, (1, 3, 0)),
        # Of equal ways the one with the fewest changes.
        ([way(1, 30, CHECKPOINTED, SETTINGS), way(1, 30), way(1, 30, CHECKPOINTED)], 1, (1,)),
        # What fits as it is stays as it is where a change costs nothing, and the change is on the front all the same.
        ([way(1, 20, SETTINGS), way(1, 30), way(2, 10, CHECKPOINTED)], 1, (0, 2)),
        # The cheapest that fits is not the smallest.
        ([way(1, 30, fits=False), way(2, 20), way(3, 10)], 1, (0, 1, 2)),
        ([way(1, 30, fits=False)], None, (0,)),
    ],
)
def test_the_way_that_is_chosen_and_the_front(ways: list[Trial], chosen: int | None, front: tuple[int, ...]) -> None:
    answer = answer_of(*ways)
    assert answer.chosen == (None if chosen is None else ways[chosen])
    assert answer.front("outputs") == tuple(ways[number] for number in front)


def test_what_needs_more_host_memory_than_there_is_does_not_fit() -> None:
    request = Request("feed_forward", host_memory="8GiB")
    cheap, dear = (replace(way(seconds, 5), candidate=Candidate(request, "outputs")) for seconds in (1.0, 2.0))
    cheap = replace(cheap, prediction=replace(cheap.prediction, host_peak_bytes=9 << 30))
    dear = replace(dear, prediction=replace(dear.prediction, host_peak_bytes=8 << 30))
    assert answer_of(cheap, dear).chosen == dear and cheap.fits_host is False


@given(POINTS)
def test_every_way_is_on_the_front_or_no_better_than_one_that_is(points: list[tuple[int, int]]) -> None:
    front = answer_of(*(way(cost, peak) for cost, peak in points)).front("outputs")
    for cost, peak in points:
        assert any(each.cost.rank <= cost and each.peak_reserved_bytes <= peak for each in front)


@given(POINTS)
def test_the_area_under_a_front_is_that_of_all_cells_it_dominates(points: list[tuple[int, int]]) -> None:
    cells = sum(any(x <= i and y <= j for x, y in points) for i in range(10) for j in range(10))
    assert hypervolume(points, (10, 10)) == cells


def test_a_headline_names_two_optimizations_that_were_added_and_counts_the_others() -> None:
    asked = Request("gpt2", {"layers": "1"}, (("lora", {}),), optimizer="adamw")

    def short(*names: str, **changed: Any) -> str:
        on = (*asked.optimizations, *((name, {}) for name in names))
        candidate = Candidate(replace(asked, optimizations=on, **changed), "outputs", asked=asked)
        return short_label(replace(way(1, 1), candidate=candidate))

    assert short() == "adamw + lora"
    assert short("checkpointing") == "checkpointing"
    assert short("checkpointing", optimizer="sgd") == "checkpointing + sgd"
    # Settings of the allocator are the last to be named.
    names = ("allocator_settings", "checkpointing", "chunked_cross_entropy")
    assert short(*names) == "chunked_cross_entropy + checkpointing and 1 more"
    # Another optimizer is named beside them.
    assert short(*names, optimizer="adamw-fused") == "chunked_cross_entropy + checkpointing + adamw-fused and 1 more"


def test_another_optimizer_or_dtype_is_said() -> None:
    asked = Request("feed_forward", {"mode": "training"}, optimizer="adamw")
    other = replace(asked, optimizer="sgd", settings={"mode": "training", "dtype": "bf16"})
    changed = replace(way(1, 1), candidate=Candidate(other, "training", asked=asked))
    assert list(changes_of(changed)) == ["optimizer sgd instead of adamw", "dtype bf16 instead of fp32"]
    assert trial_label(changed) == "sgd + bf16"
    assert list(changes_of(replace(changed, candidate=Candidate(asked, "outputs", asked=asked)))) == []


def test_what_was_chosen_is_in_the_table_though_another_of_its_cost_takes_less() -> None:
    plain, less = way(2, 20), way(2, 10, "split_feed_forward", "allocator_settings")
    answer = answer_of(plain, less)
    assert answer.chosen is plain and plain not in answer.front("outputs")
    assert answer.listed == (plain, less)
