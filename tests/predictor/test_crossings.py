"""Copies between the host and the GPU: extra GPU memory for non-contiguous tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import memviz
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


ROWS = {"leaving": LEAVING, "arriving": ARRIVING, "staying": {name: (run, []) for name, run in STAYING.items()}}


@pytest.mark.parametrize(("where", "way"), [(where, way) for where, rows in ROWS.items() for way in rows])
def test_a_copy_crosses_in_one_piece_which_is_made_on_the_card(where: str, way: str) -> None:
    program, taken = ROWS[where][way]
    assert beside(program) == taken


def test_it_is_said_that_no_recording_proves_this(device: PredictedDevice) -> None:
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


# Models that change their type or layout on their way to the device: one copy of each tensor, as it will be.


LAST = torch.channels_last
LAYERS, NUMBERS = 4, 256 * 256


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(LAYERS)))


@pytest.mark.parametrize(
    ("move", "most"),
    [
        (lambda model: model.to("cuda", torch.bfloat16), 0),
        (lambda model: model.to(device="cuda", dtype=torch.bfloat16), 0),
        (lambda model: model.to(torch.device("cuda"), dtype=torch.bfloat16), 0),
        (lambda model: model.to(torch.zeros((), device="cuda", dtype=torch.bfloat16)), 512),
        # Where nobody waits, each weight changes its type there.
        (lambda model: model.to(device="cuda", dtype=torch.bfloat16, non_blocking=True), NUMBERS * 4),
        (lambda model: model.to("cuda", torch.bfloat16, True), NUMBERS * 4),
    ],
)
def test_weights_lie_there_in_their_old_type_only_where_nobody_waits(
    move: Callable[[nn.Module], nn.Module], most: int, device: PredictedDevice
) -> None:
    model = move(layers())
    assert {(parameter.dtype, parameter.is_cuda) for parameter in model.parameters()} == {(torch.bfloat16, True)}
    assert device.allocated_bytes == LAYERS * NUMBERS * 2
    assert device.peak_allocated_bytes == LAYERS * NUMBERS * 2 + most


def test_weights_change_type_and_layout_on_their_way(device: PredictedDevice) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to("cuda", torch.half, memory_format=LAST)
    convolution, norm = model[0], model[1]
    assert convolution.weight.is_contiguous(memory_format=LAST) and not convolution.weight.is_contiguous()
    assert (convolution.weight.dtype, norm.running_mean.dtype) == (torch.half, torch.half)
    assert norm.num_batches_tracked.dtype == torch.long
    assert torch.zeros(2, 3, 4, 4).cuda(memory_format=LAST).is_contiguous(memory_format=LAST)
    assert torch.zeros(2, 3, 4, 4).contiguous(memory_format=LAST).cuda().is_contiguous(memory_format=LAST)
    assert torch.zeros(2, 3, 4, 4).cuda().is_contiguous()


def test_buffers_that_change_their_type_on_the_card_are_still_the_models() -> None:
    assert set(memviz.predict(lambda: nn.BatchNorm2d(1 << 20).to("cuda").half()).by_category()) == {"parameter"}


def test_a_lazy_layer_gets_its_weights_where_it_was_moved(device: PredictedDevice) -> None:
    model = nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(4)).to("cuda")
    # The number of batches that the norm has seen.
    assert device.allocated_bytes == 512
    model(torch.zeros(2, 3, 8, 8, device="cuda")).sum().backward()
    assert all(weight.is_cuda and weight.grad is not None for weight in model.parameters())
    assert model[3].weight.shape == (4, 8 * 6 * 6)


class Names(nn.Module):
    """Uses names of nn.Module's methods for something else, as programs do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(256))
        self.layers = nn.Sequential(nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False))
        self.modules, self.buffers = ["weight"], 3

    def parameters(self) -> list[nn.Parameter]:  # type: ignore[override]
        return [self.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * self.weight


def test_a_program_may_give_other_meanings_to_the_names_of_a_modules_methods(device: PredictedDevice) -> None:
    model = Names().to("cuda", torch.bfloat16)
    assert device.allocated_bytes == 2 * NUMBERS * 2 + 512
    model(torch.ones(4, 256, device="cuda", dtype=torch.bfloat16)).sum().backward()
    assert model.weight.grad is not None and model.weight.grad.is_cuda
