"""Passes that repeat an earlier one: traces and figures as if they had run."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from memviz.predictor import trained_layers
from memviz.predictor.cards import card_named
from memviz.predictor.device import PredictedDevice
from memviz.predictor.repetition import BlockRepeater, NotRepeatable, PassRepeater, key_of_inputs
from memviz.predictor.trained_layers import TrainedBlockRepeater
from memviz.runner.execute import predict
from memviz.runner.plan import plan_of
from memviz.runner.request import Optimizer, Request
from memviz.runner.step import Outcome
from memviz.trace.model import Trace
from tests.marks import slow_rows

_SMALL = {"layers": "2"}
_FLUX = {"double_layers": "2", "single_layers": "2"}


def _both(
    monkeypatch: pytest.MonkeyPatch,
    request: Request,
    kind: type[PassRepeater | BlockRepeater | TrainedBlockRepeater] = PassRepeater,
) -> tuple[Outcome, Outcome, int]:
    """Predict with and without repetition, and count the repeated passes or blocks."""
    counts = []
    name = "repeat_backward" if kind is TrainedBlockRepeater else "_repeat"
    plain = getattr(kind, name)

    def counted(self: Any, *args: Any) -> Any:
        counts.append(1)
        return plain(self, *args)

    monkeypatch.setattr(kind, name, counted)
    repeated = predict(plan_of(request), lambda phase: None)
    return repeated, predict(plan_of(request), lambda phase: None, repeats=False), len(counts)


def _assert_equal(one: Outcome, other: Outcome) -> None:
    first, second = one.run.as_json(), other.run.as_json()
    assert {**first, "took_seconds": 0} == {**second, "took_seconds": 0}
    _assert_equal_rows(
        one.trace, other.trace, "events", "event_labels", "annotations", "segments", "blocks", "block_labels"
    )
    assert one.trace.strings == other.trace.strings
    assert _pinned_changes(one.trace) == _pinned_changes(other.trace)


def _assert_equal_rows(one: Trace, other: Trace, *tables: str) -> None:
    for table in tables:
        mine, theirs = (getattr(trace.devices[0], table).columns() for trace in (one, other))
        for (name, column), (_, expected) in zip(mine, theirs, strict=True):
            assert np.array_equal(column, expected), (table, name)


def _pinned_changes(trace: Trace) -> list[tuple[int, int]]:
    """Return pinned bytes on the host by event; pageable ones, such as numbers in a layer, are not repeated."""
    host = trace.devices[0].host
    last = {} if host is None else dict(zip(host.event.tolist(), host.pinned.tolist(), strict=True))
    rows = list(last.items())
    return [row for row, before in zip(rows, [(0, 0), *rows], strict=False) if row[1] != before[1]]


def _request(
    workload: str, settings: Mapping[str, str], optimizer: Optimizer, *optimizations: tuple[str, Mapping[str, str]]
) -> Request:
    return Request(workload, settings, optimizations, optimizer=optimizer, numerics=False)


def test_inputs_of_unknown_kinds_have_no_key() -> None:
    assert key_of_inputs({"x": [1, "a", None]}) == key_of_inputs({"x": [1, "a", None]})
    assert key_of_inputs({"x": [1, object()]}) is None


_FOUR, _SIX, _SEVEN = {"double_layers": "4", "single_layers": "4"}, {"layers": "6"}, {"layers": "7"}
_TEXTS = {"text_layers": "4", "short_text_layers": "4"}
_PASSES = [
    (_request("feed_forward", {}, "none"), 1),
    (_request("gpt2", _SMALL, "adamw", ("gradient_accumulation", {"pieces": "4"})), 6),
    (_request("llama", {**_SMALL, "micro_batches": "4"}, "adamw"), 5),
    (_request("llama", _SMALL, "adamw", ("lora", {}), ("checkpointing", {"offload": "true"})), 1),
    (_request("mixtral", _SMALL, "adamw"), 1),
    (_request("flux", _FLUX, "none", ("weight_offload", {"granularity": "leaf"})), 1),
    # Gradients add up, weights are stepped within, cast weights rest in new memory, and a prefetch learns.
    (_request("llama", _SMALL, "none"), 0),
    (_request("llama", _SMALL, "adamw", ("optimizer_in_backward", {})), 0),
    (_request("flux", _FLUX, "none", ("layerwise_casting", {})), 0),
    (_request("flux", _FLUX, "none", ("weight_offload", {"ahead": "true"})), 0),
]
"""Passes that are repeated, and how often."""
_BLOCKS = [
    (_request("flux", _FOUR, "none"), 5),
    (_request("flux", _FOUR, "none", ("weight_quantization", {})), 5),
    (_request("sdxl", {"depth": "4"}, "none", ("layerwise_casting", {"granularity": "leaf"})), 5),
    (_request("flux", _FOUR, "none", ("layerwise_casting", {}), ("weight_offload", {})), 5),
    (
        _request("wan_pipeline", {"layers": "4", "text_layers": "4", "frames": "9"}, "none", ("layerwise_casting", {})),
        10,
    ),
    (_request("ltx_pipeline", {"layers": "4", "text_layers": "4"}, "none", ("vae_tiling", {})), 10),
    (
        _request(
            "ltx_video", {"layers": "4", "mode": "inference"}, "none", ("weight_offload", {"granularity": "leaf"})
        ),
        3,
    ),
    # A part, the UNet, is repeated; text encoders' outputs are collected, or arguments.
    (_request("sdxl_pipeline", {"depth": "2", **_TEXTS}, "none"), 16),
    (_request("flux_pipeline", {**_FOUR, **_TEXTS}, "none"), 12),
    (_request("llama", {"layers": "4", "mode": "inference"}, "none", ("split_feed_forward", {})), 3),
]
"""Blocks of a pass, and how many are repeated at least."""
_LAYERS = [
    *((_request(name, _SIX, "adamw"), 2) for name in ("gpt2", "mixtral", "vit")),
    (_request("ltx_video", _SIX, "sgd"), 2),
    (_request("flux", {"mode": "training", "double_layers": "6", "single_layers": "6"}, "none"), 4),
    (_request("ltx_video", _SIX, "adamw", ("checkpointing", {"keep": "attention"})), 2),
    (_request("llama", {**_SIX, "micro_batches": "2"}, "adamw", ("checkpointing", {})), 4),
    (_request("llama", _SEVEN, "adamw", ("lora", {}), ("checkpointing", {})), 2),
    (_request("llama", _SEVEN, "none", ("lora", {}), ("weight_quantization", {})), 2),
    (_request("gpt2", _SIX, "adamw", ("chunked_cross_entropy", {}), ("split_feed_forward", {})), 2),
    (_request("llama", _SEVEN, "adamw", ("activation_offload", {})), 2),
    (_request("gpt2", _SEVEN, "adamw", ("activation_offload", {}), ("checkpointing", {})), 3),
    (_request("llama", {**_SIX, "micro_batches": "4"}, "adamw", ("flat_gradients", {})), 16),
    (_request("llama", _SIX, "adamw", ("flat_gradients", {"how": "plain"}), ("activation_offload", {})), 2),
    # Weights are stepped within.
    (_request("gpt2", _SIX, "adamw", ("optimizer_in_backward", {})), 0),
]
"""Layers of a training step, and how many are repeated at least."""


@pytest.mark.parametrize(
    ("kind", "request_", "repeats"),
    [
        (PassRepeater, _request("feed_forward", {**_SMALL, "mode": "training"}, "adamw"), 1),
        *slow_rows(*((PassRepeater, *row) for row in _PASSES)),
        *slow_rows(*((BlockRepeater, *row) for row in _BLOCKS)),
        *slow_rows(*((TrainedBlockRepeater, *row) for row in _LAYERS)),
    ],
    ids=lambda value: " ".join([value.workload, *dict(value.optimizations)]) if isinstance(value, Request) else "",
)
def test_what_is_repeated_looks_as_if_it_had_run(
    monkeypatch: pytest.MonkeyPatch, kind: Any, request_: Request, repeats: int
) -> None:
    repeated, run, count = _both(monkeypatch, request_, kind)
    _assert_equal(repeated, run)
    assert count == repeats if kind is PassRepeater else count >= repeats and (count > 0) == (repeats > 0)


@pytest.mark.slow
def test_a_prediction_starts_again_where_layers_turn_out_to_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last layers of LTX-Video begin the gradients that all layers share, which no other does.
    monkeypatch.setattr(trained_layers, "_LAST_THAT_RUN", 1)
    request = _request("ltx_video", {"layers": "5"}, "none")
    repeated, run, count = _both(monkeypatch, request, TrainedBlockRepeater)
    _assert_equal(repeated, run)
    assert count == 1


class _Layer(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 1024)
        self.scale = scale

    def forward(self, x: Tensor, seen: list[int] | None = None) -> Tensor:
        if seen is not None:
            seen.append(1)
        out: Tensor = x + self.linear(x) * self.scale
        return out


def _repeated(layers: list[nn.Module], call: Any) -> tuple[int, int]:
    """Return how many layers were repeated, and the peak."""
    device = PredictedDevice(card_named("RTX 4090"))
    with device:
        model = device.place(nn.ModuleList(layers))
        device.blocks.follow(model)
        x = torch.randn(512, 1024, device="cuda")
        with torch.no_grad():
            for layer in model:
                x = call(layer, x)
        return device.blocks.repeated, device.peak_allocated_bytes


def test_layers_that_differ_in_a_setting_run() -> None:
    alike: list[nn.Module] = [_Layer() for _ in range(5)]
    repeated, peak = _repeated(alike, lambda layer, x: layer(x))
    assert repeated == 4
    differing: list[nn.Module] = [_Layer(scale) for scale in (1.0, 1.0, 2.0, 2.0, 1.0)]
    assert _repeated(differing, lambda layer, x: layer(x)) == (3, peak)
    assert _repeated([_Layer(scale) for scale in (1.0, 2.0, 3.0, 4.0, 5.0)], lambda layer, x: layer(x)) == (0, peak)


def test_a_layer_that_gets_a_list_to_write_to_runs() -> None:
    seen: list[int] = [0]
    assert _repeated([_Layer() for _ in range(5)], lambda layer, x: layer(x, seen))[0] == 0
    assert seen == [0, 1, 1, 1, 1, 1]


class _Frames(nn.Module):
    """Decodes a frame with what it kept of the one before, as video autoencoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = _Layer()

    def forward(self, x: Tensor, before: list[Any], count: list[int]) -> Tensor:
        out: Tensor = self.layer(x if before[0] is None else x + before[0])
        before[0] = out * 2
        count[0] += 1
        return out


