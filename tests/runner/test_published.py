"""Outputs of split feed-forwards against whole ones, on layers small enough for a test."""

from functools import partial

import pytest
import torch

from memviz.runner import published
from memviz.runner.published import PublishedRow, Seed
from memviz.runner.workloads.layer_stacks import ACTIVATIONS, FeedForwardStack


def test_only_the_gated_ones_were_split_wrongly_and_split_right_they_are_as_equal_as_the_rest(monkeypatch):
    monkeypatch.setattr(published, "FeedForwardStack", partial(FeedForwardStack, dim=64))
    found = published.split_differences(ACTIVATIONS, 4)
    wrong = {name for name, each in found.items() if each["as first published"][0] > 1e-4}
    assert wrong == {"geglu", "swiglu"}
    assert all(each["split"][0] < 1e-6 and each["split"][1] <= each["split"][0] for each in found.values())


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_the_same_numbers_come_every_time(monkeypatch, activation):
    monkeypatch.setattr(published, "FeedForwardStack", partial(FeedForwardStack, dim=64))
    assert published.split_differences((activation,), 4) == published.split_differences((activation,), 4)


def test_one_layer_is_summed_one_product_after_the_other(monkeypatch):
    """In sequence a one is lost next to 2**24, which blockwise sums keep; and published rounding is reproduced."""
    weight = torch.tensor([[2.0**24, 1.0, -(2.0**24)], [2.0**24, -(2.0**24), 1.0]])
    assert published._in_turn(torch.ones(1, 3), weight).tolist() == [[0.0, 1.0]]
    monkeypatch.setattr(published, "FeedForwardStack", partial(FeedForwardStack, dim=256))
    absmax, absmean = published.one_layer_difference(4)
    # The published layer sums 16 times as many products, and so rounds four times as much, at equal outputs.
    assert absmean == pytest.approx(3.3257e-07 / 4, rel=0.25)
    assert absmean < absmax < 6.7353e-06


def test_a_percentage_stands_only_where_it_is_the_same_model():
    seed = Seed("one", "", "", "", lambda tell: iter(()))
    alike, other = (PublishedRow("case", "loss", 10.0, 5.0, same_model=same) for same in (True, False))
    assert [seed.as_json(each)["difference_percent"] for each in (alike, other)] == [-50.0, None]
