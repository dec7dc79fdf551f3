"""Differences of tensors, layers and gradients, and the bounds of rounding."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from memviz.errors import UsageError
from memviz.runner.output_check import difference as module
from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.difference import (
    MARGIN,
    Difference,
    LossCurve,
    Rounding,
    UlpCounts,
    Ulps,
    blocks_of,
    coarser,
    coarsest,
    compare_gradients,
    difference,
    differences,
    expected,
    loss_of_weights,
    one_rounding,
    parts_of,
    recorded_layers,
    tolerances,
    ulps_between,
    unit_roundoff,
    work_of,
)
from tests.runner.output_check.models import GEGLU, FeedForward, stack, tokens

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def pairs() -> st.SearchStrategy[tuple[torch.Tensor, torch.Tensor]]:
    lists = st.integers(1, 20).flatmap(lambda n: st.tuples(*[_of_length(n)] * 2))
    return lists.map(lambda both: (torch.tensor(both[0]), torch.tensor(both[1])))


def _of_length(n: int) -> st.SearchStrategy[list[float]]:
    return st.lists(st.floats(-1e10, 1e10, width=32), min_size=n, max_size=n)


def test_every_figure_of_a_small_case():
    found = difference(torch.tensor([3.0, 0.0, 0.0, 4.0]), torch.tensor([3.0, 0.0, 1.0, 4.0]))
    assert found == Difference(
        elements=4,
        dtypes=("float32", "float32"),
        bitwise=False,
        unequal=1,
        absmax=1.0,
        absmean=0.25,
        l2=1.0,
        relative_l2=0.2,
        sqnr_db=pytest.approx(20 * math.log10(5)),
        cosine=pytest.approx(25 / (5 * math.sqrt(26))),
        worst_relative=pytest.approx(1e5),
        ulps=Ulps(0x3F800000, ((0, 3), (None, 1))),
        outside=0.25,
        reference_nonfinite=0,
        ours_nonfinite=0,
        nonfinite_differ=0,
        reference_std=pytest.approx(torch.tensor([3.0, 0.0, 0.0, 4.0]).std(correction=0).item()),
        reference_absmax=4.0,
        reference_l2=5.0,
    )


@given(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=20))
def test_a_tensor_does_not_differ_from_itself(values):
    tensor = torch.tensor(values)
    found = difference(tensor, tensor.clone())
    assert found.bitwise
    assert (found.unequal, found.absmax, found.absmean, found.l2, found.relative_l2) == (0, 0, 0, 0, 0)
    assert (found.sqnr_db, found.cosine, found.worst_relative, found.outside) == (math.inf, 1, 0, 0)
    assert found.ulps == Ulps(0, ((0, len(values)),))


@given(pairs(), st.integers(-20, 20))
def test_scaling_both_by_a_power_of_two_scales_absolute_figures_and_no_relative_one(both, exponent):
    factor = 2.0**exponent
    exact = [each.to(torch.float64) for each in both]
    plain, scaled = difference(*exact), difference(*(each * factor for each in exact))
    assert (scaled.absmax, scaled.reference_absmax) == (plain.absmax * factor, plain.reference_absmax * factor)
    assert scaled.relative_l2 == pytest.approx(plain.relative_l2, rel=1e-12)
    assert scaled.cosine == pytest.approx(plain.cosine, rel=1e-12, abs=1e-12)


@given(pairs())
def test_pieces_add_up_to_the_whole_in_either_direction(both):
    whole, back = difference(*both), difference(both[1], both[0])
    assert all(getattr(whole, name) == getattr(back, name) for name in ("absmax", "absmean", "unequal", "ulps", "l2"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", 3)
        pieced = difference(*both)
    for name in ("absmean", "l2", "relative_l2", "sqnr_db", "cosine", "reference_std", "reference_l2"):
        assert getattr(pieced, name) == pytest.approx(getattr(whole, name), rel=1e-9, abs=1e-30)
        pieced = replace(pieced, **{name: getattr(whole, name)})
    assert pieced == whole


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_ulp_is_seen_exactly_in_every_type(dtype):
    eps = torch.finfo(dtype).eps
    one = torch.ones(4, dtype=torch.float64).to(dtype)
    other = torch.tensor([1, 1, 1, 1 + eps], dtype=torch.float64).to(dtype)
    found = difference(one, other)
    assert (found.absmax, found.relative_l2, found.ulps.max, found.unequal) == (eps, eps / 2, 1, 1)


def test_large_float64_values_do_not_overflow_when_squared():
    huge = torch.tensor([3e300, 4e300], dtype=torch.float64)
    found = difference(huge, huge * 1.5)
    assert found.relative_l2 == pytest.approx(0.5)
    assert found.reference_l2 == pytest.approx(5e300)


def test_what_is_not_finite_is_counted_and_left_out():
    inf, nan = math.inf, math.nan
    found = difference(torch.tensor([1.0, inf, nan, nan, inf]), torch.tensor([2.0, inf, nan, 4.0, -inf]))
    assert (found.reference_nonfinite, found.ours_nonfinite, found.nonfinite_differ) == (4, 3, 2)
    assert (found.absmax, found.relative_l2, found.reference_absmax) == (1, 1, 1)
    assert found.outside == pytest.approx(3 / 5)


@pytest.mark.parametrize(
    ("reference", "ours", "figures"),
    [
        # The sign of a zero is a bit.
        (torch.tensor([0.0]), torch.tensor([-0.0]), {"bitwise": False, "unequal": 1, "absmax": 0, "relative_l2": 0}),
        # Zeros have no scale.
        (torch.zeros(2), torch.tensor([0.0, 1.0]), {"relative_l2": math.inf, "sqnr_db": -math.inf, "cosine": 0}),
        (torch.zeros(2), torch.tensor([0.0, 1.0]), {"relative_absmax": math.inf}),
        (torch.zeros(2), torch.zeros(2), {"relative_absmax": 0}),
        (torch.tensor([0.0, -4]), torch.tensor([1.0, -4]), {"reference_absmax": 4, "relative_absmax": 0.25}),
        (
            torch.ones(3),
            torch.ones(3).bfloat16(),
            {"bitwise": False, "unequal": 0, "absmax": 0, "ulps": None, "dtypes": ("float32", "bfloat16")},
        ),
        (torch.empty(0, 3), torch.empty(0, 3), {"elements": 0, "bitwise": True, "relative_l2": 0, "cosine": 1}),
        # Complex numbers count as two.
        (torch.tensor([3 + 4j]), torch.tensor([3 + 5j]), {"elements": 2, "unequal": 1, "relative_l2": 0.2}),
        # Views are compared as they read.
        (torch.arange(6.0).view(2, 3).t(), torch.tensor([[0.0, 3], [1, 4], [2, 5]]), {"bitwise": True}),
    ],
)
def test_figures_of_special_values(reference, ours, figures):
    found = difference(reference, ours)
    assert {name: getattr(found, name) for name in figures} == figures


def test_whole_numbers_are_held_to_equality():
    large = torch.tensor([2**60, 5, 7])
    found = difference(large, large + torch.tensor([1, 0, 2]))
    assert (found.unequal, found.absmax, found.outside, found.ulps) == (2, 2, pytest.approx(2 / 3), None)
    truth = difference(torch.tensor([True, False]), torch.tensor([True, True]))
    assert (truth.unequal, truth.absmax, truth.outside) == (1, 1, 0.5)


def test_share_outside_the_tolerance_is_what_assert_close_rejects():
    generator = torch.Generator().manual_seed(0)
    reference = 100 * torch.randn(60, generator=generator)
    ours = reference * (1 + 2e-6 * torch.randn(60, generator=generator))
    rejected = 0
    for one, other in zip(reference, ours, strict=True):
        try:
            torch.testing.assert_close(other, one)
        except AssertionError:
            rejected += 1
    assert 0 < rejected < 60
    assert difference(reference, ours).outside == rejected / 60


def test_shapes_and_names_must_be_the_same_and_values_known():
    with pytest.raises(UsageError, match=r"shape \(2, 3\), the optimized model \(3, 2\)"):
        difference(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(UsageError, match="meta device has no values"):
        difference(torch.zeros(2, device="meta"), torch.zeros(2, device="meta"))
    with pytest.raises(UsageError, match="returns logits, the optimized model sample;"):
        differences({"logits": torch.zeros(1)}, {"sample": torch.zeros(1)})


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_every_finite_number_of_a_narrow_type_is_one_from_its_neighbour(dtype):
    kind = torch.int8 if dtype.itemsize == 1 else torch.int16
    every = torch.arange(torch.iinfo(kind).min, torch.iinfo(kind).max + 1).to(kind).view(dtype)
    values = every.to(torch.float64)
    ordered = torch.unique(values[values.isfinite()]).to(dtype)
    assert ulps_between(ordered[:-1], ordered[1:]).unique().tolist() == [1]


def test_both_zeros_are_one_number_and_the_ends_of_float64_as_far_apart_as_can_be_counted():
    zero = torch.zeros(1)
    assert all(ulps_between(zero.to(dtype), (-zero).to(dtype)).tolist() == [0] for dtype in FLOATS)
    ends = torch.tensor([torch.finfo(torch.float64).max], dtype=torch.float64)
    assert ulps_between(ends, -ends).tolist() == [2**63 - 1]
    counted = UlpCounts()
    for distances in ([0, 0, 1, 2, 3, 4], [5, 1024, 5000], []):
        counted.add(torch.tensor(distances, dtype=torch.int64))
    assert counted.result() == Ulps(5000, ((0, 2), (1, 1), (2, 1), (4, 2), (8, 1), (1024, 1), (None, 1)))
    # Whole numbers and different types are not counted.
    assert ulps_between(torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32)) is None
    assert ulps_between(torch.ones(1), torch.ones(1, dtype=torch.bfloat16)) is None


STORED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16, torch.float16]


@pytest.mark.parametrize(
    ("dtype", "power"),
    [(torch.float8_e4m3fn, -4), (torch.float8_e5m2, -3), (torch.bfloat16, -8), (torch.float16, -11)],
    ids=str,
)
def test_largest_relative_error_of_storing_a_weight(dtype, power):
    assert unit_roundoff(dtype) == 2.0**power
    # One binade holds every case: from 1 to 2, in steps far finer than the type's.
    exact = torch.linspace(1, 2, 1 << 17, dtype=torch.float64)
    error = ((exact.to(dtype).to(torch.float64) - exact) / exact).abs()
    # Halfway between 1 and the next number the error is u, of a value of 1 + u.
    assert float(error.max()) == pytest.approx(2.0**power / (1 + 2.0**power), rel=0.02)
    assert float(error.square().mean().sqrt()) < one_rounding(dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32], ids=str)
def test_tolerances_are_those_of_torch_testing(dtype):
    rtol, atol = tolerances(dtype)
    # The library's message names its own.
    with pytest.raises(AssertionError) as error:
        torch.testing.assert_close(torch.tensor([100]).to(dtype), torch.tensor([1]).to(dtype))
    allowed = [float(number) for number in re.findall(r"up to (\S+)", str(error.value))]
    assert allowed == ([atol, rtol] if rtol else [])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("inner", [64, 4096])
def test_a_sum_in_another_order_stays_within_what_is_expected(dtype, inner):
    generator = torch.Generator().manual_seed(0)
    weight = (torch.randn(16, inner, generator=generator) / math.sqrt(inner)).to(dtype)
    x = torch.randn(16, inner, generator=generator).to(dtype)
    whole = x @ weight.T
    pieces = sum(a @ b.T for a, b in zip(x.chunk(8, 1), weight.chunk(8, 1), strict=True))
    apart = difference(whole, pieces).relative_l2
    assert 0 < apart < MARGIN * expected(dtype, (1, inner))


def test_work_is_read_off_the_weights_and_the_inputs():
    linear = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4))
    assert work_of(linear, [torch.zeros(2, 5, 8)]) == (2, 32)
    assert work_of(linear, [torch.zeros(1, 100, 8)]) == (2, 100)
    assert work_of(nn.Conv2d(3, 6, 5), []) == (1, 75)
    assert work_of(nn.GELU(), []) == (1, 1)


def test_more_work_and_coarser_types_allow_more():
    assert expected(torch.float32, (2, 64)) < expected(torch.float32, (8, 64)) < expected(torch.float32, (8, 4096))
    assert expected(torch.float64, (2, 64)) < expected(torch.float32, (2, 64)) < expected(torch.bfloat16, (2, 64))
    assert expected(torch.float32, (2, 64)) < expected(torch.float32, (2, 64), on_cuda=True)
    assert coarsest({torch.float32, torch.bfloat16, torch.int64}) == torch.bfloat16
    assert coarsest({torch.int64}) == torch.float32
    assert coarser(torch.bfloat16, torch.float16)
    assert not coarser(torch.float64, torch.float32)


@pytest.mark.parametrize("dtype", STORED, ids=str)
def test_loss_of_weights_is_that_of_the_cast(dtype):
    module = nn.Linear(64, 64, bias=False)
    with torch.no_grad():
        module.weight.uniform_(1, 2)
    exact = difference(module.weight, module.weight.to(dtype).to(torch.float32)).relative_l2
    assert loss_of_weights(module, dtype) == pytest.approx(exact, rel=1e-6)
    assert 0 < exact < one_rounding(dtype)
    # Small weights lose more in float8 than one rounding.
    small = loss_of_weights(nn.Linear(4096, 4), dtype)
    assert (small > one_rounding(dtype)) is (dtype == torch.float8_e4m3fn)
    assert loss_of_weights(nn.GELU(), dtype) == 0


def test_blocks_are_the_outermost_entries_of_lists_composed_ones_of_a_sequence_or_the_children():
    listed, composed = stack(count=2, residual=True)(), nn.Sequential(*(FeedForward(GEGLU, 4, 8) for _ in range(2)))
    assert (blocks_of(listed), parts_of(listed, "layers.0")) == (["layers.0", "layers.1"], ["layers.0.ff"])
    assert (blocks_of(composed), parts_of(composed, "0")) == (["0", "1"], [])
    children = nn.Module()
    children.first, children.act, children.second = nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)
    assert blocks_of(children) == ["first", "second"]


def only_in(layer: int, change: float):
    """Scales the last weight of one layer, in the changed model only."""

    def apply(model: nn.Module):
        with torch.no_grad():
            model.layers[layer].ff.net[2].weight.mul_(change)
        return lambda: None

    return apply


def test_a_layer_alone_shows_its_own_error_and_the_chain_carries_it_on():
    found = compare_outputs(stack(count=4, residual=True), tokens(), only_in(1, 1.5), training=False, claim="rounding")
    rows = {layer.path: layer for layer in found.layers}
    assert [path for path, each in rows.items() if not each.alone.bitwise] == ["layers.1", "layers.1.ff"]
    chained = [path for path, each in rows.items() if each.chained and not each.chained.bitwise]
    assert chained == ["layers.1", "layers.2", "layers.3"]
    assert [layer.block for layer in found.layers] == [True, False] * 4
    assert found.verdict.place == "layers.1.ff"


def test_alone_is_what_the_layer_gives_on_the_same_input_also_where_one_works_in_place():
    def build(*, in_place: bool = False) -> nn.Module:
        model = stack(count=2, residual=True)()
        torch.manual_seed(0)
        model.layers[0] = InPlace() if in_place else model.layers[0]
        return model

    inputs, model, changed = tokens(), build(), build()
    only_in(0, 1.5)(changed)
    with torch.no_grad():
        x = inputs["hidden_states"]
        by_hand = difference(model.layers[0].ff(x), changed.layers[0].ff(x))
    found = compare_outputs(build, inputs, only_in(0, 1.5), training=False, claim="rounding")
    assert next(layer for layer in found.layers if layer.path == "layers.0.ff").alone == by_hand
    found = compare_outputs(partial(build, in_place=True), inputs, only_in(1, 1.5), training=False, claim="rounding")
    assert next(layer for layer in found.layers if layer.path == "layers.0").alone.bitwise


def test_keyword_arguments_and_tuples_are_recorded_and_no_hook_is_left_behind():
    model = stack(count=2, residual=True)()
    with pytest.raises(ZeroDivisionError), recorded_layers(model, torch.device("cpu")) as calls:
        model(**tokens())
        raise ZeroDivisionError
    assert list(calls) == ["layers.0.ff", "layers.0", "layers.1.ff", "layers.1"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    call = calls["layers.0"]
    assert call.arguments[1] == {"scale": 1.0}
    assert list(call.outputs) == ["0"]


class InPlace(nn.Module):
    """Writes over its input, as some blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(self.linear(x))


