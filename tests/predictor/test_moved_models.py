"""Models that change their type or layout on their way to the device: one copy of each tensor, as it will be."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import memviz
from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100

LAST = torch.channels_last
LAYERS, NUMBERS = 4, 256 * 256


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(LAYERS)))


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.to("cuda", torch.bfloat16),
        lambda model: model.to(device="cuda", dtype=torch.bfloat16),
        lambda model: model.to(torch.device("cuda"), dtype=torch.bfloat16),
        lambda model: model.to(torch.zeros((), device="cuda", dtype=torch.bfloat16)),
    ],
)
def test_weights_never_lie_there_in_their_old_type(move: Callable[[nn.Module], nn.Module]) -> None:
    with PredictedDevice(A100) as device:
        model = move(layers())
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert all(parameter.is_cuda for parameter in model.parameters())
        assert device.allocated_bytes == LAYERS * NUMBERS * 2
        assert device.peak_allocated_bytes <= LAYERS * NUMBERS * 2 + 512


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.to(device="cuda", dtype=torch.bfloat16, non_blocking=True),
        lambda model: model.to("cuda", torch.bfloat16, True),
    ],
)
def test_where_nobody_waits_each_weight_changes_its_type_there(move: Callable[[nn.Module], nn.Module]) -> None:
    with PredictedDevice(A100) as device:
        model = move(layers())
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert device.allocated_bytes == LAYERS * NUMBERS * 2
        assert device.peak_allocated_bytes == LAYERS * NUMBERS * 2 + NUMBERS * 4


def test_whole_numbers_and_vectors_keep_what_they_are() -> None:
    with PredictedDevice(A100):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).to("cuda", torch.half, memory_format=LAST)
        convolution, norm = model[0], model[1]
        assert convolution.weight.is_contiguous(memory_format=LAST) and not convolution.weight.is_contiguous()
        assert (convolution.weight.dtype, norm.running_mean.dtype) == (torch.half, torch.half)
        assert norm.num_batches_tracked.dtype == torch.long


def test_buffers_that_change_their_type_on_the_card_are_still_the_models() -> None:
    assert set(memviz.predict(lambda: nn.BatchNorm2d(1 << 20).to("cuda").half()).by_category()) == {"parameter"}


def test_a_tensor_is_laid_out_on_its_way() -> None:
    with PredictedDevice(A100):
        assert torch.zeros(2, 3, 4, 4).cuda(memory_format=LAST).is_contiguous(memory_format=LAST)
        assert torch.zeros(2, 3, 4, 4).contiguous(memory_format=LAST).cuda().is_contiguous(memory_format=LAST)
        assert torch.zeros(2, 3, 4, 4).cuda().is_contiguous()


def test_a_lazy_layer_gets_its_weights_where_it_was_moved() -> None:
    with PredictedDevice(A100) as device:
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


def test_a_program_may_give_other_meanings_to_the_names_of_a_modules_methods() -> None:
    with PredictedDevice(A100) as device:
        model = Names().to("cuda", torch.bfloat16)
        assert device.allocated_bytes == 2 * NUMBERS * 2 + 512
        model(torch.ones(4, 256, device="cuda", dtype=torch.bfloat16)).sum().backward()
        assert model.weight.grad is not None and model.weight.grad.is_cuda
