"""One change, from models to a verdict."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.output_check.comparison import compare_outputs
from optimizations.checkpointing import Checkpointing
from optimizations.flat_gradients import FlatGradients
from optimizations.split_feed_forward import SplitFeedForward
from tests.runner.output_check.models import Stack, nothing, split_wrongly, stack, tokens


def test_checkpointing_is_bitwise_with_dropout_drawn():
    change = Checkpointing()
    found = compare_outputs(
        stack(count=3, residual=True, dropout=0.3), tokens(), change.apply, training=True, claim=change.claim
    )
    assert found.verdict.words == "bitwise equal, as claimed"
    assert found.gradients is not None and found.losses is not None
    assert all(parameter.difference.bitwise for parameter in found.gradients.parameters)
    assert len(found.losses.ours) == 4
    assert found.losses.bitwise
    assert found.notes == ()


def test_dropout_drawn_in_another_order_is_no_error():
    found = compare_outputs(
        stack(count=2, residual=True, dropout=0.3), tokens(), SplitFeedForward().apply, training=True, claim="rounding"
    )
    assert found.verdict.words == "equal up to rounding, as claimed"
    assert found.notes == (
        "Compared with dropout as a factor of 1 - p: a change may draw other random numbers and be right.",
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_flat_gradients_over_micro_batches(dtype):
    change = FlatGradients(micro_batches=4)
    whole = tokens(dtype=dtype)["hidden_states"]
    batches = [{"hidden_states": each} for each in whole.chunk(4, dim=1)]
    found = compare_outputs(
        stack(count=2, residual=True, dtype=dtype), batches, change.apply, training=True, claim=change.claim
    )
    assert found.verdict.ok is True
    rounded = "; gradients equal up to rounding" if dtype == torch.bfloat16 else ""
    assert found.verdict.words == f"bitwise equal, as claimed{rounded}"


def keeping_elsewhere(held: dict[str, Tensor], factor: float = 1.0) -> Callable[[nn.Module], Callable[[], None]]:
    """Takes every gradient away from its parameter."""

    def apply(model: nn.Module) -> Callable[[], None]:
        def take(name: str) -> Callable[[Tensor], None]:
            def hook(parameter: Tensor) -> None:
                assert parameter.grad is not None
                held[name] = parameter.grad.flatten() * factor
                parameter.grad = None

            return hook

        handles = [each.register_post_accumulate_grad_hook(take(name)) for name, each in model.named_parameters()]
        return lambda: [handle.remove() for handle in handles] and None

    return apply


def test_gradients_kept_elsewhere_are_taken_from_there():
    held: dict[str, Tensor] = {}
    how = {"training": True, "claim": "bitwise", "gradients": lambda _: held}
    found = compare_outputs(stack(count=1), tokens(), keeping_elsewhere(held), **how)
    assert found.gradients is not None and found.losses is not None
    assert len(found.gradients.parameters) == 5
    assert found.verdict.ok is True
    assert found.losses.bitwise
    assert len(set(found.losses.ours)) == 4
    wrong = compare_outputs(stack(count=1), tokens(), keeping_elsewhere(held, 1.5), **how)
    assert wrong.verdict.words.startswith("suspicious: the gradient of layers.0.net.0.proj.weight differs by 50 %")


def test_gradients_that_nobody_says_where_they_are_are_not_compared():
    found = compare_outputs(stack(count=1), tokens(), keeping_elsewhere({}), training=True, claim="bitwise")
    assert (found.gradients, found.losses) == (None, None)
    assert found.notes == ("The changed model keeps its gradients elsewhere; they were not compared.",)


def test_all_of_it_is_json_to_the_last_digit():
    found = compare_outputs(
        stack(count=2, residual=True), tokens(), split_wrongly(only_bias=True), training=True, claim="rounding"
    )
    read = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert read["verdict"]["place"] == "layers.0.ff"
    assert [row["difference"]["relative_l2"] for row in read["outputs"]] == [
        output.difference.relative_l2 for output in found.outputs
    ]
    assert [row["alone"]["l2"] for row in read["layers"]] == [layer.alone.l2 for layer in found.layers]


def test_the_change_is_undone_and_what_it_does_beyond_the_model_is_seen():
    """A switch for the whole process, as some backends are: off for the reference, on for the changed layers."""
    switch = {"on": False}

    class Switched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (1.5 if switch["on"] else 1.0)

    def build() -> nn.Module:
        return Stack([Switched(32, 32) for _ in range(2)])

    def apply(_model: nn.Module) -> Callable[[], None]:
        switch["on"] = True
        return lambda: switch.update(on=False)

    found = compare_outputs(build, tokens(), apply, training=True, claim="rounding")
    assert switch == {"on": False}
    assert [layer.alone.relative_l2 for layer in found.layers] == pytest.approx([0.5, 0.5])
    assert found.layers[1].chained is not None and found.layers[1].chained.relative_l2 > 0.6
    assert found.verdict.place == "layers.0"


def test_it_is_undone_when_the_changed_model_fails():
    undone: list[bool] = []

    def apply(model: nn.Module) -> Callable[[], None]:
        model.layers[0].net = nn.ModuleList([nn.Linear(3, 3)])
        return lambda: undone.append(True)

    with pytest.raises(RuntimeError):
        compare_outputs(stack(count=1), tokens(), apply, training=False, claim="rounding")
    assert undone == [True]


def test_progress_is_told_in_words():
    told: list[str] = []
    change = SplitFeedForward()
    compare_outputs(stack(count=1), tokens(), change.apply, training=True, claim="rounding", progress=told.append)
    assert told == [
        "reference",
        "losses of the reference",
        "float64",
        "changed model",
        "losses of the changed model",
        "layers",
    ]


def test_nothing_to_run_and_nothing_returned_are_refused():
    with pytest.raises(UsageError, match="no inputs to run the model on"):
        compare_outputs(stack(count=1), [], nothing, training=False, claim="bitwise")

    class Silent(nn.Module):
        def forward(self, hidden_states: Tensor) -> None:
            return None

    with pytest.raises(UsageError, match="returns no tensor"):
        compare_outputs(Silent, tokens(), nothing, training=False, claim="bitwise")


def test_outputs_of_other_shapes_are_refused():
    def apply(model: nn.Module) -> Callable[[], None]:
        model.layers.append(nn.Linear(32, 16))
        return lambda: None

    with pytest.raises(UsageError, match="only tensors of one shape"):
        compare_outputs(stack(count=1), tokens(), apply, training=False, claim="rounding")
