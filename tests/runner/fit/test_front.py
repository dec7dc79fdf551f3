"""What no other way is better than."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from memviz.runner.fit.fit import FitAnswer, changes_of, short_label, way_label
from memviz.runner.fit.search import Searched, cheapest_that_fits, pareto_front
from memviz.runner.fit.space import Candidate
from memviz.runner.request import Request
from tests.runner.fit.ways import hypervolume, way

POINTS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=30)


def test_cheapest_first_each_dearer_and_smaller() -> None:
    ways = [way(3, 10), way(1, 30), way(2, 30, "checkpointing"), way(2, 20, "split_feed_forward"), way(4, 12)]
    assert [(each.cost.rank, each.peak_reserved_bytes) for each in pareto_front(ways)] == [(1, 30), (2, 20), (3, 10)]


def test_of_equal_ways_the_one_with_the_fewest_changes() -> None:
    ways = [way(1, 30, "checkpointing", "allocator_settings"), way(1, 30), way(1, 30, "checkpointing")]
    assert [each.candidate.request.optimizations for each in pareto_front(ways)] == [()]
    chosen = cheapest_that_fits(ways)
    assert chosen is not None
    assert chosen.candidate.request.optimizations == ()


def test_what_fits_as_it_is_stays_as_it_is_where_a_change_costs_nothing() -> None:
    """Such as settings of the allocator, which are on the front all the same."""
    ways = [way(1, 20, "allocator_settings"), way(1, 30), way(2, 10, "checkpointing")]
    assert cheapest_that_fits(ways) == ways[1]
    assert pareto_front(ways) == (ways[0], ways[2])


def test_the_cheapest_that_fits_is_not_the_smallest() -> None:
    ways = [way(1, 30, fits=False), way(2, 20), way(3, 10)]
    assert cheapest_that_fits(ways) == ways[1]
    assert cheapest_that_fits(ways[:1]) is None


@given(POINTS)
def test_every_way_is_on_the_front_or_no_better_than_one_that_is(points: list[tuple[int, int]]) -> None:
    front = pareto_front([way(cost, peak) for cost, peak in points])
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
    assert short(*names, optimizer="adamw-fused") == "chunked_cross_entropy + checkpointing and 2 more"


def test_another_optimizer_or_dtype_is_said() -> None:
    asked = Request("feed_forward", {"mode": "training"}, optimizer="adamw")
    other = replace(asked, optimizer="sgd", settings={"mode": "training", "dtype": "bf16"})
    changed = replace(way(1, 1), candidate=Candidate(other, "training", asked=asked))
    assert list(changes_of(changed)) == ["optimizer sgd instead of adamw", "dtype bf16 instead of fp32"]
    assert way_label(changed) == "sgd + bf16"
    assert list(changes_of(replace(changed, candidate=Candidate(asked, "outputs", asked=asked)))) == []


def test_what_was_chosen_is_in_the_table_though_another_of_its_cost_takes_less() -> None:
    plain, less = way(2, 20), way(2, 10, "split_feed_forward", "allocator_settings")
    answer = FitAnswer(plain.candidate.request, "outputs", 24, Searched((plain, less), 2, 2), None)
    assert answer.chosen is plain and plain not in answer.front("outputs")
    assert answer.listed == (plain, less)
