"""Two tensors, in every measure: small cases by hand, laws as properties."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memviz.errors import UsageError
from memviz.runner.output_check import difference as module
from memviz.runner.output_check.difference import Difference, Ulps, difference, differences

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def vectors(width: int = 32, most: float = 2.0**60) -> st.SearchStrategy[list[float]]:
    one = st.floats(-most, most, width=width)
    return st.lists(one, min_size=1, max_size=20)


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


@given(vectors())
def test_a_tensor_does_not_differ_from_itself(values):
    tensor = torch.tensor(values)
    found = difference(tensor, tensor.clone())
    assert found.bitwise
    assert (found.unequal, found.absmax, found.absmean, found.l2, found.relative_l2) == (0, 0, 0, 0, 0)
    assert (found.sqnr_db, found.cosine, found.worst_relative, found.outside) == (math.inf, 1, 0, 0)
    assert found.ulps == Ulps(0, ((0, len(values)),))


@given(pairs())
def test_absolute_figures_are_the_same_from_both_sides(both):
    there, back = difference(*both), difference(both[1], both[0])
    assert (there.absmax, there.absmean, there.unequal, there.ulps) == (
        back.absmax,
        back.absmean,
        back.unequal,
        back.ulps,
    )
    assert there.l2 == back.l2


@given(pairs(), st.integers(-20, 20))
def test_scaling_both_by_a_power_of_two_scales_absolute_figures_and_no_relative_one(both, exponent):
    factor = 2.0**exponent
    exact = [each.to(torch.float64) for each in both]
    plain, scaled = difference(*exact), difference(*(each * factor for each in exact))
    assert (scaled.absmax, scaled.reference_absmax) == (plain.absmax * factor, plain.reference_absmax * factor)
    assert scaled.relative_l2 == pytest.approx(plain.relative_l2, rel=1e-12)
    assert scaled.cosine == pytest.approx(plain.cosine, rel=1e-12, abs=1e-12)


@given(pairs(), st.randoms(use_true_random=False))
def test_order_does_not_matter(both, random):
    order = list(range(both[0].numel()))
    random.shuffle(order)
    plain, mixed = difference(*both), difference(both[0][order], both[1][order])
    assert (plain.absmax, plain.unequal, plain.ulps, plain.outside) == (
        mixed.absmax,
        mixed.unequal,
        mixed.ulps,
        mixed.outside,
    )
    assert mixed.relative_l2 == pytest.approx(plain.relative_l2, rel=1e-12)
    assert mixed.reference_std == pytest.approx(plain.reference_std, rel=1e-9, abs=1e-30)


@given(pairs())
def test_pieces_add_up_to_the_whole(both):
    whole = difference(*both)
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


def test_the_sign_of_a_zero_is_a_bit_and_no_difference():
    found = difference(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert (found.bitwise, found.unequal, found.absmax, found.relative_l2) == (False, 1, 0, 0)


def test_a_reference_of_zeros_has_no_scale():
    found = difference(torch.zeros(2), torch.tensor([0.0, 1.0]))
    assert (found.relative_l2, found.sqnr_db, found.cosine) == (math.inf, -math.inf, 0)


def test_whole_numbers_are_held_to_equality():
    large = torch.tensor([2**60, 5, 7])
    found = difference(large, large + torch.tensor([1, 0, 2]))
    assert (found.unequal, found.absmax, found.outside, found.ulps) == (2, 2, pytest.approx(2 / 3), None)
    truth = difference(torch.tensor([True, False]), torch.tensor([True, True]))
    assert (truth.unequal, truth.absmax, truth.outside) == (1, 1, 0.5)


def test_types_that_differ_are_never_bitwise_equal():
    found = difference(torch.ones(3), torch.ones(3, dtype=torch.bfloat16))
    assert (found.dtypes, found.bitwise, found.unequal, found.absmax) == (("float32", "bfloat16"), False, 0, 0)
    assert found.ulps is None


def test_nothing_is_equal_to_nothing():
    found = difference(torch.empty(0, 3), torch.empty(0, 3))
    assert (found.elements, found.bitwise, found.absmax, found.relative_l2, found.cosine) == (0, True, 0, 0, 1)


def test_complex_numbers_count_as_two():
    found = difference(torch.tensor([3 + 4j]), torch.tensor([3 + 5j]))
    assert (found.elements, found.unequal, found.relative_l2) == (2, 1, 0.2)


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


def test_views_are_compared_as_they_read():
    values = torch.arange(6.0).view(2, 3)
    assert difference(values.t(), values.t().contiguous()).bitwise


def test_shapes_must_be_the_same():
    with pytest.raises(UsageError, match=r"shape \(2, 3\), ours \(3, 2\)"):
        difference(torch.zeros(2, 3), torch.zeros(3, 2))


def test_a_tensor_without_values_is_refused():
    with pytest.raises(UsageError, match="meta device has no values"):
        difference(torch.zeros(2, device="meta"), torch.zeros(2, device="meta"))


def test_names_must_be_the_same():
    with pytest.raises(UsageError, match="returns logits, the changed model sample;"):
        differences({"logits": torch.zeros(1)}, {"sample": torch.zeros(1)})


def test_absmax_has_a_scale_the_largest_of_the_reference():
    reference, ours = torch.tensor([0.0, -4.0, 2.0]), torch.tensor([0.0, -4.0, 3.0])
    found = difference(reference, ours)
    assert (found.absmax, found.reference_absmax, found.relative_absmax) == (1.0, 4.0, 0.25)
    assert difference(reference * 1e-6, ours * 1e-6).relative_absmax == pytest.approx(0.25)
    zero = torch.zeros(3)
    assert difference(zero, zero).relative_absmax == 0
    assert difference(zero, ours).relative_absmax == math.inf
