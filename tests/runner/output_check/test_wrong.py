"""Optimizations done wrong, one mistake each, are detected; done right in other ways than ours they are not reported.

What a mistake is hidden behind is part of the case: tied weights, a shared layer, an embedding, a buffer, dropout.
"""

import math
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.verdict import Claim, Numerics
from optimizations import apply_all
from optimizations.attention_backend import AttentionBackend
from optimizations.checkpointing import Checkpointing
from optimizations.flat_gradients import FlatGradients
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward
from tests.runner.output_check.models import Apply, Forward, Undo, giving

pytestmark = pytest.mark.slow

WIDTH, WORDS, SPLITS = 32, 24, 4


class Attention(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.into, self.out, self.p = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), p

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.into(x).unflatten(-1, (3, 4, WIDTH // 4)).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x: Tensor) -> Tensor:
        drops = self.p if self.training else 0.0
        attended = F.scaled_dot_product_attention(*self.heads(x), dropout_p=drops, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention(p)
        first, last = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.ff = nn.Sequential(first, nn.GELU(), nn.Dropout(p), last)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.ff(x)


class Words(nn.Module):
    """An embedding whose matrix is the last layer's too, a block that is called twice, and buffers of two types."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([Block(p), Block(p)])
        self.blocks.append(self.blocks[0])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        self.register_buffer("scale", torch.full((1,), 1.25))
        self.register_buffer("order", torch.arange(WIDTH).flip(0))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x[..., self.order])


def model(
    p: float = 0.0, dtype: torch.dtype = torch.float32, *, matrices_rest: bool = False
) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            built = Words(p).to(dtype)
        for parameter in built.parameters():
            parameter.requires_grad_(parameter.dim() < 2 or not matrices_rest)
        return built

    return build


def inputs(count: int = 1) -> list[dict[str, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    return [{"tokens": torch.randint(WORDS, (2, 10), generator=draw)} for _ in range(count)]


def loss(output: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1).float(), torch.arange(20) % WORDS)


def feed_forwards(forward: Forward) -> Apply:
    return giving(nn.Sequential, forward)


def slices(ff: Any) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    pieces = (ff[0].weight.chunk(SPLITS), ff[0].bias.chunk(SPLITS), ff[3].weight.chunk(SPLITS, dim=1))
    return ((number, *each) for number, each in enumerate(zip(*pieces, strict=True)))


def _split(
    *,
    bias: Callable[[Tensor], Tensor] = lambda each: each,
    last_bias: float = 1.0,
    inner: Callable[[int, Tensor], Tensor] = lambda number, each: each,
    act: Callable[[Tensor], Tensor] = F.gelu,
    left_out: tuple[int, ...] = (),
    columns: Callable[[Tensor], Tensor] = lambda each: each,
) -> Apply:
    """Return the correct split with the given deviations."""

    def forward(ff: Any, x: Tensor) -> Tensor:
        found = [
            F.linear(ff[2](inner(number, act(F.linear(x, weight, bias(each))))), columns(column))
            for number, weight, each, column in slices(ff)
            if number not in left_out
        ]
        return sum(found[1:], found[0]) + last_bias * ff[3].bias

    return feed_forwards(forward)


def _off_by_one(ff: Any, x: Tensor) -> Tensor:
    """Start each slice one channel too early, except the first."""
    size, whole = 4 * WIDTH // SPLITS, ff[3].bias
    for start in range(0, 4 * WIDTH, size):
        at = slice(max(start - 1, 0), max(start - 1, 0) + size)
        whole = whole + F.linear(ff[2](F.gelu(F.linear(x, ff[0].weight[at], ff[0].bias[at]))), ff[3].weight[:, at])
    return whole


def _act_after_the_sum(ff: Any, x: Tensor) -> Tensor:
    return F.gelu(sum(F.linear(F.linear(x, weight, bias), column) for _, weight, bias, column in slices(ff))) + (
        ff[3].bias
    )


def _weights_of_then(model: nn.Module) -> Undo:
    """Slices are copied once instead of read each time: right until the first step of an optimizer."""
    undone = []
    for each in {module for module in model.modules() if type(module) is nn.Sequential}:
        kept = each[0].weight.detach().clone()

        def forward(ff: Any, x: Tensor, kept: Tensor = kept) -> Tensor:
            first = ff[0].weight + (kept - ff[0].weight).detach()
            return ff[3](ff[2](F.gelu(F.linear(x, first, ff[0].bias))))

        undone.append(giving_one(each, forward))
    return lambda: [undo() for undo in undone] and None


def giving_one(module: nn.Module, forward: Forward) -> Undo:
    module.forward = MethodType(forward, module)
    return lambda: delattr(module, "forward")


WRONG_SPLITS: dict[str, Apply] = {
    "off by one": feed_forwards(_off_by_one),
    "the last slice left out": _split(left_out=(SPLITS - 1,)),
    "without the first bias": _split(bias=torch.zeros_like),
    "without the last bias": _split(last_bias=0.0),
    "the last bias with each slice": _split(last_bias=float(SPLITS)),
    "one slice detached": _split(inner=lambda number, each: each.detach() if number == 1 else each),
    "another activation that is nearly the same": _split(act=lambda x: F.gelu(x, approximate="tanh")),
    "activation after the sum": feed_forwards(_act_after_the_sum),
    "inner values in bf16": _split(inner=lambda _, each: each.bfloat16().float()),
    "columns in the wrong order": _split(columns=lambda each: each.flip(1)),
    "columns that get no gradient": _split(columns=lambda each: each.detach()),
    "weights of before": _weights_of_then,
}
RIGHT_SPLITS: dict[str, Apply] = {
    "in slices": _split(),
    "in slices, the last first": feed_forwards(
        lambda ff, x: (
            sum(
                F.linear(ff[2](F.gelu(F.linear(x, weight, bias))), column)
                for _, weight, bias, column in reversed([*slices(ff)])
            )
            + ff[3].bias
        )
    ),
    "in pieces of the rows": feed_forwards(
        lambda ff, x: torch.cat([ff[3](ff[2](ff[1](ff[0](r)))) for r in x.chunk(2, 1)], 1)
    ),
}


def attention(
    *, causal: bool = True, scale: float = 1.0, p: Callable[[float], float] = lambda p: p, lost: bool = False
) -> Apply:
    """Return attention computed explicitly, like the math kernel."""

    def forward(module: Any, x: Tensor) -> Tensor:
        query, key, value = module.heads(x)
        scores = query @ key.transpose(-1, -2) * (scale * (WIDTH // 4) ** -0.5)
        if causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        weights = torch.softmax(scores, dim=-1)
        weights = torch.dropout(weights.bfloat16().to(x.dtype) if lost else weights, p(module.p), module.training)
        return module.out((weights @ value).transpose(1, 2).flatten(2))

    return giving(Attention, forward)


WRONG_ATTENTION: dict[str, Apply] = {
    "without the mask": attention(causal=False),
    "another scale": attention(scale=0.99),
    "weights in bf16": attention(lost=True),
}


def checkpointed(around: Callable[[Any, Callable[..., Any], Tensor], Tensor]) -> Apply:
    return giving(Block, lambda block, x: around(block, MethodType(Block.forward, block), x))


def _changed_when_run_again(block: Any, plain: Callable[..., Any], x: Tensor) -> Tensor:
    runs = []

    def run(x: Tensor) -> Tensor:
        runs.append(1)
        return plain(x * (1.0 if len(runs) == 1 else 1.1))

    return checkpoint(run, x, use_reentrant=False)


WRONG_CHECKPOINTING: dict[str, Apply] = {
    "inputs detached": checkpointed(lambda block, plain, x: checkpoint(plain, x.detach(), use_reentrant=False)),
    "something else when run again": checkpointed(_changed_when_run_again),
    "inputs kept in bf16": checkpointed(
        lambda block, plain, x: checkpoint(lambda y: plain(y.float()), x.bfloat16(), use_reentrant=False)
    ),
    "one block left out": giving(Block, lambda block, x: x, where="1"),
}
WRONG_RANDOM = {
    "other random numbers when run again": checkpointed(
        lambda block, plain, x: checkpoint(plain, x, use_reentrant=False, preserve_rng_state=False)
    )
}


def gradients(
    add: Callable[[dict[str, Tensor], str, Tensor, int], Tensor], *, each_step_anew: bool = True, last: int = 3
) -> Apply:
    """Accumulate micro-batches outside p.grad and assign them with the last; `add` selects the sum of each."""

    def apply(model: nn.Module) -> Undo:
        sums: dict[str, Tensor] = {}
        counts: dict[str, int] = {}

        def hook(name: str) -> Callable[[Tensor], None]:
            def take(parameter: Tensor) -> None:
                number = counts.get(name, 0)
                sums[name] = add(sums, name, parameter.grad, number)
                counts[name] = 0 if number == last else number + 1
                parameter.grad = sums[name].to(parameter.dtype).clone() if number == last else None
                if number == last and each_step_anew:
                    del sums[name]

            return take

        handles = [each.register_post_accumulate_grad_hook(hook(name)) for name, each in model.named_parameters()]
        return lambda: [handle.remove() for handle in handles] and None

    return apply


def _added(sums: dict[str, Tensor], name: str, gradient: Tensor, _: int) -> Tensor:
    return sums[name] + gradient.float() if name in sums else gradient.float()


WRONG_GRADIENTS: dict[str, Apply] = {
    "only the last micro-batch": gradients(lambda sums, name, gradient, number: gradient.float()),
    "the first micro-batch left out": gradients(
        lambda sums, name, gradient, number: _added(sums, name, gradient * (number > 0), number)
    ),
    "the mean instead of the sum": gradients(
        lambda sums, name, gradient, number: _added(sums, name, gradient / 4, number)
    ),
    "rounded to fp8 in between": gradients(
        lambda sums, name, gradient, number: _added(sums, name, gradient.to(torch.float8_e5m2), number)
    ),
    "the tied matrix added twice": gradients(
        lambda sums, name, gradient, number: _added(sums, name, gradient * (2 if "words" in name else 1), number)
    ),
    "never emptied": gradients(_added, each_step_anew=False),
}


def cast(
    how: Callable[[str, Tensor], Tensor], *, which: Callable[[str], bool] = lambda name: True, also: Apply | None = None
) -> Apply:
    """Store matrices in fp8; each layer computes with `how` of its stored weights."""

    def apply(model: nn.Module) -> Undo:
        undo = also(model) if also else lambda: None
        for name, each in model.named_modules():
            if isinstance(each, nn.Linear | nn.Embedding) and which(name):
                own = each.weight.dtype
                small = each.weight.data.to(torch.float8_e4m3fn) if each.weight.itemsize > 1 else each.weight.data
                each.weight = nn.Parameter(small, requires_grad=False)
                each.forward = MethodType(_casting(name, how, own), each)
        if model.words.weight.itemsize == 1 and model.head.weight.itemsize == 1:
            model.head.weight = model.words.weight
        return undo

    return apply


def _casting(name: str, how: Callable[[str, Tensor], Tensor], own: torch.dtype) -> Forward:
    def forward(layer: Any, x: Tensor) -> Tensor:
        own_now = own if not x.is_floating_point() else x.dtype
        weight = how(name, layer.weight.to(own_now))
        if isinstance(layer, nn.Embedding):
            return F.embedding(x, weight)
        return F.linear(x, weight, layer.bias)

    return forward


def cast_once(model: nn.Module) -> Undo:
    """Keep the first stored weights of each layer for all later calls."""
    known: dict[tuple[str, torch.dtype], Tensor] = {}
    return cast(lambda name, each: known.setdefault((name, each.dtype), each.detach()))(model)


def with_p(factor: float) -> Apply:
    def apply(model: nn.Module) -> Undo:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p *= factor
        return lambda: None

    return apply


WRONG_CASTING: dict[str, Apply] = {
    "a scale of 1 %": cast(lambda name, each: each * 1.01),
    "one layer's scale": cast(lambda name, each: each * 1.03 if name == "blocks.1.ff.0" else each),
    "rounded once more, to e5m2": cast(lambda name, each: each.to(torch.float8_e5m2).to(each.dtype)),
    "a row that stays zero": cast(lambda name, each: torch.cat([each[:1] * 0, each[1:]])),
    "p / 2": cast(lambda name, each: each, also=with_p(0.5)),
    "no dropout": cast(lambda name, each: each, also=with_p(0.0)),
    "one of two tied matrices": cast(lambda name, each: each, which=lambda name: name != "head"),
}
RIGHT_CASTING: dict[str, Apply] = {
    "all": cast(lambda name, each: each),
    "feed-forwards alone": cast(lambda name, each: each, which=lambda name: ".ff." in name),
}


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
