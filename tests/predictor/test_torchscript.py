"""TorchScript on a predicted GPU: code runs uncompiled, with a note."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


def test_what_was_compiled_before_is_refused_by_name() -> None:
    with PredictedDevice(A100), pytest.raises(UsageError, match=r"torch\.jit\.load cannot be predicted"):
        torch.jit.load("model.pt", map_location="cuda:0")


@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_an_export_is_refused_by_name_with_a_reason_that_is_true_wherever_the_model_lies(where: str) -> None:
    with (
        PredictedDevice(A100),
        pytest.raises(
            UsageError, match=r"torch\.export\.export cannot be predicted: it traces with tensors without data"
        ),
    ):
        torch.export.export(Pooled().to(where), (torch.zeros(4, 6, 8, device=where),))
