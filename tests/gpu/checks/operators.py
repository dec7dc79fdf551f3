"""One operator at a time, on this card and on the predicted one: how far memory rises while it runs.

Where a whole run is predicted wrongly, this says which operator is to blame.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memviz.analysis.timeline import timeline
from memviz.runner.measure.accelerator import find_accelerator
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.trace.model import Action, Trace
from tests.gpu.checks.asked import Answers, asked
from tests.gpu.comparing import gpu_of
from tests.gpu.machine import card_of, facts, release_of

_MARK_BYTES = 7_654_321
"""Nothing else asks for so many: what comes after it is what is asked about."""
_SHARE, _REST = 0.01, 1 << 16
_HALF = torch.bfloat16

Run = Callable[[], Any]
Made = Callable[[torch.device], Run]


def operators(_folder: Path) -> Answers:
    found = facts()
    major, minor = release_of(found).split(".")
    accelerator, card = find_accelerator(), card_of(found)
    for name, made in MADE.items():
        really = _rise(CudaDevice(accelerator=accelerator), made)
        expected = _rise(PredictedDevice(card, release=(int(major), int(minor))), made)
        near = abs(really - expected) <= max(_SHARE * really, _REST)
        yield asked(f"rise of {name}", expected, really, ok=near)


def _rise(device: Any, made: Made) -> int:
    """Of what is live, from before it to its highest; the second time, when workspaces are there."""
    with device:
        run = made(device.torch_device)
        run()
        mark = torch.empty(_MARK_BYTES, dtype=torch.uint8, device=device.torch_device)
        kept = run()
        trace = device.finish()
        del mark, kept
    return rise_after_mark(trace)


def rise_after_mark(trace: Trace) -> int:
    gpu = gpu_of(trace)
    hits = np.flatnonzero((gpu.events.action == Action.ALLOC) & (gpu.events.size == _MARK_BYTES))
    live = timeline(gpu).live[hits[-1] + 1 :]
    return int(live.max() - live[0])


def _normal(*shape: int, dtype: torch.dtype = _HALF, grad: bool = False) -> Callable[[torch.device], Tensor]:
    return lambda device: torch.randn(shape, device=device, dtype=dtype).requires_grad_(grad)


def _backward(function: Callable[..., Tensor], *inputs: Callable[[torch.device], Tensor]) -> Made:
    """Forward and backward; no gradients are left from the time before."""

    def made(device: torch.device) -> Run:
        given = [each(device) for each in inputs]

        def run() -> None:
            out = function(*given)
            out.backward(torch.ones_like(out))
            for each in given:
                each.grad = None

        return run

    return made


def _forward(function: Callable[..., Any], *inputs: Callable[[torch.device], Tensor]) -> Made:
    def made(device: torch.device) -> Run:
        given = [each(device) for each in inputs]

        def run() -> Any:
            with torch.no_grad():
                return function(*given)

        return run

    return made


def _step(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Made:
    def made(device: torch.device) -> Run:
        weights = [nn.Parameter(torch.zeros(1024, 1024, device=device)) for _ in range(8)]
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
        return make(weights).step

    return made


def _clipped(device: torch.device) -> Run:
    weights = [nn.Parameter(torch.zeros(1024, 1024, device=device)) for _ in range(8)]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    return lambda: nn.utils.clip_grad_norm_(weights, 1.0)


def _attend(**named: Any) -> Callable[..., Tensor]:
    return lambda q, k, v, *mask: F.scaled_dot_product_attention(q, k, v, *mask, **named)


def _heads(count: int = 16, *, dtype: torch.dtype = _HALF, grad: bool = True) -> Callable[[torch.device], Tensor]:
    return _normal(2, count, 2048, 64, dtype=dtype, grad=grad)


_SINGLES = tuple(_heads(dtype=torch.float32) for _ in range(3))
_WORDS = lambda device: torch.randint(1000, (8, 1024), device=device)  # noqa: E731
_IMAGE, _KERNEL = _normal(8, 64, 64, 64, grad=True), _normal(128, 64, 3, 3, grad=True)

MADE: dict[str, Made] = {
    "linear forward": _forward(F.linear, _normal(4096, 1024), _normal(4096, 1024), _normal(4096)),
    "linear backward": _backward(
        F.linear, _normal(4096, 1024, grad=True), _normal(4096, 1024, grad=True), _normal(4096, grad=True)
    ),
    "attention forward": _forward(_attend(), *(_heads(grad=False) for _ in range(3))),
    "attention backward": _backward(_attend(), *(_heads() for _ in range(3))),
    "causal attention backward": _backward(_attend(is_causal=True), *(_heads() for _ in range(3))),
    "grouped attention backward": _backward(_attend(enable_gqa=True), _heads(), _heads(4), _heads(4)),
    "masked attention backward": _backward(_attend(), *(_heads() for _ in range(3)), _normal(2, 1, 2048, 2048)),
    "fp32 attention backward": _backward(_attend(), *_SINGLES),
    "embedding backward": _backward(
        lambda table, words: F.embedding(words, table), _normal(1000, 512, grad=True), _WORDS
    ),
    "layer norm backward": _backward(
        lambda x, w, b: F.layer_norm(x, (1024,), w, b), _normal(4096, 1024, grad=True),
        _normal(1024, grad=True), _normal(1024, grad=True),
    ),
    "rms norm backward": _backward(
        lambda x, w: F.rms_norm(x, (1024,), w), _normal(4096, 1024, grad=True), _normal(1024, grad=True)
    ),
    "cross entropy backward": _backward(
        lambda x, words: F.cross_entropy(x.float(), words.flatten()), _normal(8192, 1000, grad=True), _WORDS
    ),
    "dropout backward": _backward(lambda x: F.dropout(x, 0.1), _normal(4096, 1024, grad=True)),
    "convolution forward": _forward(F.conv2d, _normal(8, 64, 64, 64), _normal(128, 64, 3, 3)),
    "convolution backward": _backward(F.conv2d, _IMAGE, _KERNEL),
    "sort": _forward(lambda x: x.sort(), _normal(4096, 1024)),
    "topk": _forward(lambda x: x.topk(50), _normal(4096, 1024)),
    "cumulative sum": _forward(lambda x: x.cumsum(-1), _normal(4096, 1024)),
    "sum": _forward(torch.sum, _normal(4096, 1024)),
    "AdamW foreach step": _step(lambda weights: torch.optim.AdamW(weights, foreach=True)),
    "AdamW fused step": _step(lambda weights: torch.optim.AdamW(weights, fused=True)),
    "clipped gradients": _clipped,
}  # fmt: skip
