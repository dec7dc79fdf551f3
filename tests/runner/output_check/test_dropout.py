"""Wrong dropouts behind claims that say nothing of random numbers, and right ones that draw in another order."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.model_runs import Dropped, dropout_as_factor, watched_dropout
from memviz.runner.output_check.verdict import Claim, Numerics
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward
from tests.runner.output_check.models import FeedForward, Stack, stack, tokens, with_forward

SPLITS = 4
P = 0.2
Drop = Callable[[FeedForward, Tensor], Tensor]
Undo = Callable[[], None]

WRONG: dict[str, Drop] = {
    "p / splits": lambda ff, x: F.dropout(x, P / SPLITS, ff.training),
    "p of its complement": lambda ff, x: F.dropout(x, 1 - P, ff.training),
    "left out": lambda ff, x: x,
    "twice": lambda ff, x: ff.net[1](ff.net[1](x)),
    "also in eval mode": lambda ff, x: F.dropout(x, P, True),
    "without its scale": lambda ff, x: ff.net[1](x) * (1 - P),
}


def split(drop: Drop) -> Callable[[nn.Module], Undo]:
    """In slices of the inner channels, with this dropout on each."""

    def forward(ff: FeedForward, x: Tensor) -> Tensor:
        slices = zip(ff.net[0](x).chunk(SPLITS, dim=-1), ff.net[2].weight.chunk(SPLITS, dim=1), strict=True)
        return sum(F.linear(drop(ff, wide), columns) for wide, columns in slices) + ff.net[2].bias

    return with_forward(forward)


def compared(apply: Callable[[nn.Module], Undo], claim: Claim, *, training: bool = True) -> Numerics:
    build = stack(count=2, residual=True, dropout=P)
    return compare_outputs(build, tokens(), apply, training=training, claim=claim, steps=2)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_dropout_is_no_rounding(wrong):
    verdict = compared(split(WRONG[wrong]), "rounding", training=wrong != "also in eval mode").verdict
    assert (verdict.ok, verdict.place) == (False, "layers.0.ff")
    assert verdict.words.endswith("This is a bug, not rounding.")


def test_the_right_one_drawn_in_another_order_is():
    for apply in (split(lambda ff, x: ff.net[1](x)), SplitFeedForward(splits=SPLITS).apply):
        found = compared(apply, "rounding")
        assert found.verdict.words == "equal up to rounding, as claimed"
        assert found.notes == (
            "Compared with dropout as a factor of 1 - p: a change may draw other random numbers and be right.",
        )


def frozen_where_it_is_cast() -> nn.Module:
    model = stack(count=2, residual=True, dropout=P)()
    for layer in model.layers:
        layer.ff.net[0].requires_grad_(False)
    return model


def test_where_the_same_random_numbers_are_drawn_they_are_compared():
    """Casting draws as the model did, so dropout stays what it is; a change that seeds anew does not."""
    cast = LayerwiseCasting(skip=r"net\.2").apply

    def seeded_anew(model: nn.Module) -> Undo:
        model.register_forward_pre_hook(lambda *_: (torch.manual_seed(99), None)[1])
        return cast(model)

    def found(apply: Callable[[nn.Module], Undo]) -> Numerics:
        return compare_outputs(frozen_where_it_is_cast, tokens(), apply, training=True, claim="lossy", steps=2)

    right = found(cast)
    assert (right.verdict.ok, right.notes) == (True, ())
    assert found(seeded_anew).notes == (
        "Compared with dropout as a factor of 1 - p: a change may draw other random numbers and be right.",
    )


class Attention(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.into, self.p = nn.Linear(32, 96), p

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.into(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        drops = self.p if self.training else 0.0
        return F.scaled_dot_product_attention(query, key, value, None, drops).transpose(1, 2).flatten(2)


def by_hand(module: Attention, x: Tensor, p: float) -> Tensor:
    query, key, value = module.into(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
    weights = torch.softmax(query @ key.transpose(-1, -2) * 8**-0.5, dim=-1)
    return (torch.dropout(weights, p, module.training) @ value).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(("p", "ok"), [(0.1, True), (0.025, False), (0.0, False)])
def test_dropout_within_attention_counts_whoever_computes_it(p, ok):
    def apply(model: nn.Module) -> Undo:
        for layer in model.layers:
            layer.forward = MethodType(lambda module, x: by_hand(module, x, p), layer)
        return lambda: None

    def build() -> nn.Module:
        torch.manual_seed(0)
        return Stack([Attention(0.1) for _ in range(2)])

    verdict = compare_outputs(build, tokens(), apply, training=True, claim="rounding", steps=2).verdict
    assert verdict.ok is ok


def test_a_dropout_that_nobody_sees_is_turned_off_by_its_name():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.dropout = nn.Linear(32, 32), 0.5

        def forward(self, x: Tensor) -> Tensor:
            return self.line(x) * (torch.rand_like(x) >= self.dropout)

    def drawn_before(model: nn.Module) -> Undo:
        model.register_forward_pre_hook(lambda *_: (torch.rand(3), None)[1])
        return lambda: None

    found = compare_outputs(lambda: Stack([Own()]), tokens(), drawn_before, training=True, claim="rounding", steps=2)
    assert found.notes == ("Compared with dropout off: a change may draw other random numbers and be right.",)
    assert found.verdict.ok is True


def test_what_is_dropped_is_seen_and_nothing_stays_replaced():
    before = (F.dropout, torch.dropout, F.scaled_dot_product_attention)
    x, heads = torch.ones(2, 4), torch.ones(1, 1, 3, 4)
    with watched_dropout() as found:
        nn.Dropout(0.5)(x)
        nn.Dropout(0.5).eval()(x)
        F.dropout(x, training=False)
        torch.dropout(x, 0.25, True)
        F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.1)
    assert found == [Dropped(False, (2, 4), 0.5), Dropped(False, (2, 4), 0.25), Dropped(True, (1, 1, 3, 4), 0.1)]
    with dropout_as_factor():
        assert torch.equal(nn.Dropout(0.25)(x), x * 0.75)
        assert torch.equal(nn.Dropout(0.25, inplace=True)(y := x.clone()), y) and torch.equal(y, x * 0.75)
        assert torch.equal(nn.Dropout(0.25).eval()(x), x)
        attended = F.scaled_dot_product_attention(heads, heads, heads, None, 0.25)
        torch.testing.assert_close(attended, heads * 0.75)
    assert (F.dropout, torch.dropout, F.scaled_dot_product_attention) == before


@pytest.mark.parametrize("seen", [watched_dropout, dropout_as_factor])
def test_arguments_that_are_given_by_name_are_understood(seen):
    x = torch.ones(1, 1, 4, 8)
    with seen() as found:
        attended = F.scaled_dot_product_attention(query=x, key=x, value=x, dropout_p=0.0)
        F.scaled_dot_product_attention(query=x, key=x, value=x, dropout_p=0.25)
        F.dropout(input=x, p=0.5)
        torch.dropout(input=x, p=0.5, train=False)
    assert torch.equal(attended, x)
    if found is not None:
        assert found == [Dropped(True, tuple(x.shape), 0.25), Dropped(False, tuple(x.shape), 0.5)]
