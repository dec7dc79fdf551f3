"""How far rounding alone may carry two computations of the same thing apart.

Nothing here is tuned to a result. A number of type t is stored with a relative error of at most u(t), half its
machine epsilon; spread evenly over that half unit the error's root mean square is at most u / sqrt(3). Errors of
independent roundings add in squares. So a layer that reduces over `longest` terms, `reductions` times in a row, is
off by about

    sqrt(reductions) * (u(stored) + sqrt(longest) * u(accumulated)) / sqrt(3)

relative to its result, where half and quarter types accumulate in float32. Kernels that sum in blocks do better.

MARGIN says how much further a rewrite may lie before it needs another explanation than rounding. Because of the
squares, 8 leaves room for 63 times as many roundings as the formula, or the reference itself, has.
"""

from __future__ import annotations

import math

import torch
from torch import nn

MARGIN = 8.0

_EXACT = (0.0, 0.0)
_TOLERANCES = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
_TF32 = 2.0**-11
"""Ten bits are stored, as in float16."""


def tolerances(*dtypes: torch.dtype) -> tuple[float, float]:
    """rtol and atol of torch.testing.assert_close; of two types the larger, types it holds to equality have none."""
    known = [_TOLERANCES.get(dtype, _EXACT) for dtype in dtypes]
    return max(rtol for rtol, _ in known), max(atol for _, atol in known)


def unit_roundoff(dtype: torch.dtype) -> float:
    """The largest relative error of storing one number that is not subnormal."""
    return float(torch.finfo(dtype).eps) / 2


def one_rounding(dtype: torch.dtype) -> float:
    """The root mean square of that error, at most."""
    return unit_roundoff(dtype) / math.sqrt(3)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def coarsest(dtypes: set[torch.dtype]) -> torch.dtype:
    """Of the floating point types among these, the one that rounds most; float32 if there is none."""
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=unit_roundoff, default=torch.float32)


def coarser(dtype: torch.dtype, other: torch.dtype) -> bool:
    return not dtype.is_floating_point or unit_roundoff(dtype) > unit_roundoff(other)


def expected(dtype: torch.dtype, work: tuple[int, int], *, on_cuda: bool = False) -> float:
    """The formula above. `work` is (reductions, longest). On CUDA, float32 products may run as TF32."""
    reductions, longest = work
    accumulated = math.sqrt(longest) * one_rounding(accumulator(dtype))
    stored = _TF32 / math.sqrt(3) if on_cuda and dtype == torch.float32 else one_rounding(dtype)
    return math.sqrt(max(reductions, 1)) * (stored + accumulated)


def work_of(module: nn.Module, inputs: list[torch.Tensor]) -> tuple[int, int]:
    """(reductions, longest): how many weights of two or more dimensions, and the longest sum that can occur.

    A sum runs over a weight's inputs, or over a dimension of the module's inputs: attention sums over tokens.
    """
    weights = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    fan_in = [weight.numel() // max(weight.shape[0], 1) for weight in weights]
    sides = [side for tensor in inputs for side in tensor.shape]
    return max(len(weights), 1), max([1, *fan_in, *sides])


def loss_of_weights(module: nn.Module, dtype: torch.dtype) -> float:
    """By how much, relative and in the root of the mean square, storing this module's weights as `dtype` changes them.

    Taken from the reference's own weights: small ones are subnormal in float8 and lose more than `unit_roundoff`.
    """
    change, whole = 0.0, 0.0
    for parameter in module.parameters():
        if parameter.is_floating_point():
            exact = parameter.detach().to(torch.float64)
            change += float((exact.to(dtype).to(torch.float64) - exact).square().sum())
            whole += float(exact.square().sum())
    return math.sqrt(change / whole) if whole else 0.0
