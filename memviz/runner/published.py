"""Published memory tables, each with the function that computes its rows anew.

`python -m memviz.runner.published SEED` writes a line of JSON for each row, as soon as it is computed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.runner.output_check.comparison import adamw
from memviz.runner.output_check.difference import differences
from memviz.runner.output_check.model_runs import ComparedStep, flatten
from memviz.runner.step import RunStep
from memviz.runner.workloads import Workload
from memviz.runner.workloads.diffusion_presets import Flux, LtxVideo
from memviz.runner.workloads.layer_stacks import FeedForwardStack, TransformerBlock
from optimizations.checkpointing import Checkpointing
from optimizations.flat_gradients import FlatGradients
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward

GiB = 1 << 30

CARD = "A100 40GB"
"""The published peaks hold a cuBLAS workspace of 8.125 MiB, so they were measured on no Hopper; the speeds of the
first seed fit an A100. Any card of these generations gives the same figures."""

RELEASE = (2, 6)
"""Torch release whose kernels the published runs had: newer ones fuse what these did in several steps."""

ON_A_GPU = "speed: needs a GPU"

Tell = Callable[[str], None]


@dataclass(frozen=True)
class PublishedRow:
    case: str
    figure: str
    """Name of the figure: 'allocated GiB', 'reserved GiB', ..."""
    published: float | None
    """None where only a relation was published, or where the figure is ours alone."""
    ours: float | None
    """None if it needs a GPU."""
    note: str = ""
    same_model: bool = True
    """False where ours is of another model: then only the pattern compares, and no percentage means anything."""

    @property
    def difference_percent(self) -> float | None:
        if not self.same_model or not self.published or self.ours is None:
            return None
        return 100 * (self.ours / self.published - 1)


@dataclass(frozen=True)
class Seed:
    name: str
    title: str
    source: str
    """Address where the table was published."""
    window: str
    """Contents of the measured window, because they change the figures."""
    rows: Callable[[Tell], Iterator[PublishedRow]]

    def as_json(self, row: PublishedRow) -> dict[str, Any]:
        names = ("case", "figure", "published", "ours", "difference_percent", "note")
        return {"seed": self.name, **{name: getattr(row, name) for name in names}}


@contextmanager
def predicted_device(*models: nn.Module) -> Iterator[PredictedDevice]:
    """The card of the published runs, with these models on it, an empty cache and fresh peaks."""
    with PredictedDevice(card_named(CARD), release=RELEASE) as device:
        device.place(models[0] if len(models) == 1 else nn.ModuleList(models))
        reset(device)
        yield device


def reset(device: PredictedDevice) -> None:
    device.empty_cache()
    device.reset_peak()


def built(workload: Workload) -> nn.Module:
    with torch.device("meta"):
        return workload.build()


def gib(count: int) -> float:
    return count / GiB


SPLIT_TOKENS = 32
_LAYERS = 5
_GATED = ("geglu", "swiglu")
Chains = dict[str, Tensor]
"""Output of each method after some layers."""


def split_differences(activations: tuple[str, ...], splits: int) -> dict[str, dict[str, tuple[float, float]]]:
    """Return absmax and absmean after all layers, by activation and by method: 'split' or 'as first published'."""
    chains: dict[str, Chains] = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        x = torch.randn(1, SPLIT_TOKENS, FeedForwardStack().dim)
        for _ in range(_LAYERS):
            for activation, layer in _layers_by_activation(activations):
                ways = chains.setdefault(activation, {"whole": x, "split": x, "as first published": x})
                _run_layer(layer, ways, splits, gated=activation in _GATED)
    return {
        activation: {name: _largest_gap(ways["whole"], outputs) for name, outputs in ways.items() if name != "whole"}
        for activation, ways in chains.items()
    }


def one_layer_difference(splits: int) -> tuple[float, float]:
    """absmax and absmean of one gelu layer, split and whole, both summed one product after the other."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        ((_, layer),) = _layers_by_activation(("gelu",))
        net = _feed_forward(layer).net
        first, last = net[0].proj, net[2]
        x = torch.randn(SPLIT_TOKENS, first.in_features)
        inner = F.gelu(_in_turn(x, first.weight) + first.bias)
        pieces = zip(inner.chunk(splits, dim=1), last.weight.chunk(splits, dim=1), strict=True)
        split = sum((_in_turn(*piece) for piece in pieces), torch.zeros(SPLIT_TOKENS, last.out_features))
        return _largest_gap(_in_turn(inner, last.weight) + last.bias, split + last.bias)


def _feed_forward(layer: nn.Module) -> Any:
    return next(module for module in layer.modules() if type(module).__name__ == "FeedForward")


