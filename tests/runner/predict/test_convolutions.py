"""Channels last: what convolutions give, and what they copy first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.trace.model import Category
from tests.runner.predict.rows import A100, allocations

LAST = torch.channels_last
IMAGES, RESULTS, WEIGHTS = 2 * 16 * 8 * 8 * 4, 2 * 32 * 8 * 8 * 4, 32 * 16 * 3 * 3 * 4


def copied(device: PredictedDevice, operator: str) -> list[int]:
    rows = allocations(device.finish())
    return [row.size for row in rows if row.operator == operator and row.category is Category.TEMPORARY]


@pytest.mark.parametrize(
    ("images_last", "weights_last", "copies"),
    [(True, True, []), (True, False, [WEIGHTS]), (False, True, [IMAGES]), (False, False, [])],
)
@pytest.mark.parametrize("inference", [False, True])
def test_results_lie_channels_last_where_the_images_or_the_weights_do(
    images_last: bool, weights_last: bool, copies: list[int], inference: bool
) -> None:
    with PredictedDevice(A100) as device, torch.inference_mode(inference):
        layer = nn.Conv2d(16, 32, 3, padding=1, bias=False).cuda()
        layer = layer.to(memory_format=LAST) if weights_last else layer
        images = torch.zeros(2, 16, 8, 8, device="cuda")
        images = images.contiguous(memory_format=LAST) if images_last else images
        out = layer(images)
        assert out.is_contiguous(memory_format=LAST) == (images_last or weights_last)
        assert out.is_contiguous() != (images_last or weights_last)
        assert copied(device, "convolution") == copies


def test_a_network_stays_channels_last_from_end_to_end() -> None:
    with PredictedDevice(A100):
        network = nn.Sequential(
            *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.MaxPool2d(2), nn.ConvTranspose2d(8, 8, 2)),
            nn.Upsample(scale_factor=2),
        )
        network = network.to("cuda", memory_format=LAST)
        images = torch.zeros(2, 3, 32, 32).to("cuda", memory_format=LAST)
        with torch.autocast("cuda", dtype=torch.float16):
            out = network(images)
        assert out.is_contiguous(memory_format=LAST) and not out.is_contiguous()
        with pytest.raises(RuntimeError, match="view"):
            out.view(2, -1)
        out.sum().backward()


def test_a_backward_copies_a_gradient_that_lies_otherwise() -> None:
    with PredictedDevice(A100) as device:
        layer = nn.Conv2d(16, 32, 3, padding=1, bias=False).to("cuda", memory_format=LAST)
        images = torch.zeros(2, 16, 8, 8, device="cuda").contiguous(memory_format=LAST)
        layer(images).backward(torch.zeros(2, 32, 8, 8, device="cuda"))
        assert copied(device, "convolution_backward") == [RESULTS]


def test_double_precision_is_not_computed_channels_last() -> None:
    with PredictedDevice(A100) as device:
        layer = nn.Conv2d(16, 32, 3, padding=1, bias=False).double().cuda()
        out = layer(torch.zeros(2, 16, 8, 8, device="cuda", dtype=torch.double).contiguous(memory_format=LAST))
        assert out.is_contiguous()
        assert copied(device, "convolution") == [2 * IMAGES]


def test_a_permuted_sequence_is_copied_and_its_result_contiguous() -> None:
    with PredictedDevice(A100) as device:
        out = nn.Conv1d(16, 32, 3, bias=False).cuda()(torch.zeros(2, 64, 16, device="cuda").transpose(1, 2))
        assert out.is_contiguous()
        assert copied(device, "convolution") == [2 * 16 * 64 * 4]
