"""Copies between the host and the GPU: extra GPU memory for non-contiguous tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memviz.predictor.device import PredictedDevice
from memviz.trace.model import Category
from tests.predictor.rows import A100, allocations
from tests.predictor.test_evidence import found

KiB = 1024
COPYING = ("_to_copy", "copy_", "_foreach_copy_")


def beside(program: Callable[[], Any]) -> list[int]:
    """Return the temporaries of copies, in order."""
    with PredictedDevice(A100) as device, torch.no_grad():
        program()
        rows = allocations(device.finish())
    return [row.size for row in rows if row.operator in COPYING and row.category is Category.TEMPORARY]


def card(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="cuda")


def host(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype)


LEAVING: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "one piece": (lambda: card(64, 64).cpu(), []),
    "turned, and the copy lies so too": (lambda: card(64, 32).t().cpu(), []),
    "turned, and the copy does not": (
        lambda: card(64, 32).t().to("cpu", memory_format=torch.contiguous_format),
        [8 * KiB],
    ),
    "every second column": (lambda: card(64, 64)[:, ::2].cpu(), [8 * KiB]),
    "part of the rows": (lambda: card(64, 64)[:32].cpu(), []),
    "part of the columns": (lambda: card(64, 64)[:, :32].cpu(), [8 * KiB]),
    "a column": (lambda: card(256, 64)[:, 0].cpu(), [KiB]),
    "one number of a column": (lambda: card(256, 64)[3:4, 5].cpu(), []),
    "expanded": (lambda: card(64).expand(64, 64).cpu(), [16 * KiB]),
    "another type, changed on the host": (lambda: card(64, 64).to("cpu", torch.half), []),
    "columns of another type": (lambda: card(64, 64)[:, ::2].to("cpu", torch.half), [8 * KiB]),
    "another type, and nobody waits": (lambda: card(64, 64).to("cpu", torch.half, non_blocking=True), [8 * KiB]),
    "columns of another type, and nobody waits": (
        lambda: card(64, 64)[:, ::2].to("cpu", torch.half, non_blocking=True),
        [4 * KiB],
    ),
    "turned, of another type, and nobody waits": (
        lambda: card(64, 32).t().to("cpu", torch.half, non_blocking=True),
        [4 * KiB, 4 * KiB],
    ),
    "into what is there": (lambda: host(64, 64).copy_(card(64, 64)), []),
    "into columns": (lambda: host(64, 64)[:, ::2].copy_(card(64, 32)), []),
    "columns into what is there": (lambda: host(64, 32).copy_(card(64, 64)[:, ::2]), [8 * KiB]),
    "a row into many": (lambda: host(64, 64).copy_(card(64)), [16 * KiB]),
    "into another type, and nobody waits": (
        lambda: host(64, 64, dtype=torch.half).copy_(card(64, 64), non_blocking=True),
        [8 * KiB],
    ),
    "values that are known": (lambda: torch.arange(256, device="cuda")[::2].cpu(), [KiB]),
    "a list of which one": (
        lambda: torch._foreach_copy_([host(64, 32), host(64)], [card(64, 64)[:, ::2], card(64)]),
        [8 * KiB],
    ),
}
ARRIVING: dict[str, tuple[Callable[[], Any], list[int]]] = {
    "one piece": (lambda: host(64, 64).cuda(), []),
    "every second column": (lambda: host(64, 64)[:, ::2].cuda(), []),
    "turned": (lambda: host(64, 32).t().cuda(), []),
    "another type": (lambda: host(64, 64).to("cuda", torch.half), []),
    "turned, of another type": (lambda: host(64, 32).t().to("cuda", torch.half), [4 * KiB]),
    "another type, and nobody waits": (lambda: host(64, 64).to("cuda", torch.half, non_blocking=True), [16 * KiB]),
    "a number": (lambda: card(64, 64).copy_(3), []),  # type: ignore[arg-type]
    "into columns": (lambda: card(64, 64)[:, ::2].copy_(host(64, 32)), [8 * KiB]),
    "columns by their index": (lambda: card(64, 64).__setitem__((slice(None), 0), host(64)), [256]),
    "another type into what is there": (lambda: card(64, 64, dtype=torch.half).copy_(host(64, 64)), []),
    "another type into columns": (lambda: card(64, 64, dtype=torch.half)[:, ::2].copy_(host(64, 32)), [4 * KiB]),
    "another type into columns, and nobody waits": (
        lambda: card(64, 64, dtype=torch.half)[:, ::2].copy_(host(64, 32), True),
        [8 * KiB],
    ),
    "a row into many": (lambda: card(64, 64).copy_(host(64)), []),
    "a list of which one": (
        lambda: torch._foreach_copy_([card(64, 64)[:, ::2], card(64)], [host(64, 32), host(64)]),
        [8 * KiB],
    ),
}
STAYING: dict[str, Callable[[], Any]] = {
    "on the card": lambda: card(64, 64)[:, ::2].copy_(card(64, 32, dtype=torch.half)),
    "on the host": lambda: host(64, 64)[:, ::2].copy_(host(64, 32, dtype=torch.half)),
    "nowhere": lambda: torch.empty(64, 64, device="meta")[:, ::2].copy_(host(64, 32)),
}  # fmt: skip


@pytest.mark.parametrize("way", LEAVING)
def test_what_leaves_is_made_one_piece_on_the_card_first(way: str) -> None:
    program, taken = LEAVING[way]
    assert beside(program) == taken


@pytest.mark.parametrize("way", ARRIVING)
def test_what_arrives_comes_in_one_piece_and_is_put_in_place_then(way: str) -> None:
    program, taken = ARRIVING[way]
    assert beside(program) == taken


@pytest.mark.parametrize("way", STAYING)
def test_what_stays_where_it_is_takes_nothing_besides(way: str) -> None:
    assert beside(STAYING[way]) == []


def test_it_is_said_that_no_recording_proves_this() -> None:
    with PredictedDevice(A100) as device:
        x = card(1024, 1024)
        x[:, ::2].cpu()
        one = found(device)["copies to and from the host of non-contiguous tensors"]
    assert (one.standing, one.bytes, one.bytes_at_peak) == ("read", 2 << 20, 2 << 20)


def test_weights_of_images_are_put_down_once_more_where_their_channels_come_last_and_their_type_changes() -> None:
    def program(**how: Any) -> Callable[[], Any]:
        layer = nn.Conv2d(64, 64, 3, bias=False).to(memory_format=torch.channels_last)
        return lambda: layer.to("cuda", **how)

    assert beside(program()) == []
    assert beside(program(dtype=torch.half)) == [72 * KiB]
    assert beside(program(dtype=torch.half, non_blocking=True)) == [144 * KiB]
