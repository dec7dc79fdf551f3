"""Weights stepped during backward: the same weights to the bit, and never all gradients at once."""

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from optimizations.optimizer_in_backward import OptimizerInBackward
from tests.optimizations.memory import Memory
from tests.optimizations.tiny import Case, gpt2, llama, stack

Make = Callable[[Any], Optimizer]
MAKES: dict[str, Make] = {
    "AdamW": lambda weights: torch.optim.AdamW(weights, lr=1e-2),
    "AdamW, foreach": lambda weights: torch.optim.AdamW(weights, lr=1e-2, foreach=True),
    "AdamW, fused": lambda weights: torch.optim.AdamW(weights, lr=1e-2, fused=True),
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda weights: torch.optim.Adagrad(weights, lr=0.1),
}


def trained(case: Case, make: Make, steps: int = 3, micro_batches: int = 1) -> dict[str, torch.Tensor]:
    optimizer = make(case.model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for step in range(steps):
        for part in range(micro_batches):
            torch.manual_seed(10 * step + part)
            case.loss(case.model).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return {name: each.detach().clone() for name, each in case.model.named_parameters()}


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("case", [stack, gpt2, lambda: llama(tie_word_embeddings=True)], ids=["stack", "gpt2", "tied"])
def test_weights_after_some_steps_are_the_same_to_the_bit(case: Callable[[], Case], name: str):
    plain, ours = case(), case()
    start = {key: each.detach().clone() for key, each in ours.model.named_parameters()}
    undo = OptimizerInBackward().apply(ours.model)
    stepped = trained(ours, MAKES[name])
    undo()
    expected = trained(plain, MAKES[name])
    assert [key for key, each in expected.items() if not torch.equal(each, stepped[key])] == []
    assert not any(torch.equal(each, start[key]) for key, each in stepped.items() if "bias" not in key)


def test_micro_batches_are_added_up_before_the_step():
    plain, ours = stack(), stack()
    undo = OptimizerInBackward(micro_batches=3).apply(ours.model)
    stepped = trained(ours, MAKES["AdamW"], micro_batches=3)
    undo()
    expected = trained(plain, MAKES["AdamW"], micro_batches=3)
    assert all(torch.equal(each, stepped[key]) for key, each in expected.items())


ROUTES = ["ab", "aa", "bb", "ba", "a", "aa", "bab", ""]
"""Experts used in each pass of a step: some, none, or in more or fewer passes than declared."""


def trained_experts(micro_batches: int | None, fails: bool = False) -> tuple[list[torch.Tensor], list[int]]:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    undo = OptimizerInBackward(micro_batches).apply(model) if micro_batches else lambda: None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for route in ROUTES:
        if fails:
            for number in range(2):
                with pytest.raises(RuntimeError, match="out of memory"):
                    failing(model["b"](model["a"](torch.ones(3, 4)))).sum().backward()
                optimizer.zero_grad(set_to_none=number == 0)
            optimizer.zero_grad()
        for expert in route:
            model[expert](torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    undo()
    counts = [int(state["step"]) for state in optimizer.state.values()]
    return [weight.detach().clone() for weight in model.parameters()], counts


def failing(x: torch.Tensor) -> torch.Tensor:
    """Its backward pass fails when the last weights have their gradients and the first do not."""
    x.grad_fn.next_functions[1][0].register_hook(_fail)  # type: ignore[union-attr]
    return x


def _fail(*_: Any) -> None:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("fails", [False, True])
def test_experts_without_tokens_and_passes_that_failed_leave_the_others_in_step(fails: bool):
    expected, steps = trained_experts(None, fails)
    ours, stepped = trained_experts(2, fails)
    assert steps == stepped
    assert all(torch.equal(one, other) for one, other in zip(ours, expected, strict=True))


CLIPS = ("clip_grad_norm_", "clip_grad_value_", "_clip_grads_with_norm_")


@pytest.mark.slow
@pytest.mark.parametrize("name", CLIPS[:2])
@pytest.mark.parametrize("early", [False, True])
def test_clipping_is_refused_for_its_weights_alone_until_undone(name: str, early: bool):
    """Also by a function that a program imported before, as far as that refuses by itself."""
    case, other = stack(), stack()
    # Models of other tests may wait for the collector yet.
    gc.collect()
    plain = [getattr(nn.utils.clip_grad, each) for each in CLIPS]
    clip = getattr(nn.utils, name)
    undo = OptimizerInBackward().apply(case.model)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    case.loss(case.model).backward()
    clip = clip if early else getattr(nn.utils, name)
    # The early one for values finds nothing to clip, which torch refuses in its own words.
    with pytest.raises((ValueError, RuntimeError) if early and name == "clip_grad_value_" else ValueError):
        clip(case.model.parameters(), 1.0)
    if not early:
        with pytest.warns(UserWarning, match="norm is unknown"):
            assert clip(case.model.parameters(), math.inf).isnan()
    other.loss(other.model).backward()
    clip(other.model.parameters(), 1e-6)
    assert all(weight.grad is not None and weight.grad.abs().max() <= 1e-6 for weight in other.model.parameters())
    optimizer.step()
    undo()
    case.loss(case.model).backward()
    nn.utils.clip_grad_norm_(case.model.parameters(), 1.0)
    assert [getattr(nn.utils.clip_grad, each) for each in CLIPS] == plain


def test_gradients_are_gone_after_backward_and_stay_where_no_optimizer_is():
    case = stack()
    undo = OptimizerInBackward().apply(case.model)
    case.loss(case.model).backward()
    assert all(parameter.grad is not None for parameter in case.model.parameters())
    case.model.zero_grad()
    optimizer = torch.optim.SGD(case.model.blocks.parameters(), lr=0.1)
    case.loss(case.model).backward()
    assert {name for name, each in case.model.named_parameters() if each.grad is not None} == {
        "first.weight",
        "first.bias",
    }
    undo()
    case.loss(case.model).backward()
    assert all(parameter.grad is not None for parameter in case.model.parameters())
    # Models of other tests may wait for the collector yet.
    gc.collect()
    assert Optimizer.__init__.__module__ == "torch.optim.optimizer"
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_an_optimizer_that_was_there_before_steps_in_backward_from_its_second_step_on():
    case = stack()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    undo = OptimizerInBackward().apply(case.model)
    case.loss(case.model).backward()
    assert case.model.first.weight.grad is not None
    optimizer.step()
    optimizer.zero_grad()
    before = case.model.first.weight.detach().clone()
    case.loss(case.model).backward()
    assert case.model.first.weight.grad is None
    assert not torch.equal(before, case.model.first.weight)
    undo()


def test_the_newest_optimizer_of_a_weight_steps_it_alone_and_one_that_is_gone_not_at_all():
    case = stack(dropout=0.0)
    undo = OptimizerInBackward().apply(case.model)
    first = torch.optim.SGD(case.model.parameters(), lr=100.0)
    second = torch.optim.SGD(case.model.parameters(), lr=0.0)
    before = case.model.first.weight.detach().clone()
    case.loss(case.model).backward()
    assert torch.equal(before, case.model.first.weight)
    del first, second
    gc.collect()
    case.loss(case.model).backward()
    assert case.model.first.weight.grad is not None
    undo()


def test_undone_in_any_order_nothing_listens_any_more():
    plain = Optimizer.__init__
    one, other = stack(), stack()
    undo_one, undo_other = OptimizerInBackward().apply(one.model), OptimizerInBackward().apply(other.model)
    undo_one()
    optimizer = torch.optim.SGD(other.model.parameters(), lr=0.1)
    other.loss(other.model).backward()
    assert other.model.first.weight.grad is None
    undo_other()
    assert Optimizer.__init__ is plain
    assert optimizer.state == {}


def test_what_needs_all_gradients_is_refused():
    case = stack()
    undo = OptimizerInBackward().apply(case.model)
    with pytest.raises(ValueError, match="LBFGS may need all gradients at once"):
        torch.optim.LBFGS(case.model.parameters())
    undo()


def test_a_step_holds_one_gradient_and_not_all():
    width, depth = 256, 12
    model = nn.Sequential(*(nn.Linear(width, width, bias=False, device="meta") for _ in range(depth)))
    x, weight = torch.empty(1, width, device="meta"), 4 * width * width
    peaks = []
    for applied in (False, True):
        undo = OptimizerInBackward().apply(model) if applied else lambda: None
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        with Memory() as memory:
            memory.note([*model.parameters(), x])
            model(x).sum().backward()
            optimizer.step()
        peaks.append(memory.peak_allocated)
        optimizer.zero_grad()
        undo()
    assert peaks[0] // weight == 2 * depth
    assert peaks[1] // weight == depth + 1
