"""Adapters of peft, where that is installed: at first the same model, undone the model it was, and predicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memviz
from memviz.runner.output_check.comparison import check_outputs
from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from optimizations.lora import Adapted, Lora
from tests.optimizations.test_lora import CASES, loss_of, trained
from tests.optimizations.tiny import llama


@pytest.fixture(autouse=True)
def library() -> Any:
    return pytest.importorskip("peft", reason="peft is not installed")


@pytest.mark.parametrize("case", CASES, ids=lambda each: each.__name__)
def test_at_first_it_is_the_same_model_then_adapters_learn_and_undone_it_is_the_model_it_was(case):
    made = case()
    weights = {name: each.detach().clone() for name, each in made.model.named_parameters()}
    classes, attributes = [type(module) for module in made.model.modules()], set(vars(made.model))
    before = loss_of(made)
    undo = Lora(rank=4, by="peft").apply(made.model)
    assert torch.equal(loss_of(made), before)
    assert not any(isinstance(module, Adapted) for module in made.model.modules())
    assert {".lora_" in name for name, each in made.model.named_parameters() if each.requires_grad} == {True}
    trained(made)
    assert loss_of(made) < before
    undo()
    assert [type(module) for module in made.model.modules()] == classes
    assert set(vars(made.model)) == attributes
    assert all(torch.equal(each, weights[name]) for name, each in made.model.named_parameters())
    assert all(parameter.requires_grad for parameter in made.model.parameters())
    assert torch.equal(loss_of(made), before)


def test_a_predicted_step_without_fp32_adapters_takes_what_it_takes_with_our_own_adapters():
    """As wide as their layers, with gradients and states of theirs alone."""
    settings, runs = {"layers": "2", "sequence": "64"}, []
    as_layers = {"rank": "8", "by": "peft", "autocast_adapter_dtype": "false"}
    for chosen in ((), (("lora", {"rank": "8"}),), (("lora", as_layers),)):
        request = Request("llama", settings, chosen, optimizer="adamw-for-loop", numerics=False)
        runs.append(predict(plan_of(request), lambda _: None).run)
    plain, ours, theirs = runs
    assert ours.parameters > plain.parameters
    assert (theirs.parameters, theirs.weights_bytes) == (ours.parameters, ours.weights_bytes)
    assert plain.peak_allocated_bytes > 2 * theirs.peak_allocated_bytes
    assert theirs.peak_allocated_bytes == pytest.approx(ours.peak_allocated_bytes, rel=0.02)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("autocast", [True, False])
def test_a_step_takes_what_it_takes_with_get_peft_model_to_the_byte(library, autocast):
    def ours(model: nn.Module) -> nn.Module:
        Lora(rank=8, by="peft", autocast_adapter_dtype=autocast).apply(model)
        return model

    def theirs(model: nn.Module) -> nn.Module:
        config = library.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        wrapped: nn.Module = library.get_peft_model(model, config, autocast_adapter_dtype=autocast)
        return wrapped

    peaks = [peak_of_a_step(change) for change in (ours, theirs)]
    assert peaks[0] == peaks[1]


def peak_of_a_step(change: Callable[[nn.Module], nn.Module]) -> tuple[int, int, int]:
    with memviz.predicting() as prediction:
        model = change(llama().model.to("cuda", torch.bfloat16))
        tokens = torch.randint(0, 64, (1, 64)).cuda()
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
        for _ in range(2):
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return prediction.peak_requested, prediction.peak_allocated, prediction.peak_reserved


def test_the_outputs_are_as_claimed():
    chosen = (("lora", {"by": "peft"}), ("optimizer_in_backward", {}))
    plan = plan_of(Request("llama", {"layers": "2", "sequence": "64"}, chosen, optimizer="adamw", numerics=False))
    numerics = check_outputs(plan, lambda _: None, "predicted")
    assert numerics is not None
    assert numerics["verdict"]["ok"] is True, numerics["verdict"]
