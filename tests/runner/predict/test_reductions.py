"""Buffers of reductions, held against recordings of others and against torch's rules worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from memviz.runner.predict.cards import KnownCard, card_named
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.predict.workspaces import Accumulator, reduction_buffers
from memviz.trace.model import Category
from tests.runner.predict.rows import A100, allocations

RTX_4090 = card_named("RTX 4090")
FLOATS = Accumulator(kept=4, output=4)


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("shape", "dims", "taken"),
    [
        # Recorded: the gradient of a norm's weight, and a sum over everything.
        ((4, 512, 1024), (0, 1), [16_777_216, 32]),
        ((8, 4096, 16), (), [256, 4]),
        # 192 blocks of four warps would keep the card busy, but 16 values a thread are the least.
        ((64, 1024, 1024), (0, 1), [192 * 1024 * 4 * 32 * 4, 32]),
        # Rows one by one: every warp has its own outputs.
        ((8192, 768), (1,), []),
        # Too few rows to split.
        ((512, 1024), (0,), []),
    ],
)
def test_a_sum_is_split_over_a_card_with_128_multiprocessors(
    shape: tuple[int, ...], dims: tuple[int, ...], taken: list[int]
) -> None:
    assert reduction_buffers(empty(*shape), dims, FLOATS, RTX_4090) == taken


def test_more_threads_on_more_multiprocessors_take_more() -> None:
    many = empty(64, 1024, 1024)
    by_card = {
        name: reduction_buffers(many, (0, 1), FLOATS, card_named(name))[0] for name in ("T4", "RTX 4090", "A100 40GB")
    }
    one = 1024 * 4 * 32 * 4
    # 40 x 1024, 128 x 1536 and 108 x 2048 threads, in blocks of 128 over 8 columns of them.
    assert by_card == {"T4": 64 * one, "RTX 4090": 192 * one, "A100 40GB": 216 * one}


def test_what_begins_or_ends_oddly_is_not_read_in_vectors() -> None:
    # Without vectors of four a block is 16 warps high and 32 outputs wide. To keep the card busy 12 shares would do,
    # but a thread adds no more than 256 of 65,536 / 16 values.
    odd = reduction_buffers(empty(64, 1024, 1023), (0, 1), FLOATS, RTX_4090)
    assert odd == [16 * 1023 * 4 * 32, 32 * 4]
    late = empty(64 * 1024 * 1024 + 1)[1:].view(64, 1024, 1024)
    assert reduction_buffers(late, (0, 1), FLOATS, RTX_4090) == [16 * 1024 * 4 * 32, 32 * 4]


def test_dimensions_are_taken_as_they_lie_whatever_they_are_called() -> None:
    turned = empty(4, 512, 1024).permute(2, 0, 1)
    assert reduction_buffers(turned, (1, 2), FLOATS, RTX_4090) == [16_777_216, 32]


def test_what_32_bits_do_not_reach_is_summed_in_parts() -> None:
    whole = empty(2**30)
    (first, second) = reduction_buffers(whole, (), FLOATS, RTX_4090)
    assert first == second == (2**29 // 512 // 256 * 4, 4)
    half = empty(2**31, dtype=torch.float16)
    accumulator, *parts = reduction_buffers(half, (), Accumulator(4, 2, accumulates_in_output=False), RTX_4090)
    assert accumulator == 4 and len(parts) == 2


def _taken(run: Callable[[Tensor], object], dtype: torch.dtype, card: KnownCard = A100) -> list[int]:
    with PredictedDevice(card) as device:
        x = torch.zeros(4096, 1024, device="cuda", dtype=dtype)
        before = len(allocations(device.finish()))
        kept = run(x)
        rows = allocations(device.finish())[before:]
        del kept
    return [row.size for row in rows if row.category is Category.TEMPORARY]


_PARTS = 64 * 1024 * 32 * 4
"""Values of 1,024 outputs in 64 shares: 1,024 rows a warp of four, of which a thread adds 16."""


@pytest.mark.parametrize(
    ("run", "dtype", "taken"),
    [
        (lambda x: x.sum(0), torch.float32, [_PARTS * 4, 32]),
        (lambda x: x.sum(0), torch.bfloat16, [_PARTS * 4, 32]),
        (lambda x: x.mean(0), torch.float16, [_PARTS * 4, 32]),
        (lambda x: x.amax(0), torch.bfloat16, [_PARTS * 2, 32]),
        (lambda x: x.max(0), torch.float32, [_PARTS * 16, 32]),
        (lambda x: x.max(0), torch.bfloat16, [_PARTS * 16, 32]),
        (lambda x: x.argmax(0), torch.float32, [_PARTS * 16, 32]),
        (lambda x: x.var(0), torch.float32, [_PARTS * 16, 32]),
        (lambda x: torch.linalg.vector_norm(x, dim=0), torch.float32, [_PARTS * 4, 32]),
        (lambda x: torch.maximum(x, x), torch.float32, []),
        # Counting copies what it counts into integers first.
        (lambda x: x.sum(0), torch.bool, [4096 * 1024 * 8, _PARTS * 8, 32]),
        (lambda x: x.sum(0, dtype=torch.float32), torch.bfloat16, [_PARTS * 4, 32]),
        (lambda x: torch.nn.functional.mse_loss(x, x), torch.float32, [4096 * 1024 * 4, 432 * 4, 4]),
    ],
)
def test_operators_keep_values_of_their_own_width(
    run: Callable[[Tensor], object], dtype: torch.dtype, taken: Sequence[int]
) -> None:
    assert _taken(run, dtype) == list(taken)
