"""The predictor's assumptions about a GPU: its figures, workspaces, attention kernels and single operators."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memviz.allocator.context import overhead_on
from memviz.analysis.timeline import timeline
from memviz.predictor.cards import CARDS, KnownCard, card_named
from memviz.predictor.decompositions import AttentionCall, Backend, backend_for
from memviz.predictor.device import PredictedDevice
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.trace.model import Action
from tests.gpu.comparing import gpu_of
from tests.gpu.conftest import Gpu

_MiB = 1 << 20
_HALF, _SINGLE = torch.bfloat16, torch.float32


def known_card(name: str) -> KnownCard | None:
    """Drivers add the kind of memory or of board: 'NVIDIA H100 80GB HBM3', 'NVIDIA A100-SXM4-80GB'."""
    words = set(name.replace("-", " ").split())
    fitting = [card for card in CARDS if set(card.name.split()) <= words]
    return max(fitting, key=lambda card: len(card.name), default=None)


@pytest.mark.gpu
def test_the_figures_of_a_known_card(gpu: Gpu):
    known = known_card(gpu.card.name)
    assert known is not None
    assert known.memory_bytes == pytest.approx(gpu.card.memory_bytes, rel=0.01)
    assert (known.capability, known.multiprocessors) == (gpu.card.capability, gpu.card.multiprocessors)
    torch.ones(1024, 1024, device="cuda") @ torch.ones(1024, 1024, device="cuda")
    free, total = torch.cuda.mem_get_info()
    # Fails, too, where another process holds memory of the card.
    assert total - free - torch.cuda.memory_reserved() <= overhead_on(gpu.card.name)


@pytest.mark.gpu
def test_cublas_workspaces_of_forward_and_backward(gpu: Gpu):
    expected = gpu.card.cublas_workspace_in(gpu.release)
    torch._C._cuda_clearCublasWorkspaces()
    x = torch.ones(64, 64, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    y = x @ x
    assert torch.cuda.memory_allocated() - before - y.nbytes == expected
    before = torch.cuda.memory_allocated()
    y.sum().backward()
    assert expected <= torch.cuda.memory_allocated() - before <= expected + _MiB


def attention_calls() -> Iterator[tuple[AttentionCall, bool]]:
    grid = product(
        (_HALF, torch.float16, _SINGLE), (40, 64, 128, 256), ("", "causal", "mask", "grouped"), (False, True)
    )
    for dtype, width, kind, trains in grid:
        heads = 2 if kind == "grouped" else 8
        query, key, value = (
            torch.zeros(2, count, 512, width, device="cuda", dtype=dtype, requires_grad=trains)
            for count in (8, heads, heads)
        )
        mask = torch.zeros(2, 1, 512, 512, device="cuda", dtype=dtype) if kind == "mask" else None
        yield AttentionCall(query, key, value, mask, 0.0, kind == "causal", kind == "grouped"), kind == "grouped"


@pytest.mark.gpu
def test_torch_chooses_the_predicted_attention_kernel(gpu: Gpu):
    other = {}
    for call, grouped in attention_calls():
        extra = {"enable_gqa": True} if grouped else {}
        choice = torch._fused_sdp_choice(
            call.query, call.key, call.value, call.mask, call.dropout, call.is_causal, **extra
        )
        predicted = backend_for(call, gpu.card, gpu.release)
        if predicted != choice:
            words = (call.query.dtype, call.query.shape[-1], call.is_causal, call.mask is not None, grouped)
            other[words] = (predicted.name, Backend(choice).name)
    assert not other


_MARK_BYTES = 7_654_321
"""A size that no other request has: the allocations after it are the operator's."""

Run = Callable[[], Any]
Made = Callable[[torch.device], Run]
Draw = Callable[[torch.device], Tensor]


def rise(device: Any, made: Made) -> int:
    """Live bytes from the start of an operator to its highest, in its second run, when workspaces are there."""
    with device:
        run = made(device.torch_device)
        run()
        mark = torch.empty(_MARK_BYTES, dtype=torch.uint8, device=device.torch_device)
        kept = run()
        trace = device.finish()
        del mark, kept
    gpu = gpu_of(trace)
    hits = np.flatnonzero((gpu.events.action == Action.ALLOC) & (gpu.events.size == _MARK_BYTES))
    live = timeline(gpu).live[hits[-1] + 1 :]
    return int(live.max() - live[0])


def _normal(*shape: int, dtype: torch.dtype = _HALF, grad: bool = False) -> Draw:
    return lambda device: torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad)