def _in_turn(x: Tensor, weight: Tensor) -> Tensor:
    total = x.new_zeros(x.shape[0], weight.shape[0])
    for column, row in zip(x.t().contiguous(), weight.t().contiguous(), strict=True):
        total.addcmul_(column[:, None], row)
    return total


def _layers_by_activation(activations: tuple[str, ...]) -> Iterator[tuple[str, nn.Module]]:
    """One layer of each, of as few drawn weights as possible: those that are gated share theirs, the others too."""
    for gated in (False, True):
        same_gating = [values for values in activations if (values in _GATED) == gated]
        state: dict[str, Any] = {}
        for activation in same_gating:
            workload = FeedForwardStack(activation=activation, layers=1, initial="torch")
            with torch.device("cpu" if not state else "meta"):
                layer = workload._model()
            state = state or layer.state_dict()
            layer.load_state_dict(state, assign=True)
            yield activation, layer


def _run_layer(layer: nn.Module, ways: Chains, splits: int, *, gated: bool) -> None:
    ways["whole"] = layer(ways["whole"])
    undo = SplitFeedForward(splits=splits, as_published=True).apply(layer)
    ways["split"] = layer(ways["split"])
    undo()
    ways["as first published"] = _wrong_split(layer, ways["as first published"], splits) if gated else ways["split"]


def _wrong_split(layer: nn.Module, x: Tensor, splits: int) -> Tensor:
    """Split a gated feed-forward as first published: their common matrix was cut as if it held one of them."""
    first, _, last = _feed_forward(layer).net[:3]
    act = first.gelu if hasattr(first, "gelu") else first.activation
    pieces = (first.proj.weight.chunk(splits), first.proj.bias.chunk(splits), last.weight.chunk(splits, dim=1))
    total = torch.zeros_like(x)
    for weight, bias, columns in zip(*pieces, strict=True):
        value, gate = F.linear(x, weight, bias).chunk(2, dim=-1)
        total += F.linear(value * act(gate), columns)
    return total + last.bias  # type: ignore[no-any-return]


def _largest_gap(one: Tensor, other: Tensor) -> tuple[float, float]:
    gap = (one.double() - other.double()).abs()
    return float(gap.max()), float(gap.mean())


_SPLIT_PUBLISHED = {
    "gelu": (5.01, 4.26),
    "gelu-approximate": (5.01, 4.26),
    "geglu": (8.26, 6.01),
    "geglu-approximate": (6.01, 4.51),
    "swiglu": (8.26, 6.01),
    "linear-silu": (5.01, 4.26),
}
_SPLIT_SECONDS = {
    "gelu": (1.29, 1.40),
    "gelu-approximate": (1.29, 1.28),
    "geglu": (1.92, 1.92),
    "geglu-approximate": (1.30, 1.70),
    "swiglu": (1.92, 1.92),
    "linear-silu": (1.29, 1.29),
}
_OUTPUTS_APART = {"geglu": (0.00015, 0.00003), "swiglu": (0.00014, 0.00003)}
"""absmax and absmean of the outputs; 0.00000 for all others, in five decimals."""
_SPLITS = 4


def _split_rows(tell: Tell) -> Iterator[PublishedRow]:
    for activation, published in _SPLIT_PUBLISHED.items():
        tell(activation)
        unsplit, split = _split_peaks(activation)
        yield PublishedRow(activation, "allocated GiB", published[0], gib(unsplit))
        yield PublishedRow(f"{activation}, split in {_SPLITS}", "allocated GiB", published[1], gib(split))
    tell("the reproducer")
    unsplit, split = _reproducer()
    yield PublishedRow("one layer, gelu", "reserved GiB", 3.271, gib(unsplit))
    yield PublishedRow(f"one layer, gelu, split in {_SPLITS}", "reserved GiB", 2.271, gib(split))
    for activation, seconds in _SPLIT_SECONDS.items():
        yield PublishedRow(activation, "seconds", seconds[0], None, ON_A_GPU)
        yield PublishedRow(f"{activation}, split in {_SPLITS}", "seconds", seconds[1], None, ON_A_GPU)
    yield from _split_outputs(tell)


def _split_outputs(tell: Tell) -> Iterator[PublishedRow]:
    tell("the outputs")
    computed = split_differences(tuple(_SPLIT_PUBLISHED), _SPLITS)
    fewer = f"computed on this CPU, {SPLIT_TOKENS} of 16,384 tokens"
    for activation in _SPLIT_PUBLISHED:
        published = _OUTPUTS_APART.get(activation, (0.0, 0.0))
        for place, figure in enumerate(("absmax", "absmean")):
            computed_here = computed[activation]["as first published"][place]
            yield PublishedRow(f"{activation}, split as published", figure, published[place], computed_here, fewer)
            if activation in _OUTPUTS_APART:
                note = "correct split: the published one multiplied values by values"
                yield PublishedRow(f"{activation}, split", figure, None, computed[activation]["split"][place], note)
    tell("the output of one layer")
    one = one_layer_difference(_SPLITS)
    note = f"{fewer}, summed sequentially as on a GPU"
    for figure, apart, ours in (("absmax", 6.7353e-06, one[0]), ("absmean", 3.3257e-07, one[1])):
        yield PublishedRow(f"one layer, gelu, split in {_SPLITS}", figure, apart, ours, note)


