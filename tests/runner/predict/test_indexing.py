"""What is taken beside the results of operators with indices, and of some others that make tensors for a moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from memviz.runner.predict.cards import KnownCard, card_named
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.predict.workspaces import sort_scratch_bytes
from tests.runner.predict.rows import A100, allocations

RTX4090 = card_named("RTX 4090")


def taken(
    run: Callable[[], object], operator: str, *, card: KnownCard = A100, release: tuple[int, int] = (2, 13)
) -> list[int]:
    """By an operator, its results included."""
    with PredictedDevice(card, release=release) as device:
        run()
        return [row.size for row in allocations(device.finish()) if row.operator == operator]


@pytest.mark.parametrize(
    ("card", "count", "highest", "size"),
    [
        # The first three were recorded.
        ("RTX 4090", 1024, 9_999, 1),
        ("RTX 4090", 2048, 9_999, 1),
        ("RTX 4090", 8192, 9_999, 138_751),
        ("H100", 8192, 9_999, 2 * 2048 + 2 * 1024 + 2 * 65_536 + 256 + 255),
        ("T4", 8192, 9_999, 2 * 2048 + 3 * 1024 + 2 * 65_536 + 256 + 255),
        ("RTX 4090", 8192, 70_000, 3 * 2048 + 3 * 1024 + 2 * 65_536 + 256 + 255),
        # One pass writes straight into the results.
        ("RTX 4090", 8192, 255, 2048 + 3 * 1024 + 256 + 255),
    ],
)
def test_scratch_of_a_sort(card: str, count: int, highest: int, size: int) -> None:
    assert sort_scratch_bytes(count, highest, card_named(card)) == size


def test_a_number_to_the_power_of_a_tensor_is_a_tensor_for_a_moment() -> None:
    def raised(base: complex) -> list[int]:
        return taken(lambda: base ** torch.zeros(32, device="cuda"), "pow_Scalar")

    assert raised(10_000) == raised(0.5) == [128, 8]
    assert raised(1) == raised(1.0) == [128]
    assert raised(1j) == [256, 16]
    assert taken(lambda: torch.zeros(32, device="cuda") ** 2, "pow_Tensor_Scalar") == [128]


def test_indices_of_the_host_are_copied() -> None:
    def look(device: str) -> list[int]:
        return taken(lambda: torch.zeros(10, 64, device="cuda")[torch.tensor([1, 2, 3], device=device)], "index_Tensor")

    assert look("cuda") == [768]
    assert look("cpu") == [768, 24]

    def put() -> None:
        torch.zeros(10, 64, device="cuda")[torch.tensor([1, 2, 3])] = torch.zeros(64, device="cuda")

    assert taken(put, "index_put_") == [24]


def add_at(table: tuple[int, ...], added: Tensor, *indices: Tensor) -> Callable[[], object]:
    return lambda: torch.zeros(table, device="cuda").index_put_(
        tuple(index.to("cuda") for index in indices), added.to("cuda"), accumulate=True
    )


def test_adding_at_indices_sorts_them() -> None:
    few, many = torch.zeros(100, dtype=torch.int64), torch.zeros(8192, dtype=torch.int64)
    assert taken(add_at((512, 16), torch.zeros(100, 16), few), "index_put_") == [800] * 5 + [1]
    found = taken(add_at((10_000, 16), torch.zeros(8192, 16), many), "index_put_", card=RTX4090)
    assert found == [65_536] * 5 + [138_751]
    # A second index takes two more for a moment.
    assert taken(add_at((8, 8, 4), torch.zeros(100, 4), few, few), "index_put_") == [800] * 7 + [1]


def test_what_is_added_at_indices_is_laid_end_to_end() -> None:
    few = torch.zeros(100, dtype=torch.int64)
    found = taken(add_at((512, 16), torch.zeros(16), few), "index_put_")
    assert found == [800, 800, 100 * 16 * 4, 800, 800, 800, 1]


def test_expanded_indices_of_an_embedding_are_copied() -> None:
    def run(expand: bool) -> Callable[[], object]:
        def look_up() -> Tensor:
            table = torch.zeros(10, 64, device="cuda")
            rows = torch.zeros(8, dtype=torch.int64, device="cuda")
            return functional.embedding(rows.expand(4, 8) if expand else rows.repeat(4, 1), table)

        return look_up

    assert taken(run(False), "embedding") == [8192]
    assert taken(run(True), "embedding") == [8192, 256]


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_padding_copies_what_does_not_lie_end_to_end(mode: str) -> None:
    name = {"reflect": "reflection", "replicate": "replication"}[mode]

    def run(turned: bool) -> list[int]:
        def pad() -> Tensor:
            x = torch.zeros(2, 3, 16, 16, device="cuda")
            return functional.pad(x.transpose(2, 3) if turned else x, (1, 1, 1, 1), mode=mode)

        return taken(pad, f"{name}_pad2d")

    assert run(False) == [2 * 3 * 18 * 18 * 4]
    assert run(True) == [2 * 3 * 18 * 18 * 4, 2 * 3 * 16 * 16 * 4]


def test_the_state_of_random_numbers_of_attention_is_where_the_release_keeps_it() -> None:
    def attend(dtype: torch.dtype) -> Callable[[], object]:
        def run() -> None:
            x = torch.zeros(2, 4, 128, 64, device="cuda", dtype=dtype, requires_grad=True)
            functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1, is_causal=True).sum().backward()

        return run

    flash, efficient = "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"
    assert taken(attend(torch.bfloat16), flash, release=(2, 6)) == [131_072, 4096]
    assert taken(attend(torch.bfloat16), flash, release=(2, 7)) == [131_072, 4096, 16, 8]
    for release in ((2, 6), (2, 13)):
        assert taken(attend(torch.float32), efficient, release=release) == [262_144, 4096]
