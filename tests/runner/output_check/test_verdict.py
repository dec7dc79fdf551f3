"""The verdict on a change, and the texts of its figures."""

import math
from collections.abc import Callable
from types import MethodType

import pytest
import torch
from torch import Tensor, nn

from memviz.runner.output_check import model_runs
from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.difference import one_rounding
from memviz.runner.output_check.model_runs import OperatorChange
from memviz.runner.output_check.verdict import Claim, Numerics, Signal, layer_title, scientific, share_text, signal_of
from tests.runner.output_check.models import (
    GEGLU,
    FeedForward,
    Stack,
    SwiGLU,
    nothing,
    split_wrongly,
    stack,
    tokens,
    with_forward,
)

Undo = Callable[[], None]
BUG = "This is a bug, not rounding."


def compared(apply: Callable[[nn.Module], Undo], claim: Claim, *, training: bool = False, **how: object) -> Numerics:
    dtype = how.get("dtype", torch.float32)
    return compare_outputs(
        stack(count=2, residual=True, **how), tokens(dtype=dtype), apply, training=training, claim=claim, steps=2
    )


def plain(ff: FeedForward, x: Tensor) -> Tensor:
    return ff.net[2](ff.net[1](ff.net[0](x)))


def copied_input(ff: FeedForward, x: Tensor) -> Tensor:
    return plain(ff, x.clone())


copied = with_forward(copied_input)
"""Another computation that gives the same bits."""


def stored_as(dtype: torch.dtype, factor: float = 1.0) -> Callable[[nn.Module], Undo]:
    """Weights rest in `dtype`; each forward computes with copies."""

    def forward(linear: nn.Linear, x: Tensor) -> Tensor:
        return nn.functional.linear(x, linear.weight.to(x.dtype) * factor, linear.bias)

    def apply(model: nn.Module) -> Undo:
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight = nn.Parameter(module.weight.detach().to(dtype), requires_grad=False)
                module.forward = MethodType(forward, module)
        return lambda: None

    return apply


@pytest.mark.parametrize("training", [False, True])
def test_bitwise_as_claimed(training):
    verdict = compared(copied, "bitwise", training=training).verdict
    assert (verdict.ok, verdict.words, verdict.place) == (True, "bitwise equal, as claimed", "")
    assert verdict.short == "bitwise equal"
    assert verdict.sentence("Gradient checkpointing") == "Gradient checkpointing: bitwise equal, as claimed."


@pytest.mark.parametrize("claim", ["bitwise", "rounding", "training", "lossy"])
@pytest.mark.parametrize("training", [False, True])
def test_a_change_that_computes_nothing_is_not_called_equal(claim, training):
    found = compared(nothing, claim, training=training)
    assert (found.verdict.ok, found.verdict.short) == (None, "not exercised")
    assert found.verdict.words.startswith("not exercised: ") and "equal" not in found.verdict.words


def test_equal_outputs_are_more_than_rounding_and_say_nothing_of_a_loss_or_of_views():
    def view(ff: FeedForward, x: Tensor) -> Tensor:
        return plain(ff, x.view_as(x)[..., : x.shape[-1]])

    assert compared(copied, "rounding").verdict.words == "bitwise equal, more than claimed"
    # It runs, but the values that a loss would change are not read.
    for apply, claim in ((copied, "lossy"), (with_forward(view), "bitwise")):
        assert compared(apply, claim).verdict.short == "not exercised"


def test_of_several_changes_those_that_computed_nothing_are_named():
    apply = with_forward(copied_input)
    changes = [
        OperatorChange("Views", nothing, reason="all fits"),
        OperatorChange("Copies", apply),
        OperatorChange("Nothing", apply),
    ]
    numerics = compare_outputs(
        stack(count=2, residual=True), tokens(), apply, training=False, claim="bitwise", changes=changes
    )
    assert [change.title for change in numerics.not_exercised] == ["Views", "Nothing"]
    assert (numerics.verdict.ok, numerics.verdict.short) == (None, "partly exercised")
    assert "Views (all fits)" in numerics.verdict.words and "Copies" not in numerics.verdict.words


def another_order(ff: FeedForward, x: Tensor) -> Tensor:
    """The same sum, in two halves."""
    wide = ff.net[0](x).chunk(2, dim=-1)
    halves = ff.net[2].weight.chunk(2, dim=1)
    return wide[0] @ halves[0].T + wide[1] @ halves[1].T + ff.net[2].bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("training", [False, True])
def test_another_order_is_rounding_in_every_type(dtype, training):
    found = compared(with_forward(another_order), "rounding", dtype=dtype, training=training)
    assert not found.outputs[0].difference.bitwise
    assert (found.verdict.ok, found.verdict.words) == (True, "equal up to rounding, as claimed")


def test_rounding_is_not_the_equality_that_was_claimed():
    verdict = compared(with_forward(another_order), "bitwise").verdict
    assert (verdict.ok, verdict.place) == (False, "layers.0")
    assert verdict.words.endswith("That is rounding, but it claims equality.")