@pytest.mark.parametrize("scale", [1.0, 1.5])
def test_a_layer_that_is_gone_is_noted(scale):
    def wrap(model: nn.Module):
        with torch.no_grad():
            model.layers[1].net[2].bias.mul_(scale)
        model.layers = nn.Sequential(nn.Sequential(*model.layers))
        return lambda: None

    found = compare_outputs(stack(count=2), tokens(), wrap, training=False, claim="rounding")
    assert found.outputs[0].difference.bitwise is (scale == 1)
    assert "layers.1 is not in the optimized model." in found.notes
    assert found.verdict.ok is False


def test_a_layer_with_a_cache_is_not_fed_twice():
    transformers = pytest.importorskip("transformers")

    def build() -> nn.Module:
        torch.manual_seed(0)
        sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8}
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=True)
        )

    def apply(model: nn.Module):
        with torch.no_grad():
            model.transformer.h[1].mlp.c_proj.weight.mul_(1.5)
        return lambda: None

    ids = {"input_ids": torch.arange(8)[None]}
    found = compare_outputs(build, ids, apply, training=False, claim="rounding")
    rows = {layer.path: layer.alone.bitwise for layer in found.layers}
    assert rows["transformer.h.0"]
    assert rows["transformer.h.1.attn"]
    assert not rows["transformer.h.1"]
    assert found.verdict.place == "transformer.h.1.mlp"