def _decoded_frames(*, follows: bool) -> tuple[int, Trace, list[int]]:
    device, counts = PredictedDevice(card_named("RTX 4090")), []
    with device, torch.no_grad():
        decoder = device.place(nn.Sequential(_Frames()))
        if follows:
            device.blocks.follow(decoder)
        x, before, frames = torch.randn(512, 1024, device="cuda"), [None], []
        for _ in range(6):
            count = [0]
            frames.append(decoder[0](x, before, count))
            counts += count
        del before[0]
        return device.blocks.repeated, device.finish(), counts


def test_a_module_that_is_called_again_replaces_the_items_of_a_list_as_if_it_had_run() -> None:
    repeated, trace, counts = _decoded_frames(follows=True)
    none, expected, _ = _decoded_frames(follows=False)
    assert (repeated, none, counts) == (4, 0, [1] * 6)
    _assert_equal_rows(trace, expected, "events", "event_labels")


class _Denoiser(nn.Module):
    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.layer, self.reads = _Layer(), reads

    def forward(self, x: Tensor, time: Tensor, conditions: dict[str, Tensor]) -> Tensor:
        out: Tensor = self.layer(x + conditions["text"])
        return torch.cat([out, out]).chunk(2)[0] if self.reads and time.item() > 500 else out