def test_a_bug_is_a_bug_whatever_is_claimed():
    wrong = split_wrongly(only_bias=False)
    for claim in ("bitwise", "rounding"):
        verdict = compared(wrong, claim).verdict
        assert verdict.ok is False
        assert verdict.words.endswith(BUG)
    verdict = compared(wrong, "lossy").verdict
    assert verdict.ok is False
    assert verdict.words.endswith("more than the signal itself.")


def test_an_error_within_the_rounding_of_bfloat16_is_found_in_float64():
    """1 % is less than bf16 may lose here, and no rounding all the same."""

    def one_percent(ff: FeedForward, x: Tensor) -> Tensor:
        return plain(ff, x) * 1.01

    verdict = compared(with_forward(one_percent), "rounding", dtype=torch.bfloat16).verdict
    assert (verdict.ok, verdict.place) == (False, "layers.0.ff")
    assert verdict.words.endswith(BUG)


def test_without_float64_the_type_decides(monkeypatch):
    monkeypatch.setattr(model_runs, "FLOAT64_LIMIT_BYTES", 0)
    right = compared(with_forward(another_order), "rounding", dtype=torch.bfloat16, training=True)
    assert right.outputs[0].rounding.exact is None
    assert right.verdict.ok is True
    assert compared(split_wrongly(only_bias=True), "rounding").verdict.words.endswith(BUG)


def test_a_wrong_gradient_behind_a_right_output_is_found():
    class Lost(torch.autograd.Function):
        @staticmethod
        def forward(_context: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_context: object, gradient: Tensor) -> Tensor:
            return gradient * 1.5

    found = compared(with_forward(lambda ff, x: Lost.apply(plain(ff, x))), "bitwise", training=True)
    assert found.outputs[0].difference.bitwise
    assert (found.verdict.ok, found.verdict.place) == (False, "layers.0.ff.net.0.proj.weight")
    assert found.verdict.words.startswith("suspicious: the gradient of layers.0.ff.net.0.proj.weight differs by 5")
    assert found.verdict.words.endswith(BUG)


def test_a_parameter_without_a_gradient_is_found():
    def apply(model: nn.Module) -> Undo:
        model.layers[1].ff.net[2].bias.requires_grad_(False)
        return lambda: None

    verdict = compared(apply, "bitwise", training=True).verdict
    assert verdict.words == "suspicious: layers.1.ff.net.2.bias gets no gradient."


def test_what_is_finite_on_one_side_only_is_found_under_every_claim():
    def overflow(ff: FeedForward, x: Tensor) -> Tensor:
        return torch.where(x > 2, math.inf, plain(ff, x))

    for claim in ("bitwise", "rounding", "lossy"):
        verdict = compared(with_forward(overflow), claim).verdict
        assert verdict.ok is False
        assert verdict.words.endswith("are finite on one side only.")


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.float8_e4m3fn, "6.2 %"), (torch.float8_e5m2, "12 %"), (torch.bfloat16, "0.4 %")], ids=str
)
def test_expected_loss_of_a_type(dtype, most):
    found = compared(stored_as(dtype), "lossy")
    name = str(dtype).removeprefix("torch.")
    assert found.stored == name
    assert found.verdict.ok is True
    assert found.verdict.words.startswith(f"expected error for {name}: storage changes a weight by up to {most}")
    assert all(layer.stored_loss and layer.stored_loss > 0 for layer in found.layers)


def test_more_loss_than_the_type_explains_is_suspicious_and_one_of_unknown_origin_cannot_be_judged():
    verdict = compared(stored_as(torch.bfloat16, factor=1.2), "lossy").verdict
    assert verdict.ok is False
    assert verdict.place.startswith("layers.0")
    verdict = compared(with_forward(lambda ff, x: plain(ff, x) * 1.01), "lossy").verdict
    assert verdict.ok is None
    assert verdict.words.endswith("and no storage dtype gives an expected error")


def test_noise_excuses_what_it_explains():
    """A model that is not the same twice, as on a GPU with atomic additions."""

    class Noisy(Stack):
        def forward(self, hidden_states: Tensor) -> dict[str, Tensor]:
            calls.append(1)
            whole = super().forward(hidden_states)["sample"]
            return {"sample": whole * (1 + 1e-6 * len(calls))}

    calls: list[int] = []

    def build() -> nn.Module:
        return Noisy(list(stack(count=1, residual=True)().layers))

    def counted(model: nn.Module) -> Undo:
        handle = model.register_forward_hook(lambda _module, _args, output: {"sample": output["sample"].clone()})
        return handle.remove

    verdict = compare_outputs(build, tokens(), counted, training=False, claim="bitwise").verdict
    assert verdict.ok is True
    assert verdict.words.startswith("as equal as two runs without it, which differ by up to ")


def test_a_weak_signal_takes_the_proof_from_equal_outputs():
    found = compare_outputs(stack(), tokens(), copied, training=False, claim="bitwise")
    assert found.verdict.ok is True
    assert found.verdict.caution.endswith("Single layers were compared too.")
    assert all(layer.alone.bitwise for layer in found.layers)


