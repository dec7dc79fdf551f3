"""What a finding is called, which figure is said of it, and when a gradient that is nearly zero counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from memviz.runner.output_check import model_runs
from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.difference import one_rounding
from tests.runner.output_check.models import nothing, tokens

Undo = Callable[[], None]


class Outputs(nn.Module):
    """One layer, called by its model, and as many outputs as are asked for."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.names, self.line, self.add = names, nn.Linear(32, 32), 0.0

    def forward(self, hidden_states: Tensor) -> dict[str, Tensor]:
        found = self.line(hidden_states)
        return {name: found + self.add * place for place, name in enumerate(self.names, 1 - len(self.names) + 1)}


def shifted(model: nn.Module) -> Undo:
    model.add = 1.0
    return lambda: None


@pytest.mark.parametrize(
    ("names", "said"), [(("sample",), "the output differs by"), (("first", "last"), "output last differs by")]
)
def test_an_output_is_named_where_there_are_several(names, said):
    verdict = compare_outputs(lambda: Outputs(*names), tokens(), shifted, training=False, claim="bitwise").verdict
    assert verdict.place == names[-1]
    assert verdict.words.startswith(f"suspicious: {said}")


def test_what_a_careless_rewrite_loses_is_said_as_a_multiple_of_the_references_own_loss():
    def careless(model: nn.Module) -> Undo:
        plain = model.line.forward
        model.line.forward = lambda x: (plain(x) + 3e3) - 3e3
        return lambda: None

    found = compare_outputs(lambda: Outputs("sample"), tokens(), careless, training=False, claim="rounding")
    place = next(each for each in (*found.layers, *found.outputs) if each.rounding.exact is not None)
    apart = place.alone if hasattr(place, "alone") else place.difference
    times = apart.relative_l2 / max(place.rounding.floor, one_rounding(torch.float32))
    assert times > 100
    assert f"loses {times:.0f} times what the reference loses to rounding" in found.verdict.words


class Flat(nn.Module):
    """The gradient of `nothing` is zero but for rounding: softmax does not see what is added to all of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line, self.nothing = nn.Linear(32, 32, bias=False), nn.Parameter(torch.zeros(1))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.softmax(self.line(hidden_states) + self.nothing, dim=-1) * torch.linspace(0, 9e4, 32)


def test_a_gradient_that_is_zero_but_for_rounding_is_held_against_all_of_them(monkeypatch):
    """In itself it differs by any factor; where float64 cannot be tried, the type decides beside the others."""
    monkeypatch.setattr(model_runs, "FLOAT64_LIMIT_BYTES", 0)

    def noisy(of: str, by: float) -> Callable[[nn.Module], Undo]:
        def apply(model: nn.Module) -> Undo:
            model.get_parameter(of).register_hook(lambda each: each * (1 + by))
            return lambda: None

        return apply

    def found(apply: Callable[[nn.Module], Undo]):
        return compare_outputs(Flat, tokens(), apply, training=True, claim="rounding", steps=0)

    lost = found(noisy("nothing", 5.0))
    row = next(parameter for parameter in lost.gradients.parameters if parameter.name == "nothing")
    assert row.difference.relative_l2 > 1
    assert lost.verdict.ok is True
    wrong = found(noisy("line.weight", 0.5)).verdict
    assert (wrong.ok, wrong.place) == (False, "line.weight")
    assert "the gradient of line.weight differs by 50 %" in wrong.words
    assert found(nothing).verdict.short == "not exercised"