def _backward(function: Callable[..., Tensor], *inputs: Draw) -> Made:
    """Forward and backward; gradients of the run before are freed."""

    def made(device: torch.device) -> Run:
        tensors = [draw(device) for draw in inputs]

        def run() -> None:
            out = function(*tensors)
            out.backward(torch.ones_like(out))
            for tensor in tensors:
                tensor.grad = None

        return run

    return made


def _forward(function: Callable[..., Any], *inputs: Draw) -> Made:
    def made(device: torch.device) -> Run:
        tensors = [draw(device) for draw in inputs]
        return torch.no_grad()(lambda: function(*tensors))

    return made


def _on_weights(make: Callable[[list[nn.Parameter]], Run]) -> Made:
    def made(device: torch.device) -> Run:
        weights = [nn.Parameter(torch.zeros(1024, 1024, device=device)) for _ in range(8)]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        return make(weights)

    return made


def _attend(**named: Any) -> Callable[..., Tensor]:
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **named)


def _heads(count: int = 16, *, dtype: torch.dtype = _HALF, grad: bool = True) -> Draw:
    return _normal(2, count, 2048, 64, dtype=dtype, grad=grad)


_WORDS = lambda device: torch.randint(1000, (8, 1024), device=device)  # noqa: E731
_IMAGE, _KERNEL = _normal(8, 64, 64, 64, grad=True), _normal(128, 64, 3, 3, grad=True)
_ROWS, _WIDTH = _normal(4096, 1024, grad=True), _normal(1024, grad=True)

OPERATORS: dict[str, Made] = {
    "linear forward": _forward(F.linear, _normal(4096, 1024), _normal(4096, 1024), _normal(4096)),
    "linear backward": _backward(F.linear, _ROWS, _ROWS, _normal(4096, grad=True)),
    "attention forward": _forward(_attend(), *(_heads(grad=False) for _ in range(3))),
    "attention backward": _backward(_attend(), *(_heads() for _ in range(3))),
    "causal attention backward": _backward(_attend(is_causal=True), *(_heads() for _ in range(3))),
    "grouped attention backward": _backward(_attend(enable_gqa=True), _heads(), _heads(4), _heads(4)),
    "masked attention backward": _backward(_attend(), *(_heads() for _ in range(3)), _normal(2, 1, 2048, 2048)),
    "fp32 attention backward": _backward(_attend(), *(_heads(dtype=_SINGLE) for _ in range(3))),
    "embedding backward": _backward(
        lambda table, words: F.embedding(words, table), _normal(1000, 512, grad=True), _WORDS
    ),
    "layer norm backward": _backward(lambda x, w, b: F.layer_norm(x, (1024,), w, b), _ROWS, _WIDTH, _WIDTH),
    "rms norm backward": _backward(lambda x, w: F.rms_norm(x, (1024,), w), _ROWS, _WIDTH),
    "cross entropy backward": _backward(
        lambda x, words: F.cross_entropy(x.float(), words.flatten()), _normal(8192, 1000, grad=True), _WORDS
    ),
    "dropout backward": _backward(lambda x: F.dropout(x, 0.1), _ROWS),
    "convolution forward": _forward(F.conv2d, _normal(8, 64, 64, 64), _normal(128, 64, 3, 3)),
    "convolution backward": _backward(F.conv2d, _IMAGE, _KERNEL),
    "sort": _forward(lambda x: x.sort(), _normal(4096, 1024)),
    "topk": _forward(lambda x: x.topk(50), _normal(4096, 1024)),
    "cumulative sum": _forward(lambda x: x.cumsum(-1), _normal(4096, 1024)),
    "sum": _forward(torch.sum, _normal(4096, 1024)),
    "AdamW foreach step": _on_weights(lambda weights: torch.optim.AdamW(weights, foreach=True).step),
    "AdamW fused step": _on_weights(lambda weights: torch.optim.AdamW(weights, fused=True).step),
    "clipped gradients": _on_weights(lambda weights: lambda: nn.utils.clip_grad_norm_(weights, 1.0)),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_takes_what_is_predicted(name, gpu: Gpu):
    measured = rise(CudaDevice(accelerator=find_accelerator()), OPERATORS[name])
    predicted = rise(PredictedDevice(gpu.card, release=gpu.release), OPERATORS[name])
    assert predicted == pytest.approx(measured, rel=0.01, abs=1 << 16)


@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_can_be_predicted(name):
    assert rise(PredictedDevice(card_named("A100 80GB")), OPERATORS[name]) >= 0


def test_a_card_is_known_by_its_drivers_name():
    names = {"NVIDIA H100 80GB HBM3": "NVIDIA H100 80GB", "NVIDIA A100-SXM4-40GB": "NVIDIA A100 40GB"}
    assert {name: known.name for name in names if (known := known_card(name))} == names
    assert known_card("NVIDIA Nothing") is None