class Outputs(nn.Module):
    """One layer, called by its model, with any number of outputs."""

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
    assert found.verdict.ok is None
    place = next(each for each in (*found.layers, *found.outputs) if each.rounding.exact is not None)
    apart = place.alone if hasattr(place, "alone") else place.difference
    times = apart.relative_l2 / max(place.rounding.floor, one_rounding(torch.float32))
    assert times > 100
    assert f"loses {times:.0f} times as much as the reference to rounding" in found.verdict.words


class Flat(nn.Module):
    """The gradient of `nothing` is zero except for rounding: softmax is invariant to a constant shift."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line, self.nothing = nn.Linear(32, 32, bias=False), nn.Parameter(torch.zeros(1))

    def forward(self, hidden_states: Tensor) -> Tensor:
        return torch.softmax(self.line(hidden_states) + self.nothing, dim=-1) * torch.linspace(0, 9e4, 32)


def test_a_gradient_that_is_zero_but_for_rounding_is_held_against_all_of_them(monkeypatch):
    """It differs by any factor in itself; without a float64 run, the dtype and the other gradients decide."""
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
    assert "line.weight" in wrong.words and "50 %" in wrong.words
    assert found(nothing).verdict.short == "not exercised"


def signal_through(residual: bool) -> Signal:
    inputs = tokens()
    with torch.no_grad():
        outputs = stack(residual=residual)()(**inputs)
    found = signal_of(inputs.values(), outputs.values())
    assert found is not None
    return found


def test_plain_layers_of_default_initialization_end_in_a_bias_and_residual_ones_keep_the_signal():
    plain, residual = signal_through(residual=False), signal_through(residual=True)
    assert plain.varying < 1e-3 and "varies from row to row" in plain.words
    assert residual.varying > 0.9 and residual.words == ""


def test_an_output_far_smaller_than_its_input_says_so_one_row_varies_and_nothing_has_no_signal():
    x = torch.randn(1000, 4)
    found = signal_of([x], [x * 1e-3])
    assert found is not None
    assert found.varying > 0.9
    assert found.words.startswith("The output's standard deviation is ")
    assert signal_of([], [torch.tensor([[1.0, 2.0]])]) == Signal(None, 0.5, 1.0)
    for outputs in ([], [torch.tensor([1, 2])], [torch.empty(0)]):
        assert signal_of([torch.ones(1)], outputs) is None


@pytest.mark.parametrize(
    ("text_of", "texts"),
    [
        (scientific, {1.34e-7: "1.3e-07", 0.0: "0", -2.5: "-2.5e+00", math.inf: "infinite", math.nan: "not a number"}),
        (scientific, {None: "–"}),
        # Percentages where those can be read.
        (share_text, {1.394: "139 %", 0.0275: "2.8 %", 0.0005: "5.0e-04", 2.1e-7: "2.1e-07", 0: "0"}),
        (layer_title, {"": "the output", "0": "layer 0", "layers.0": "layer 0", "transformer.h.11": "layer 11"}),
        (layer_title, {"transformer_blocks.3": "transformer block 3", "model.layers.1.mlp": "mlp of layer 1"}),
        (layer_title, {"transformer_blocks.3.ff": "ff of transformer block 3", "encoder.attn1": "encoder.attn1"}),
    ],
)
def test_figures_and_places_in_words(text_of, texts):
    assert {value: text_of(value) for value in texts} == texts


each_kind = pytest.mark.parametrize("kind", [GEGLU, SwiGLU])
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_stack = pytest.mark.parametrize("residual", [False, True], ids=["plain", "residual"])


@each_kind
@each_dtype
@each_stack
@pytest.mark.parametrize("only_bias", [False, True], ids=["first version", "later version"])
def test_both_are_called_bugs_in_the_first_layer(kind, dtype, residual, only_bias):
    wrong = split_wrongly(only_bias=only_bias)
    build = stack(kind, residual=residual, dtype=dtype)
    found = compare_outputs(build, tokens(dtype=dtype), wrong, training=False, claim="rounding")
    said = found.verdict.sentence("Split feed-forward")
    assert found.verdict.ok is False
    assert found.verdict.place == ("layers.0.ff" if residual else "layers.0")
    where = "ff of layer 0" if residual else "layer 0"
    assert said.startswith(f"Split feed-forward claims equal output up to rounding, but {where} differs by ")
    assert said.endswith(" %. This is a bug, not rounding.")


def test_the_first_version_hides_in_plain_layers():
    """Its absolute difference looks like rounding; the same error with residuals does not."""
    split = split_wrongly(only_bias=False)
    hidden = compare_outputs(stack(sizes=(256, 1024)), tokens(8, 256), split, training=False, claim="rounding")
    output = hidden.outputs[0].difference
    assert output.absmax < 3e-3
    assert output.relative_l2 < 0.05
    assert hidden.layers[0].alone.relative_l2 > 1.3
    assert hidden.signal is not None and hidden.signal.words
