"""Unpredictable operators are refused with their name and a remedy."""

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from memviz.predictor.hooks import TRITON_NOT_RUN
from tests.predictor.rows import A100


@torch.library.custom_op("tests_of_memviz::without_shapes", mutates_args=())
def without_shapes(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("tests_of_memviz::with_shapes", mutates_args=())
def with_shapes(x: Tensor) -> Tensor:
    return x * 2


with_shapes.register_fake(torch.empty_like)


def test_an_operator_of_ones_own_is_told_to_say_its_shapes() -> None:
    remedy = r'with @torch\.library\.register_fake\("tests_of_memviz::without_shapes"\)'
    with PredictedDevice(A100), pytest.raises(UsageError, match=f"without_shapes cannot be predicted: .* {remedy}"):
        without_shapes(torch.ones(3, device="cuda"))


def test_one_that_says_its_shapes_is_predicted() -> None:
    with PredictedDevice(A100) as device:
        x = torch.ones(300, device="cuda")
        before = device.allocated_bytes
        doubled = with_shapes(x)
        assert device.allocated_bytes - before == 1536 and doubled.is_cuda


def test_operators_without_a_rule_of_torchs_own_have_one_here() -> None:
    with PredictedDevice(A100):
        scores = torch.rand(4, 5, device="cuda", requires_grad=True)
        targets = torch.zeros(4, 5, dtype=torch.long, device="cuda")
        loss = torch.nn.functional.multi_margin_loss(scores, targets[:, 0])
        (loss + torch.nn.functional.multilabel_margin_loss(scores, targets)).backward()
        assert scores.grad is not None and scores.grad.is_cuda and scores.grad.shape == (4, 5)
        factors, tau = torch.geqrf(scores.detach())
        assert factors.is_cuda and factors.shape == (4, 5) and factors.stride() == (1, 4) and tau.shape == (4,)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.filterwarnings("ignore:Please use quant_min")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_weights_are_trained_for_quantization_and_quantized() -> None:
    with PredictedDevice(A100) as device:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).cuda().train()
        model.qconfig = quantization.get_default_qat_qconfig("fbgemm")  # type: ignore[assignment]
        quantization.prepare_qat(model, inplace=True)
        model(torch.randn(2, 64, device="cuda")).sum().backward()
        x = torch.ones(1000, device="cuda", requires_grad=True)
        before = device.allocated_bytes
        rounded = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255)
        # The result, and a mask of one byte an element.
        assert device.allocated_bytes - before == 4096 + 1024
        rounded.sum().backward()
        learned = torch._fake_quantize_learnable_per_tensor_affine(
            x, torch.ones(1, device="cuda", requires_grad=True), torch.zeros(1, device="cuda"), 0, 255
        )
        learned.sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape
        weight = model.cpu()[0].weight.detach()
        scales, zeros = torch.ones(64), torch.zeros(64, dtype=torch.long)
        assert torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8).shape == (64, 64)
        whole = torch.quantize_per_tensor(weight, 1.0, 0, torch.qint8)
        assert whole.is_quantized and whole.dequantize().shape == (64, 64)


@pytest.mark.parametrize("language", ["Triton", "C++"])
def test_a_kernel_that_the_program_wrote_writes_into_its_arguments(language: str) -> None:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

    with PredictedDevice(A100) as device:
        result = torch.zeros(3, device="cuda")
        assert "unknown" not in repr(result)
        before = torch.cuda.memory_allocated()
        if language == "Triton":
            settings = {"kernel_idx": 0, "constant_args_idx": 0, "grid": [(1, 1, 1)], "tma_descriptor_metadata": {}}
            triton_kernel_wrapper_mutation(**settings, kwargs={"output": result})
        else:
            kernel = torch.cuda._compile_kernel("__global__ void zero(float* result) { result[0] = 0; }", "zero")
            kernel.set_shared_memory_config(1 << 16)
            kernel((1, 1, 1), (1, 1, 1), [result], shared_mem=1 << 16)
        assert torch.cuda.memory_allocated() == before
        assert "unknown" in repr(result)
        assert TRITON_NOT_RUN in device.unseen()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_strided_nested_tensors_are_refused_and_the_other_layout_is_named() -> None:
    with PredictedDevice(A100):
        assert torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).is_nested
        with pytest.raises(UsageError, match=r"torch\.jagged"):
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda")
