"""Every mistake is detected, however it is hidden; correct variations are not reported."""

from typing import Any

import pytest
import torch

from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.verdict import Claim, Numerics
from optimizations import apply_all
from optimizations.attention_backend import AttentionBackend
from optimizations.checkpointing import Checkpointing
from optimizations.flat_gradients import FlatGradients
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward
from tests.runner.output_check.wrong import (
    RIGHT_CASTING,
    RIGHT_SPLITS,
    WRONG_ATTENTION,
    WRONG_CASTING,
    WRONG_CHECKPOINTING,
    WRONG_GRADIENTS,
    WRONG_RANDOM,
    WRONG_SPLITS,
    Apply,
    attention,
    cast_once,
    inputs,
    loss,
    model,
)

pytestmark = pytest.mark.slow

P = 0.2
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def compared(
    apply: Apply,
    claim: Claim,
    *,
    training: bool = True,
    p: float = 0.0,
    dtype: torch.dtype = torch.float32,
    micro_batches: int = 1,
) -> Numerics:
    batches = inputs(micro_batches)
    build = model(p, dtype, matrices_rest=claim == "lossy")
    return compare_outputs(build, batches, apply, loss=loss, training=training, claim=claim, steps=3)


@pytest.mark.parametrize(("p", "dtype"), [(0.0, torch.bfloat16), (P, torch.float32)], ids=str)
@pytest.mark.parametrize("right", RIGHT_SPLITS)
def test_a_right_split_in_any_order_is_rounding(right, p, dtype):
    assert compared(RIGHT_SPLITS[right], "rounding", p=p, dtype=dtype).verdict.ok is True


@pytest.mark.parametrize(("factor", "ok"), [(1.0, True), (0.5, False), (0.25, False), (0.0, False)])
def test_attention_with_another_dropout_is_told_from_one_by_hand(factor, ok):
    assert compared(attention(p=lambda p: factor * p), "rounding", p=P).verdict.ok is ok


def mistakes(wrong: dict[str, Apply], claim: Claim, **how: Any) -> list[Any]:
    words = " ".join([claim, *(f"{name}={value}" for name, value in how.items())])
    return [pytest.param(apply, claim, how, id=f"{name}, {words}") for name, apply in wrong.items()]


# What is computed in bf16 anyway is no mistake there.
IN_BF16 = {name: apply for name, apply in WRONG_SPLITS.items() if name != "inner values in bf16"}
MISTAKES = [
    *mistakes(WRONG_SPLITS, "rounding"),
    *mistakes(IN_BF16, "rounding", dtype=torch.bfloat16),
    *mistakes(WRONG_ATTENTION, "rounding"),
    *mistakes(WRONG_CHECKPOINTING, "bitwise"),
    *mistakes(WRONG_RANDOM, "bitwise", p=P),
    *mistakes(WRONG_GRADIENTS, "bitwise", micro_batches=4),
    *mistakes(WRONG_GRADIENTS, "bitwise", micro_batches=4, dtype=torch.bfloat16),
]


@pytest.mark.parametrize(("apply", "claim", "how"), MISTAKES)
def test_a_mistake_breaks_the_claim(apply, claim, how):
    assert compared(apply, claim, **how).verdict.ok is False


DROPS = ("p / 2", "no dropout")
"""Mistakes in dropout, which has no effect outside training."""
CASTS = [(each, training) for each in WRONG_CASTING for training in (True, False) if training or each not in DROPS]


@pytest.mark.parametrize(("wrong", "training"), CASTS)
def test_what_storing_does_not_explain_is_found_beside_it(wrong, training):
    verdict = compared(WRONG_CASTING[wrong], "lossy", p=P, training=training).verdict
    assert verdict.ok is False
    assert "weights rounded to float8_e4m3fn. This is a bug, not rounding." in verdict.words


@TYPES
def test_a_casting_that_never_reads_its_weights_again_is_found_once_they_have_changed(dtype):
    verdict = compared(cast_once, "lossy", training=False, dtype=dtype).verdict
    assert verdict.ok is False
    assert "after the weights changed" in verdict.words and "stale values are in it" in verdict.words


@TYPES
@pytest.mark.parametrize("right", RIGHT_CASTING)
def test_what_storing_explains_is_expected(right, dtype):
    verdict = compared(RIGHT_CASTING[right], "lossy", p=P, training=False, dtype=dtype).verdict
    assert verdict.ok and verdict.words.startswith("expected error for float8_e4m3fn")


OURS = {
    "attention": AttentionBackend("math"),
    "split": SplitFeedForward(),
    "split as published": SplitFeedForward(as_published=True),
    "checkpointing": Checkpointing(),
    "flat gradients": FlatGradients(micro_batches=4),
}


@TYPES
@pytest.mark.parametrize("ours", OURS)
def test_ours_keep_what_they_claim_with_tied_weights_and_dropout(ours, dtype):
    change = OURS[ours]
    micro_batches = getattr(change, "micro_batches", 1)
    assert compared(change.apply, change.claim, p=P, dtype=dtype, micro_batches=micro_batches).verdict.ok is True


@TYPES
@pytest.mark.parametrize("compute", ["own", "fp32"])
@pytest.mark.parametrize("alone", [True, False])
def test_our_casting_loses_what_storing_explains(alone, compute, dtype):
    changes = [LayerwiseCasting(compute=compute), *([] if alone else [SplitFeedForward(), AttentionBackend("math")])]
    found = compared(lambda model: apply_all(model, changes), "lossy", training=False, dtype=dtype)
    assert (found.verdict.ok, found.stored) == (True, "float8_e4m3fn")
