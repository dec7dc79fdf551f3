"""TorchScript on a predicted GPU: code runs uncompiled, with a note."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.while_loop import while_loop

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100


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