class _Pipeline(nn.Module):
    def __init__(self, *, reads: bool) -> None:
        super().__init__()
        self.denoiser = _Denoiser(reads=reads)

    def forward(self, x: Tensor) -> Tensor:
        conditions = {"text": x * 2}
        for number in range(4):
            x = self.denoiser(x, torch.tensor(1000 - 250 * number, device=x.device), conditions)
        return x


@pytest.mark.parametrize("reads", [False, True])
def test_a_part_is_repeated_unless_a_value_decides_what_it_does(*, reads: bool) -> None:
    calls: list[Any] = []
    traces = []
    for follows in (True, False):
        device = PredictedDevice(card_named("RTX 4090"))
        with device, torch.no_grad():
            model = device.place(_Pipeline(reads=reads))
            if follows:
                device.blocks.follow(model)
                model.denoiser.register_forward_pre_hook(lambda module, args: calls.append(module))
            model(torch.randn(512, 1024, device="cuda"))
            traces.append(device.finish())
    assert len(calls) == (4 if reads else 1)
    _assert_equal_rows(*traces, "events", "event_labels")


def test_layers_run_whose_outputs_a_hook_collects() -> None:
    collected: list[Tensor] = []
    layers: list[nn.Module] = [_Layer() for _ in range(5)]
    for layer in layers:
        layer.register_forward_hook(lambda module, args, output: collected.append(output))
    assert _repeated(layers, lambda layer, x: layer(x))[0] == 0
    assert len(collected) == 5


def test_few_layers_run_where_gradients_are_kept() -> None:
    def call(layer: nn.Module, x: Tensor) -> Any:
        with torch.enable_grad():
            return layer(x)

    assert _repeated([_Layer() for _ in range(4)], call)[0] == 0


def test_layers_with_connections_past_the_next_end_the_repetition() -> None:
    device = PredictedDevice(card_named("RTX 4090"))
    with device:
        layers = device.place(nn.ModuleList([_Layer() for _ in range(8)]))
        device.blocks.follow(layers)
        x = torch.randn(512, 1024, device="cuda", requires_grad=True)
        skipped = []
        for number, layer in enumerate(layers):
            if number < 4:
                x = layer(x)
                skipped.append(x)
            else:
                x = layer(x + skipped.pop())
        with pytest.raises(NotRepeatable):
            x.sum().backward()
