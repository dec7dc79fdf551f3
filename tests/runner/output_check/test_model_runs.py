"""A run that can be had again."""

from __future__ import annotations

import torch
from torch import nn

from memviz.runner.output_check.comparison import adamw, mean_of_output
from memviz.runner.output_check.model_runs import ComparedStep, dropout_off, seeded
from tests.runner.output_check.models import GEGLU, FeedForward, stack, tokens


def step(**more: object) -> ComparedStep:
    return ComparedStep([tokens()], more.pop("training", False), mean_of_output, **more)


def test_two_runs_draw_the_same_random_numbers():
    model = stack(count=1, dropout=0.5)().train()
    first, second = step(training=True).run(model), step(training=True).run(model)
    assert torch.equal(first.outputs["sample"], second.outputs["sample"])
    assert first.draws
    assert not torch.equal(step(training=True, seed=1).run(model).outputs["sample"], first.outputs["sample"])


def test_nothing_is_drawn_without_dropout():
    assert not step().run(stack(count=1, dropout=0.5)().eval()).draws


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


def test_gradients_reach_parameters_and_inputs():
    ran = step(training=True).run(stack(count=1)())
    assert {name for name in ran.gradients if name.startswith("input ")} == {"input hidden_states"}
    assert "layers.0.net.2.bias" in ran.gradients
    assert step().run(stack(count=1)()).gradients == {}


def test_gradients_of_micro_batches_add_up_to_those_of_the_whole():
    model = stack(count=1)()
    whole = tokens()["hidden_states"]
    halves = [{"hidden_states": each} for each in whole.chunk(2)]
    together = step(training=True).run(model).gradients["layers.0.net.2.bias"]
    apart = ComparedStep(halves, True, mean_of_output).run(model).gradients["layers.0.net.2.bias"]
    torch.testing.assert_close(together, apart)


def test_losses_fall_and_change_the_model():
    model = stack(count=1)()
    losses = step(training=True).losses(model, 3, adamw, None)
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 3


def test_dropout_is_off_and_on_again():
    model = FeedForward(GEGLU, 4, 8, dropout=0.5).train()
    model.attention_dropout = 0.25
    with dropout_off(model):
        assert (model.net[1].p, model.attention_dropout, model.training) == (0.0, 0.0, True)
    assert (model.net[1].p, model.attention_dropout) == (0.5, 0.25)


def test_seeding_ends_with_the_block():
    state = torch.get_rng_state()
    with seeded(3, torch.device("cpu")):
        torch.rand(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_loss_of_a_model_that_has_one_is_its_own():
    tensors = {"loss": torch.tensor(3.0), "logits": torch.ones(4)}
    assert mean_of_output(tensors).item() == 3
    assert mean_of_output((torch.zeros(1), torch.ones(4))).item() == 1