def _split_peaks(activation: str) -> tuple[int, int]:
    """Predict both peaks as published: a warm-up before each, and the first output alive during the second."""
    workload = FeedForwardStack(activation=activation)
    model = built(workload)
    with predicted_device(model) as device:
        step = RunStep(workload, device, model, device.inputs(workload), None)
        step()
        first, unsplit = _split_measured(device, step)
        step()
        SplitFeedForward(splits=_SPLITS, as_published=True).apply(model)
        _, split = _split_measured(device, step)
        del first
    return unsplit, split


def _split_measured(device: PredictedDevice, step: RunStep) -> tuple[Any, int]:
    reset(device)
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
    outputs, peaks = [], []
    with predicted_device(*models) as device:
        inputs = device.inputs(workload)
        for model in models:
            reset(device)
            outputs.append(RunStep(workload, device, model, inputs, None)())
            peaks.append(device.peak_reserved_bytes)
        outputs.clear()
    return peaks[0], peaks[1]


_CHECKPOINTING_CASES = (
    ("none", None, 26.719),
    ("every block", 1, 9.316),
    ("every 2nd block", 2, 17.658),
    ("every 4th block", 4, 22.188),
)
_PER_SECOND = {
    "none": (1.680, 0.582),
    "every block": (1.358, 1.339),
    "every 2nd block": (1.539, 1.522),
    "every 4th block": (1.658, 1.630),
}
"""Steps in a second, and those of the table before its correction."""


def _checkpointing_rows(tell: Tell) -> Iterator[PublishedRow]:
    """One process from first to last, as published: gradients are kept from case to case."""
    workload = LtxVideo(mode="training")
    model = built(workload)
    with predicted_device(model) as device:
        yield PublishedRow("weights", "reserved GiB", 4.025, gib(device.peak_reserved_bytes))
        step = RunStep(workload, device, model, device.inputs(workload), None)
        tell("none, before any backward pass")
        step()
        step()
        cold = gib(device.peak_reserved_bytes)
        # Of all figures this one stood otherwise in the table before its correction.
        yield PublishedRow("none, not warmed up", "reserved GiB", 26.664, cold, "before its correction")
        for case, every, published in _CHECKPOINTING_CASES:
            tell(case)
            reset(device)
            undo = Checkpointing(every=every).apply(model) if every else None
            for _ in range(2):  # more of them change nothing, but the second may reserve a little more than the first
                step()
            yield PublishedRow(case, "reserved GiB", published, gib(device.peak_reserved_bytes))
            if undo is not None:
                undo()
    for case, (corrected, before) in _PER_SECOND.items():
        yield PublishedRow(case, "steps per second", corrected, None, ON_A_GPU)
        yield PublishedRow(f"{case}, before its correction", "steps per second", before, None, ON_A_GPU)


_FLAT_GRADIENTS_CASES = (
    ("one cat per micro-batch (baseline)", "plain", 15.1),
    ("a list, then one cat", "list_then_cat", 17.4),
    ("one flat buffer", "flat", 15.1),
)
_LOSS = 10.8708400726318359
_OTHER_LOSS = "a small model: the test is that both ways agree to the last digit"
_OTHER_MODEL = "another model, of unknown size: only the pattern can be compared"


def _flat_gradients_rows(tell: Tell) -> Iterator[PublishedRow]:
    reserved: dict[str, tuple[int, int]] = {}
    for case, how, published in _FLAT_GRADIENTS_CASES:
        tell(case)
        reserved[how] = _reserved(how)
        yield PublishedRow(case, "reserved GiB", published, gib(reserved[how][0]), _OTHER_MODEL, same_model=False)
    less = 100 * (reserved["flat"][0] / reserved["list_then_cat"][0] - 1)
    yield PublishedRow(
        "one flat buffer against the list", "% more reserved", -13.2, less, _OTHER_MODEL, same_model=False
    )
    base, parameters = reserved["plain"]
    for case, how, _ in _FLAT_GRADIENTS_CASES[1:]:
        more = (reserved[how][0] - base) / parameters
        yield PublishedRow(case, "reserved bytes per parameter above the baseline", None, more)
    tell("losses")
    for case, how in ((_FLAT_GRADIENTS_CASES[0][0], "plain"), (_FLAT_GRADIENTS_CASES[2][0], "flat")):
        twin = TransformerBlock().small()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(twin.seed)
            model = twin.build()
        inputs = [twin.inputs(torch.device("cpu"), number) for number in range(twin.micro_batches)]
        FlatGradients(how=how, micro_batches=len(inputs)).apply(model)
        losses = ComparedStep(inputs, True, twin.loss).losses(model, 5, adamw)
        yield PublishedRow(case, "average loss", _LOSS, sum(losses) / len(losses), _OTHER_LOSS, same_model=False)
    yield PublishedRow(_FLAT_GRADIENTS_CASES[0][0], "TFLOP/s", 382.0, None, ON_A_GPU)
    yield PublishedRow(_FLAT_GRADIENTS_CASES[2][0], "TFLOP/s", 440.0, None, ON_A_GPU)


