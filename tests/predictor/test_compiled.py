"""Code under torch.compile: torch's own compiler plans the buffers, and none of its kernels runs."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

import memviz
from memviz.predictor.device import PredictedDevice

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
MIB = 1 << 20


def chain(x: Tensor) -> Tensor:
    return (torch.sin(x) * 2 + torch.cos(x)).relu()


def peak_of(program: Callable[[], Any], *, compile: bool = True) -> tuple[int, str]:
    """Return the highest live bytes, and what the prediction rests on."""
    with memviz.predicting("A100 80GB", compile=compile) as done:
        program()
    assert done.estimate is not None
    return done.estimate.peak_requested, " ".join(done.estimate.notes)


def test_fused_operators_have_no_buffers_between_them() -> None:
    def program() -> None:
        torch.compile(chain)(torch.empty(4 * MIB, device="cuda"))

    assert peak_of(program, compile=False)[0] == 4 * 16 * MIB
    peak, notes = peak_of(program)
    assert peak == 2 * 16 * MIB
    assert "torch.compile" in notes


def test_backward_keeps_the_input_alone_and_computes_the_rest_again() -> None:
    live: list[int] = []

    def program() -> None:
        x = torch.empty(4 * MIB, device="cuda", requires_grad=True)
        out = torch.compile(chain)(x)
        live.append(torch.cuda.memory_allocated())
        out.backward(torch.ones_like(out))
        live.append(torch.cuda.memory_allocated())

    peak_of(program)
    # The input, the output, and a byte for each element, by which relu's gradient is zero; then the gradient.
    assert live == [(16 + 16 + 4) * MIB, 3 * 16 * MIB]


def test_a_module_trains_with_its_own_weights_and_each_allocation_has_one_label() -> None:
    def program() -> None:
        layers = nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256)
        model = torch.compile(nn.Sequential(*layers).cuda())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.randn(512, 256, device="cuda")).sum().backward()
            optimizer.step()
        weights = sum(weight.numel() for weight in model.parameters()) * 4
        assert torch.cuda.memory_allocated() >= 2 * weights
        device = PredictedDevice.in_use
        assert device is not None
        assert len(device.recorder.columns.rule) == device.recorder.ledger.count

    _, notes = peak_of(program)
    assert "uncompiled" not in notes


def test_each_shape_has_its_own_graph() -> None:
    def program() -> None:
        compiled = torch.compile(chain)
        for count in (MIB, 4 * MIB):
            compiled(torch.empty(count, device="cuda"))

    assert peak_of(program)[0] == 2 * 16 * MIB


def test_what_the_code_makes_on_the_card_is_fused_too() -> None:
    def positions(x: Tensor) -> Tensor:
        steps = torch.arange(x.shape[0], device="cuda").to("cuda")
        return x * steps + torch.zeros(x.shape, device=x.device).cuda()

    def program() -> None:
        torch.compile(positions)(torch.empty(4 * MIB, device="cuda"))

    assert peak_of(program)[0] == 2 * 16 * MIB


def test_a_compiled_module_is_freed_with_its_last_reference() -> None:
    live: list[int] = []

    def program() -> None:
        model = torch.compile(nn.Linear(1024, 1024, bias=False).cuda())
        model(torch.empty(16, 1024, device="cuda"))
        live.append(torch.cuda.memory_allocated())
        del model
        gc.collect()
        live.append(torch.cuda.memory_allocated())

    peak_of(program)
    assert live[0] - live[1] == 4 * MIB


def test_flex_attention_inside_compiled_code_keeps_no_scores() -> None:
    live: list[int] = []

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = flex_attention(query, key, value)  # type: ignore[assignment]
        return out * 2

    def program() -> None:
        inputs = [torch.empty(1, 8, 4096, 64, device="cuda", requires_grad=True) for _ in range(3)]
        out = torch.compile(attend)(*inputs)
        live.append(torch.cuda.memory_allocated())
        out.sum().backward()
        live.append(torch.cuda.memory_allocated())

    peak, notes = peak_of(program)
    assert "uncompiled" not in notes
    # Three inputs, the output, twice the output and a number for each query; the mask of one block is less than 4 KiB.
    assert 0 <= live[0] - 5 * 8 * MIB - 128 * 1024 <= 4096
    # Then the inputs, their gradients, and the result, which the program holds.
    assert 0 <= live[1] - 7 * 8 * MIB <= 4096
    assert peak < 8 * 4096 * 4096


def test_the_code_is_told_that_it_is_compiled() -> None:
    def cautious(x: Tensor) -> Tensor:
        return chain(x) if torch.compiler.is_compiling() else chain(x)[: int(x.sum().item())]

    def program() -> None:
        torch.compile(cautious)(torch.empty(4 * MIB, device="cuda"))

    assert peak_of(program)[0] == 2 * 16 * MIB


def test_what_a_call_keeps_on_its_module_does_not_reach_the_next() -> None:
    class Positions(nn.Module):
        cached: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            if self.cached is None or len(self.cached) != len(x):
                self.cached = torch.arange(len(x), device=x.device)
            return x * self.cached

    def program() -> None:
        model = torch.compile(Positions().cuda())
        for count in (MIB, 2 * MIB, MIB):
            model(torch.empty(count, device="cuda"))

    peak, notes = peak_of(program)
    assert "uncompiled" not in notes
    assert peak == 2 * 8 * MIB


def as_long_as_its_sum(x: Tensor) -> Tensor:
    return chain(x)[: int(x.sum().item())]


def checkpointed(x: Tensor) -> Any:
    return checkpoint(chain, x, use_reentrant=False)


@pytest.mark.parametrize("reads", [as_long_as_its_sum, checkpointed])
def test_what_the_compiler_stops_at_runs_uncompiled_and_is_named(reads: Callable[[Tensor], Tensor]) -> None:
    def program() -> None:
        torch.compile(reads)(torch.ones(MIB, device="cuda", requires_grad=True))

    peak, notes = peak_of(program)
    assert "ran uncompiled" in notes
    assert peak == peak_of(program, compile=False)[0]


def test_a_step_of_an_optimizer_runs_uncompiled_and_keeps_its_state() -> None:
    def program() -> None:
        model = nn.Linear(512, 512).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        step = torch.compile(optimizer.step)
        for _ in range(2):
            model(torch.randn(8, 512, device="cuda")).sum().backward()
            step()

    peak, notes = peak_of(program)
    assert "AdamW.step ran uncompiled" in notes or "Adam.step ran uncompiled" in notes
    assert peak == peak_of(program, compile=False)[0]
