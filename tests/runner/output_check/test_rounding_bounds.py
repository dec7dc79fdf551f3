"""The theory of rounding, against what PyTorch does."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from memviz.runner.output_check.difference import (
    MARGIN,
    coarser,
    coarsest,
    difference,
    expected,
    loss_of_weights,
    one_rounding,
    tolerances,
    unit_roundoff,
    work_of,
)

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
    edge = atol + rtol * 64
    for factor, passes in ((0.9, True), (1.1, False)):
        one = torch.tensor([64.0], dtype=torch.float64)
        other = one + edge * factor if edge else one + (0 if passes else 1)
        kwargs = {"check_dtype": False, "rtol": rtol, "atol": atol}
        assert closes(other, one, **kwargs) is passes
    # And asked without them, the library takes the same: the message names what it allowed.
    with pytest.raises(AssertionError) as error:
        torch.testing.assert_close(torch.tensor([100]).to(dtype), torch.tensor([1]).to(dtype))
    allowed = [
        float(line.split("up to ")[1].split(" ")[0]) for line in str(error.value).splitlines() if "up to" in line
    ]
    assert allowed == ([atol, rtol] if edge else [])


def closes(one: torch.Tensor, other: torch.Tensor, **kwargs: object) -> bool:
    try:
        torch.testing.assert_close(one, other, **kwargs)
    except AssertionError:
        return False
    return True


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


def test_the_coarsest_type_decides():
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


def test_small_weights_lose_more_in_float8_than_one_rounding():
    module = nn.Linear(4096, 4)
    assert loss_of_weights(module, torch.float8_e4m3fn) > one_rounding(torch.float8_e4m3fn)
    assert loss_of_weights(nn.GELU(), torch.float8_e4m3fn) == 0
