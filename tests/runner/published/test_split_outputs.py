"""Outputs of split feed-forwards against whole ones, on layers small enough for a test."""

from __future__ import annotations

from functools import partial

import pytest

from memviz.runner.published import split_outputs
from memviz.runner.workloads.feed_forward import ACTIVATIONS, FeedForwardStack


def test_only_the_gated_ones_were_split_wrongly_and_split_right_they_are_as_equal_as_the_rest(monkeypatch):
    monkeypatch.setattr(split_outputs, "FeedForwardStack", partial(FeedForwardStack, dim=64))
    found = split_outputs.differences(ACTIVATIONS, 4)
    wrong = {name for name, each in found.items() if each["as first published"][0] > 1e-4}
    assert wrong == {"geglu", "swiglu"}
    assert all(each["split"][0] < 1e-6 and each["split"][1] <= each["split"][0] for each in found.values())
    assert all(0 < each["one layer"][0] < 1e-5 for each in found.values())


@pytest.mark.parametrize("activation", ["gelu", "geglu"])
def test_the_same_numbers_come_every_time(monkeypatch, activation):
    monkeypatch.setattr(split_outputs, "FeedForwardStack", partial(FeedForwardStack, dim=64))
    assert split_outputs.differences((activation,), 4) == split_outputs.differences((activation,), 4)
