"""Repeatable runs of a model: outputs by name, float64, perturbed weights, dropout."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

from memviz.runner.output_check import model_runs
from memviz.runner.output_check.comparison import adamw, compare_outputs, mean_of_output
from memviz.runner.output_check.model_runs import (
    ComparedStep,
    Dropped,
    can_perturb,
    cloned,
    dropout_as_factor,
    dropout_off,
    fits_in_float64,
    flatten,
    in_double,
    perturbed_weights,
    watched_dropout,
)
from memviz.runner.output_check.verdict import Claim, Numerics
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward
from tests.facts import missing
from tests.runner.output_check.models import GEGLU, FeedForward, Stack, stack, tokens, with_forward


def step(**more: object) -> ComparedStep:
    return ComparedStep([tokens()], more.pop("training", False), mean_of_output, **more)


def test_two_runs_draw_the_same_random_numbers_and_none_without_dropout():
    model = stack(count=1, dropout=0.5)().train()
    first, second = step(training=True).run(model), step(training=True).run(model)
    assert torch.equal(first.outputs["sample"], second.outputs["sample"])
    assert first.draws
    assert not torch.equal(step(training=True, seed=1).run(model).outputs["sample"], first.outputs["sample"])
    assert not step().run(model.eval()).draws


def test_a_run_leaves_nothing_behind():
    model = nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.5))
    wrapped = nn.ModuleDict({"inner": model})
    wrapped.forward = lambda hidden_states: model(hidden_states)  # type: ignore[method-assign]
    before, state = model[0].running_mean.clone(), torch.get_rng_state()
    ran = step(training=True).run(wrapped)
    assert "inner.0.weight" in ran.gradients
    assert torch.equal(model[0].running_mean, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in wrapped.parameters())


def test_gradients_reach_parameters_and_inputs_add_up_over_micro_batches_and_lower_the_loss():
    model = stack(count=1)()
    ran = step(training=True).run(model)
    assert {name for name in ran.gradients if name.startswith("input ")} == {"input hidden_states"}
    assert step().run(model).gradients == {}
    halves = [{"hidden_states": each} for each in tokens()["hidden_states"].chunk(2)]
    apart = ComparedStep(halves, True, mean_of_output).run(model).gradients["layers.0.net.2.bias"]
    torch.testing.assert_close(ran.gradients["layers.0.net.2.bias"], apart)
    losses = step(training=True).losses(model, 3, adamw)
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3


def test_dropout_is_off_and_on_again():
    model = FeedForward(GEGLU, 4, 8, dropout=0.5).train()
    model.attention_dropout = 0.25
    with dropout_off(model):
        assert (model.net[1].p, model.attention_dropout, model.training) == (0.0, 0.0, True)
    assert (model.net[1].p, model.attention_dropout) == (0.5, 0.25)


def test_the_loss_of_a_model_that_has_one_is_its_own():
    tensors = {"loss": torch.tensor(3.0), "logits": torch.ones(4)}
    assert mean_of_output(tensors).item() == 3
    assert mean_of_output((torch.zeros(1), torch.ones(4))).item() == 1


Pair = namedtuple("Pair", "first second")


@dataclass
class Output(OrderedDict):  # as in transformers and diffusers: a mapping and a dataclass at once
    logits: Tensor | None = None
    past: object = None

    def __post_init__(self) -> None:
        self["logits"] = self.logits


@dataclass
class Plain:
    sample: Tensor
    label: str = "x"


def names(value: object) -> list[str]:
    return list(flatten(value))


def test_every_kind_of_output_has_names():
    one = torch.zeros(1)
    assert names(one) == ["output"]
    assert names((one, None, [one, one])) == ["0", "2.0", "2.1"]
    assert names({"sample": one, "inner": {"a": one}}) == ["sample", "inner.a"]
    assert names(Pair(one, one)) == ["first", "second"]
    assert names(Output(one, past=object())) == ["logits"]
    assert names(Plain(one)) == ["sample"]
    assert names("text") == []


class Cache:
    def __init__(self) -> None:
        self.keys = [torch.zeros(1)]


def test_a_clone_shares_nothing_and_keeps_its_shape():
    mask, cache = torch.tensor([True]), Cache()
    given = {"x": torch.ones(1, requires_grad=True), "pair": Pair(mask, [torch.zeros(1)]), "n": 3, "cache": cache}
    copy = cloned(given, torch.float64)
    assert (copy["x"].dtype, copy["pair"].first.dtype, copy["n"]) == (torch.float64, torch.bool, 3)
    assert isinstance(copy["pair"], Pair)
    copy["x"].zero_()
    copy["pair"].second[0].fill_(5)
    copy["cache"].keys.append(torch.ones(1))
    assert (given["x"].item(), given["pair"].second[0].item(), len(cache.keys)) == (1, 0, 1)


def test_a_module_computes_in_float64_and_is_as_before_also_after_an_error():
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    module[1].weight = module[0].weight
    kept = {name: (each, each.data_ptr(), each.clone()) for name, each in module.state_dict(keep_vars=True).items()}
    with pytest.raises(ZeroDivisionError), in_double(module):
        module(torch.zeros(2, 3, dtype=torch.float64)).sum().backward()
        assert module[0].weight.grad.dtype == torch.float64
        assert module[1].weight is module[0].weight
        assert module[2].num_batches_tracked.dtype == torch.int64
        raise ZeroDivisionError
    for name, each in module.state_dict(keep_vars=True).items():
        same, place, values = kept[name]
        assert each is same and each.data_ptr() == place and torch.equal(each, values)
    assert module[0].weight.grad is None
    module(torch.ones(1, 3)).sum().backward()
    assert module[0].weight.grad.dtype == torch.float32


def test_a_module_that_would_take_too_much_does_not_fit(monkeypatch):
    module = nn.Linear(10, 10, bias=False)
    monkeypatch.setattr(model_runs, "FLOAT64_LIMIT_BYTES", 800)
    assert fits_in_float64(module)
    assert not fits_in_float64(nn.Sequential(module, nn.Linear(1, 1)))


def test_a_weight_that_is_made_of_other_tensors_is_left_alone() -> None:
    """Quantized weights are such: codes and scales represent a matrix in its original dtype."""
    plain, ours = nn.Linear(4, 3), nn.Linear(4, 3)
    weights = perturbed_weights(plain, {})
    assert can_perturb(ours, weights, {})
    matrix = ours.weight.detach()
    ours.weight = nn.Parameter(TwoTensor(matrix, matrix.clone()))
    assert (ours.weight.dtype, ours.weight.shape) == (matrix.dtype, matrix.shape)
    assert not can_perturb(ours, weights, {})


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
    """Split a feed-forward into slices of the inner channels, with this dropout on each."""

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


@pytest.mark.slow
def test_the_right_one_drawn_in_another_order_is():
    for apply in (split(lambda ff, x: ff.net[1](x)), SplitFeedForward(splits=SPLITS).apply):
        found = compared(apply, "rounding")
        assert found.verdict.words == "equal up to rounding, as claimed"
        assert len(found.notes) == 1 and missing(found.notes[0], "dropout", "factor") == []


def frozen_where_it_is_cast() -> nn.Module:
    model = stack(count=2, residual=True, dropout=P)()
    for layer in model.layers:
        layer.ff.net[0].requires_grad_(False)
    return model


@pytest.mark.slow
def test_where_the_same_random_numbers_are_drawn_they_are_compared():
    """Casting draws random numbers as the model did, so dropout is unchanged; a new seed changes it."""
    cast = LayerwiseCasting(skip=r"net\.2").apply

    def seeded_anew(model: nn.Module) -> Undo:
        model.register_forward_pre_hook(lambda *_: (torch.manual_seed(99), None)[1])
        return cast(model)

    def found(apply: Callable[[nn.Module], Undo]) -> Numerics:
        return compare_outputs(frozen_where_it_is_cast, tokens(), apply, training=True, claim="lossy", steps=2)

    right = found(cast)
    assert (right.verdict.ok, right.notes) == (True, ())
    assert missing(found(seeded_anew).notes[0], "dropout", "factor") == []


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
    assert len(found.notes) == 1 and "dropout off" in found.notes[0]
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