BOUNDS = Rounding(reductions=1, expected=1e-6, fine=1e-6, floor=None, exact=None)


def test_a_flat_buffer_is_read_by_name():
    reference = {"a": torch.ones(2, 2), "b": torch.zeros(3)}
    flat = torch.tensor([1.0, 1, 1, 2, 0, 0, 0])
    ours = {"a": flat[:4], "b": flat[4:]}
    found = compare_gradients(reference, ours, reference, bounds=BOUNDS)
    assert [(parameter.name, parameter.difference.bitwise, parameter.noise) for parameter in found.parameters] == [
        ("a", False, 0.0),
        ("b", True, 0.0),
    ]
    assert found.relative_l2 == 0.5


def test_names_that_only_one_side_has_are_told_with_noise_and_another_number_of_elements_refused():
    one = torch.ones(1)
    found = compare_gradients({"a": one, "b": one}, {"b": one, "c": one}, {"a": one, "b": 1.5 * one}, bounds=BOUNDS)
    assert (found.only_reference, found.only_ours, found.parameters[0].noise) == (("a",), ("c",), 0.5)
    with pytest.raises(UsageError, match="gradient of a has 3 elements, the reference's 4"):
        compare_gradients({"a": torch.ones(4)}, {"a": torch.ones(3)}, {"a": torch.ones(4)}, bounds=BOUNDS)


