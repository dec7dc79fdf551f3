"""Attention over sequences of different lengths: the kernel that the card takes, and the rows that it works on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from memviz.runner.predict.predicted_device import PredictedDevice
from tests.runner.predict.rows import A100, allocations

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
LENGTHS, HEADS, WIDTH = (5, 9, 30), 4, 16
ROWS, INNER = sum(LENGTHS), HEADS * WIDTH


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.output = nn.Linear(INNER, 3 * INNER), nn.Linear(INNER, INNER)

    def forward(self, x: Tensor) -> Tensor:
        parts = (part.unflatten(-1, [HEADS, WIDTH]).transpose(1, 2) for part in self.inputs(x).chunk(3, -1))
        out = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.output(out.transpose(1, 2).flatten(-2))


def sequences(dtype: torch.dtype) -> Tensor:
    rows = [torch.zeros(length, INNER, dtype=dtype) for length in LENGTHS]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, device="cuda")


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [(torch.float32, "_efficient_attention"), (torch.bfloat16, "_flash_attention")],
)
def test_the_kernel_of_the_card_works_on_all_rows(dtype: torch.dtype, kernel: str) -> None:
    with PredictedDevice(A100) as device:
        model = Attention().cuda().to(dtype)
        x = sequences(dtype)
        out = x + model(x)
        out.values().float().square().mean().backward()
        rows = allocations(device.finish())
    assert model.inputs.weight.grad is not None and model.inputs.weight.grad.shape == (3 * INNER, INNER)
    forward = [row.size for row in rows if row.operator == f"{kernel}_forward"]
    assert forward[0] == ROWS * INNER * dtype.itemsize
    backward = [row.size for row in rows if row.operator == f"{kernel}_backward"]
    assert backward.count(ROWS * INNER * dtype.itemsize) >= 3


def test_a_kernel_that_is_switched_off_is_not_taken() -> None:
    with (
        PredictedDevice(A100) as device,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION),
    ):
        Attention().cuda().bfloat16()(sequences(torch.bfloat16))
        assert {"_efficient_attention_forward"} <= device.recorder.operators
        assert "_flash_attention_forward" not in device.recorder.operators


def test_what_backward_makes_of_parts_lies_on_the_card() -> None:
    """torch names the place of its tensors there itself, and that is no `meta` of the program's."""
    with PredictedDevice(A100) as device:
        x = sequences(torch.float32).requires_grad_()
        before = device.allocated_bytes
        x.chunk(2, -1)[0].values().sum().backward()
        assert x.grad is not None and x.grad.values().is_cuda
        assert device.allocated_bytes - before >= ROWS * INNER * 4
