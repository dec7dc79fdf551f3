"""Peaks of five feed-forward layers, whole and split, for six activations; and of the short reproducer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from memviz.runner.predict.device import PretendedDevice
from memviz.runner.published.split_outputs import TOKENS, differences, of_one_layer
from memviz.runner.published.table import ON_A_GPU, RELEASE, Row, Seed, Tell, card, gib
from memviz.runner.step import Step
from memviz.runner.workloads.feed_forward import FeedForwardStack
from optimizations.split_feed_forward import SplitFeedForward

_PUBLISHED = {
    "gelu": (5.01, 4.26),
    "gelu-approximate": (5.01, 4.26),
    "geglu": (8.26, 6.01),
    "geglu-approximate": (6.01, 4.51),
    "swiglu": (8.26, 6.01),
    "linear-silu": (5.01, 4.26),
}
_SECONDS = {
    "gelu": (1.29, 1.40),
    "gelu-approximate": (1.29, 1.28),
    "geglu": (1.92, 1.92),
    "geglu-approximate": (1.30, 1.70),
    "swiglu": (1.92, 1.92),
    "linear-silu": (1.29, 1.29),
}
_APART = {"geglu": (0.00015, 0.00003), "swiglu": (0.00014, 0.00003)}
"""absmax and absmean of the outputs; 0.00000 for all others, in five decimals."""
_ONE_LAYER_APART = (6.7353e-06, 3.3257e-07)
_SPLITS = 4


def _rows(tell: Tell) -> Iterator[Row]:
    for activation, published in _PUBLISHED.items():
        tell(activation)
        whole, split = _peaks(activation)
        yield Row(activation, "allocated GiB", published[0], gib(whole))
        yield Row(f"{activation}, split in {_SPLITS}", "allocated GiB", published[1], gib(split))
    tell("the reproducer")
    whole, split = _reproducer()
    yield Row("one layer, gelu", "reserved GiB", 3.271, gib(whole))
    yield Row(f"one layer, gelu, split in {_SPLITS}", "reserved GiB", 2.271, gib(split))
    for activation, seconds in _SECONDS.items():
        yield Row(activation, "seconds", seconds[0], None, ON_A_GPU)
        yield Row(f"{activation}, split in {_SPLITS}", "seconds", seconds[1], None, ON_A_GPU)
    yield from _outputs(tell)


def _outputs(tell: Tell) -> Iterator[Row]:
    tell("the outputs")
    found = differences(tuple(_PUBLISHED), _SPLITS)
    fewer = f"real numbers on this processor, {TOKENS} of 16,384 tokens"
    for activation in _PUBLISHED:
        published = _APART.get(activation, (0.0, 0.0))
        for place, figure in enumerate(("absmax", "absmean")):
            ours = found[activation]["as first published"][place]
            yield Row(f"{activation}, split as published", figure, published[place], ours, fewer)
            if activation in _APART:
                note = "split right: the published one multiplied values by values"
                yield Row(f"{activation}, split", figure, None, found[activation]["split"][place], note)
    tell("the output of one layer")
    one = of_one_layer(_SPLITS)
    note = f"{fewer}, summed one product after the other as on a GPU"
    for place, figure in enumerate(("absmax", "absmean")):
        yield Row(f"one layer, gelu, split in {_SPLITS}", figure, _ONE_LAYER_APART[place], one[place], note)


def _peaks(activation: str) -> tuple[int, int]:
    """As the published benchmark measures: a warm-up before each, and the first output alive during the second."""
    workload = FeedForwardStack(activation=activation)
    with torch.device("meta"):
        model = workload.build()
    with PretendedDevice(card(), release=RELEASE) as device:
        device.place(model)
        step = Step(workload, device, model, device.inputs(workload), None)
        step()
        first, whole = _measured(device, step)
        step()
        SplitFeedForward(splits=_SPLITS, as_published=True).apply(model)
        _, split = _measured(device, step)
        del first
    return whole, split


def _measured(device: PretendedDevice, step: Step) -> tuple[Any, int]:
    device.empty_cache()
    device.reset_peak()
    return step(), device.peak_allocated_bytes


class _Slices(nn.Module):
    """The short reproducer's own split layer: each result takes the name of the one before, which is then free."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        part = inner // _SPLITS
        self.first = nn.ModuleList(nn.Linear(width, part) for _ in range(_SPLITS))
        self.last = nn.ModuleList(nn.Linear(part, width, bias=False) for _ in range(_SPLITS))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(x.shape)
        for first, last in zip(self.first, self.last, strict=True):
            part = first(x)
            part = nn.functional.gelu(part)
            part = last(part)
            total += part
        total += self.bias
        return total


def _reproducer() -> tuple[int, int]:
    """Both layers are on the device from the start, with weights of their own."""
    workload = FeedForwardStack(layers=1)
    with torch.device("meta"):
        models = [workload.build(), _Slices(workload.dim, workload.dim * workload.mult)]
    kept, peaks = [], []
    with PretendedDevice(card(), release=RELEASE) as device:
        device.place(nn.ModuleList(models))
        inputs = device.inputs(workload)
        for model in models:
            device.empty_cache()
            device.reset_peak()
            kept.append(Step(workload, device, model, inputs, None)())
            peaks.append(device.peak_reserved_bytes)
        kept.clear()
    return peaks[0], peaks[1]


SEED = Seed(
    "split-feed-forward",
    "Feed-forward split as in tensor parallelism, but on one GPU",
    "diffusers pull request 10623",
    "Inference in fp32. The whole stack's output is alive while the split one runs, in the order of 2025.",
    _rows,
)