def _reserved(how: str) -> tuple[int, int]:
    workload = TransformerBlock()
    model = built(workload)
    count = sum(parameter.numel() for parameter in model.parameters())
    with predicted_device(model) as device:
        FlatGradients(how=how, micro_batches=workload.micro_batches).apply(model)
        RunStep(workload, device, model, device.inputs(workload), None)()
        return device.peak_reserved_bytes, count


_PICTURES = "published as images only; a reduced Flux, computed on this CPU"
_BEFORE = "published in 9177; 10347, which continues it, has images and no figures"
_DEFAULT = "today's default of diffusers"
_OURS = "not published; predicted in the review of the pull request"


def _casting_rows(tell: Tell) -> Iterator[PublishedRow]:
    cases = (
        ("weights in bf16", None, 22.743, _BEFORE),
        ("fp8, leaf by leaf, nothing skipped", LayerwiseCasting(skip=""), 11.697, _BEFORE),
        ("fp8, leaf by leaf, norms and projections skipped", LayerwiseCasting(), None, _DEFAULT),
        ("fp8, block by block", LayerwiseCasting(skip="", granularity="block"), None, ""),
        ("fp8, the model as a whole", LayerwiseCasting(skip="", granularity="model"), None, _OURS),
    )
    for case, casting, published, note in cases:
        tell(case)
        yield PublishedRow(case, "allocated GiB", published, gib(_allocated(casting)), note)
    tell("the outputs")
    for storage in ("float8_e4m3fn", "float8_e5m2"):
        for granularity in ("model", "block", "leaf"):
            casting = LayerwiseCasting(storage=storage, skip="", granularity=granularity)
            case, difference = f"{storage}, {granularity} by {granularity}", _output_difference(casting)
            yield PublishedRow(case, "relative L2", None, difference, _PICTURES)


def _output_difference(casting: LayerwiseCasting) -> float:
    """Outputs of a small twin on real numbers, against the same without casting."""
    twin = Flux().small()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(twin.seed)
        model, inputs = twin.build(), twin.inputs(torch.device("cpu"))
        reference = flatten(model(**inputs))
        casting.apply(model)
        gaps = differences(reference, flatten(model(**inputs)))
    return max(difference.relative_l2 for difference in gaps.values())


def _allocated(casting: LayerwiseCasting | None) -> int:
    workload = Flux()
    model = built(workload)
    with predicted_device(model) as device:
        if casting is not None:
            casting.apply(model)
        # Of its 57 blocks those that would repeat an earlier one are not run.
        device.blocks.follow(model)
        reset(device)
        RunStep(workload, device, model, device.inputs(workload), None)()
        return device.peak_allocated_bytes


SEEDS = (
    Seed(
        "split-feed-forward",
        "Feed-forward split as in tensor parallelism, but on one GPU",
        "diffusers pull request 10623",
        "Inference in fp32. The output of the plain stack is live while the split one runs, in the order of 2025.",
        _split_rows,
    ),
    Seed(
        "checkpointing",
        "Gradient checkpointing with a custom strategy, LTX-Video, one training step",
        "diffusers pull request 10611",
        "Steps without zero_grad; the cache is emptied before each case. Reserved, not live, memory.",
        _checkpointing_rows,
    ),
    Seed(
        "flat-gradients",
        "Gradients of micro-batches accumulated in one flat fp32 buffer",
        "fairscale pull request 1186",
        "One step of four micro-batches on one rank. Reserved memory: the duplicate gradients are live only briefly.",
        _flat_gradients_rows,
    ),
    Seed(
        "layerwise-casting",
        "Layerwise casting: weights stored in fp8, Flux",
        "diffusers pull requests 10347 and 9177",
        "One forward pass of the transformer, after casting the weights.",
        _casting_rows,
    ),
)
"""In the order of `memviz reproduce`."""


def main(name: str) -> None:
    seed = next(seed for seed in SEEDS if seed.name == name)
    for row in seed.rows(lambda case: None):
        sys.stdout.write(json.dumps(seed.as_json(row)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
