"""Code that torch does not run itself: operators and kernels of a program, refused with a remedy, and TorchScript."""

import importlib
import re
import sys
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.ao import quantization

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from memviz.predictor.hooks import TRITON_NOT_RUN
from tests.house.repository import text_of
from tests.predictor.rows import A100


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


class Pooled(nn.Module):
    """Its layers query torch's fast path, and it names a device: the interpreter would fail at both."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.attention(x, x, x)
        places: Tensor = torch.arange(8, device="cuda").float()
        return self.norm(out.mean(1)) + places


COMPILED: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "script": lambda model, x: torch.jit.script(model),
    "trace": lambda model, x: torch.jit.trace(model, x),
    "trace of several": lambda model, x: torch.jit.trace(model, (x,), check_trace=False),
    "trace_module": lambda model, x: torch.jit.trace_module(model, {"forward": x}),
    "frozen": lambda model, x: torch.jit.freeze(torch.jit.script(model.eval())),
    "for inference": lambda model, x: torch.jit.optimize_for_inference(torch.jit.script(model.eval())),
}


@pytest.mark.parametrize("way", COMPILED)
def test_a_model_that_is_compiled_runs_as_it_stands(way: str, tmp_path: Path) -> None:
    with PredictedDevice(A100) as device:
        x = torch.zeros(4, 6, 8, device="cuda")
        model = COMPILED[way](Pooled().cuda(), x)
        out = model(x)
        out.sum().backward()
        model.save(tmp_path / "model.pt")
        assert torch.jit.load(tmp_path / "model.pt") is model
        assert out.shape == (4, 8) and all(weight.grad is not None for weight in model.parameters())
        assert [each for each in device.unseen() if each.startswith("TorchScript (")]
        assert any("not written" in each for each in device.unseen())
    assert not list(tmp_path.iterdir())


def test_functions_and_classes_are_themselves() -> None:
    def twice(x: Tensor) -> Tensor:
        return x * 2

    with PredictedDevice(A100):
        assert torch.jit.script(twice)(torch.zeros(3, device="cuda")).shape == (3,)
        traced: Any = torch.jit.trace(twice, torch.zeros(3, device="cuda"))
        assert traced(torch.zeros(5, device="cuda")).shape == (5,)
    assert torch.jit.script.__module__ == "torch.jit._script"


def test_what_was_compiled_before_is_refused_by_name(device: PredictedDevice) -> None:
    with pytest.raises(UsageError, match=r"torch\.jit\.load cannot be predicted"):
        torch.jit.load("model.pt", map_location="cuda:0")


@pytest.mark.parametrize("where", ["cuda", "cpu"])
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_an_exported_program_runs_wherever_the_model_lies(where: str, device: PredictedDevice) -> None:
    model = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU()).to(where)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.zeros(8, 1000, device=where),), dynamic_shapes=({0: batch},))
    model(torch.zeros(1, 1000, device=where))
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        out = program.run_decompositions().module()(torch.zeros(500, 1000, device=where))
    assert (out.shape, out.device.type) == ((500, 1000), where)
    assert torch.cuda.memory_allocated() - before == (2_000_384 if where == "cuda" else 0)
    torch.export.save(program, "program.pt2")
    assert torch.export.load("program.pt2") is program
    package = torch._inductor.aoti_compile_and_package(program)
    assert torch._inductor.aoti_load_package(package)(torch.zeros(9, 1000, device=where)).shape == (9, 1000)


def test_branches_and_loops_of_the_card_run_as_python_runs_them(device: PredictedDevice) -> None:
    weight = torch.ones(500, 1000, device="cuda", requires_grad=True)
    x = torch.ones(500, 1000, device="cuda")
    above = torch.cond(torch.tensor(False, device="cuda"), lambda x: x, lambda x: x * weight, (x,))
    above.sum().backward()
    assert weight.grad is not None
    count = torch.tensor(0, device="cuda")
    before = torch.cuda.memory_allocated()
    count, x = while_loop(lambda count, x: count < 3, lambda count, x: (count + 1, x + 1), (count, x))
    assert (count.item(), x.shape) == (3, (500, 1000))
    assert torch.cuda.memory_allocated() - before < 2_100_000
    assert map_rows(lambda row, y: row * y, x, x[0]).shape == x.shape
    assert [one.shape for one in foreach_map(lambda x: x + 1, [x, x[0]])] == [x.shape, x[0].shape]
    torch.cond(torch.randn(300, 300, device="cuda").sum() > 2, lambda x: x + 1, lambda x: x - 1, (x,))
    assert any("condition" in one.what for one in device.recorder.assumptions.stated)


def test_a_graph_for_tensorboard_runs_the_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tensorboardX"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "writer.py").write_text(
        "class SummaryWriter:\n    def add_graph(self, model, inputs): raise RuntimeError\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tensorboardX", raising=False)
    with PredictedDevice(A100) as device:
        writer = importlib.import_module("tensorboardX.writer").SummaryWriter()
        model = nn.Linear(1024, 1024, bias=False).cuda().train()
        before = device.allocated_bytes
        writer.add_graph(model, torch.zeros(1024, 1024, device="cuda"))
        assert model.training
        assert device.peak_allocated_bytes >= before + 2 * 1024 * 1024 * 4
