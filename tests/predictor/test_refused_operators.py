"""Unpredictable operators are refused with their name and a remedy."""

import re
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.ao import quantization

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from memviz.predictor.hooks import TRITON_NOT_RUN
from tests.house.repository import text_of


@torch.library.custom_op("tests_of_memviz::without_shapes", mutates_args=())
def without_shapes(x: Tensor) -> Tensor:
    return x * 2


@torch.library.custom_op("tests_of_memviz::with_shapes", mutates_args=())
def with_shapes(x: Tensor) -> Tensor:
    return x * 2


with_shapes.register_fake(torch.empty_like)


def test_an_operator_of_ones_own_has_to_say_its_shapes(device: PredictedDevice) -> None:
    x = torch.ones(300, device="cuda")
    before = device.allocated_bytes
    doubled = with_shapes(x)
    assert device.allocated_bytes - before == 1536 and doubled.is_cuda
    remedy = r'with @torch\.library\.register_fake\("tests_of_memviz::without_shapes"\)'
    with pytest.raises(UsageError, match=f"without_shapes cannot be predicted: .* {remedy}"):
        without_shapes(torch.ones(3, device="cuda"))


def test_operators_without_a_rule_of_torchs_own_have_one_here(device: PredictedDevice) -> None:
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
def test_weights_are_trained_for_quantization_and_quantized(device: PredictedDevice) -> None:
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
def test_a_kernel_that_the_program_wrote_writes_into_its_arguments(language: str, device: PredictedDevice) -> None:
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_mutation

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
def test_strided_nested_tensors_are_refused_and_the_other_layout_is_named(device: PredictedDevice) -> None:
    assert torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).is_nested
    with pytest.raises(UsageError, match=r"torch\.jagged"):
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda")


# Code outside a prediction says so: a small program for each row of the table in memviz/predictor/README.md.


def _extension() -> None:
    library = torch.library.Library("mine", "FRAGMENT")
    library.define("sum(Tensor x) -> Tensor")
    torch.ops.mine.sum(torch.ones(3, device="cuda"))


def _jiterator() -> None:
    square = torch.cuda.jiterator._create_jit_fn("template <typename T> T square(T x) { return x * x; }")
    square(torch.ones(3, device="cuda"))


def _scan() -> None:
    scan(lambda carried, x: (carried + x, x * 2), drawn(300), drawn(), dim=0)


def _built_while_it_runs() -> None:
    from torch.utils import cpp_extension

    cpp_extension.load_inline("mine", "", cuda_sources="__global__ void k(float* x) {}", functions=["f"])


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape or (300, 300), device="cuda")


RUNTIME: Any = torch.cuda.cudart
STORAGE: Any = torch.Tensor.untyped_storage
OUTSIDE: dict[str, Callable[[], Any]] = {
    "Operators of compiled": _extension,
    "cuGraph": lambda: drawn().__cuda_array_interface__,
    "The same by DLPack": lambda: torch.utils.dlpack.from_dlpack(drawn()),
    "Paged": lambda: RUNTIME().cudaMallocManaged(1 << 20),
    "Processes that share": lambda: STORAGE(drawn())._share_cuda_(),
    "Tensors of the card in a queue": lambda: ForkingPickler.dumps(drawn()),
    "Allocators": lambda: torch._C._cuda_changeCurrentAllocator(None),
    "Kernels in C++": _jiterator,
    "CUDA extensions compiled": _built_while_it_runs,
    "Strided nested": lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]).cuda(),
    "Operators that take functions": _scan,
    "A second card": lambda: torch.ones(3, device="cuda:1"),
}
ROWS = dict(re.findall(r"^\| ([^|]+) \| [^|]+ \| (.+) \|$", text_of("memviz/predictor/README.md"), re.MULTILINE))


def _row(begin: str) -> str:
    (found,) = [sentence for what, sentence in ROWS.items() if what.startswith(begin)]
    return str(found)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("what", OUTSIDE)
def test_what_is_outside_stops_with_the_sentence_of_the_table(what: str, device: PredictedDevice) -> None:
    way, quoted = _row(what).split(": `", 1)
    with pytest.raises(Exception) as raised:
        OUTSIDE[what]()
    text = str(raised.value)
    assert all(part in text for part in quoted.split("`")[0].split(" ... ")), text
    # A program that handles torch's error for a card that is not there finds it.
    assert isinstance(raised.value, RuntimeError) == (way == "error")


def test_every_row_of_the_table_has_a_program_or_a_note(device: PredictedDevice) -> None:
    assert len(ROWS) - 1 == len(OUTSIDE) + 1
    torch.compile(nn.Linear(3, 3).cuda())(drawn(2, 3))
    notes = device.unseen()
    quoted = _row("Savings of `torch.compile`").split(": `", 1)[1].rstrip("`")
    assert any(quoted in note for note in notes)