def test_a_gradient_of_nothing_but_rounding_is_measured_by_that_rounding():
    """Exactly zero, 1e-9 in float32 and 1e-17 in float64: the two exact ones agree."""
    reference, ours = {"k.bias": torch.tensor([1e-9])}, {"k.bias": torch.tensor([-2e-9])}
    exact = tuple({"k.bias": torch.tensor([value], dtype=torch.float64)} for value in (1e-17, -1e-17))
    found = compare_gradients(reference, ours, reference, bounds=BOUNDS, exact=exact)
    rounding = found.parameters[0].rounding
    assert found.parameters[0].difference.relative_l2 == pytest.approx(3)
    assert rounding.exact == pytest.approx(2e-8)
    assert rounding.floor == pytest.approx(1)


def test_losses_are_compared_step_by_step():
    curve = LossCurve((2.0, 1.0), (2.0, 1.0), (2.0, 1.1))
    assert (curve.bitwise, curve.finite, curve.noise) == (False, True, 0.0)
    assert curve.worst == pytest.approx(0.1)
    assert LossCurve((2.0,), (2.0,), (2.0,)).bitwise
    # One that is not finite is told from one that never was.
    assert not LossCurve((2.0,), (2.0,), (math.nan,)).finite
    both = LossCurve((math.nan,), (math.nan,), (math.nan,))
    assert both.finite
    assert both.bitwise
