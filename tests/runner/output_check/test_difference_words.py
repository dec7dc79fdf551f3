"""Arithmetic differences and places read."""

from __future__ import annotations

import math

import pytest

from memviz.runner.output_check.verdict import layer_title, scientific, share_text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.34e-7, "1.3e-07"), (0.0, "0"), (-2.5, "-2.5e+00"), (math.inf, "infinite"), (math.nan, "not a number")],
)
def test_scientific(value, text):
    assert scientific(value) == text


def test_what_is_not_known_is_a_dash():
    assert scientific(None) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.394, "139 %"), (0.0275, "2.8 %"), (0.0005, "5.0e-04"), (2.1e-7, "2.1e-07"), (0, "0"), (math.inf, "infinite")],
)
def test_relative_differences_are_percentages_where_those_can_be_read(value, text):
    assert share_text(value) == text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "the output"),
        ("0", "layer 0"),
        ("layers.0", "layer 0"),
        ("transformer.h.11", "layer 11"),
        ("transformer_blocks.3", "transformer block 3"),
        ("transformer_blocks.3.ff", "ff of transformer block 3"),
        ("model.layers.1.mlp", "mlp of layer 1"),
        ("encoder.attn1", "encoder.attn1"),
    ],
)
def test_a_place_is_named_as_people_name_it(path, words):
    assert layer_title(path) == words
