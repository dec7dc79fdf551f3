"""A whole pipeline: its parts follow each other, and wait on the host for their turn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from memviz.errors import UsageError
from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from memviz.runner.run import Run
from memviz.runner.workloads import workload_named
from optimizations import weight_offload
from optimizations.weight_offload import WeightOffload
from tests.optimizations.tiny import flux

CPU = torch.device("cpu")
PARTS = ["text_encoder", "text_encoder_2", "transformer", "vae"]


def twin() -> tuple[Any, dict[str, Any]]:
    workload = workload_named("flux_pipeline", {"denoising": "3"}).small()
    torch.manual_seed(0)
    return workload.build(), workload_named("flux_pipeline", {"denoising": "3"}).small().inputs(CPU)


@pytest.mark.slow
def test_both_prompts_and_every_step_reach_the_picture() -> None:
    model, inputs = twin()
    calls: list[str] = []
    for name in PARTS:
        model.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    with torch.no_grad():
        picture = model(**inputs)
        assert picture.shape == (1, 3, 64, 64)
        assert calls == ["text_encoder", "text_encoder_2", "transformer", "transformer", "vae"]
        for name in ("short_prompt", "prompt"):
            other = {**inputs, name: (inputs[name] + 1) % 40}
            assert (model(**other) - picture).norm() > 1e-3 * picture.norm()


def test_latents_of_a_token_are_a_square_of_the_picture() -> None:
    """As diffusers' pipeline takes them apart."""
    from diffusers import FluxPipeline

    model, _ = twin()
    tokens = torch.randn(2, 4 * 4, 64)
    assert torch.equal(model._unpacked(tokens), FluxPipeline._unpack_latents(tokens, 64, 64, 8))


def here(model: nn.Module, on_host: set[int]) -> list[str]:
    """Parts whose weights are not the copies that wait."""
    return [name for name in PARTS if next(model.get_submodule(name).parameters()).data_ptr() not in on_host]


@pytest.mark.slow
def test_a_part_comes_once_stays_for_all_steps_and_goes_when_the_next_one_comes(monkeypatch: Any) -> None:
    model, inputs = twin()
    moves: list[int] = []
    on_host: set[int] = set()

    def to_host(tensor: torch.Tensor) -> torch.Tensor:
        host = -tensor
        on_host.add(host.data_ptr())
        return host

    def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        moves.append(tensor.numel())
        return -tensor

    monkeypatch.setattr(weight_offload, "_on_host", to_host)
    monkeypatch.setattr(weight_offload, "_on_device", to_device)
    with torch.no_grad():
        plain = model(**inputs)
        undo = WeightOffload("part").apply(model)
        seen: list[list[str]] = []
        for name in PARTS:
            model.get_submodule(name).register_forward_hook(lambda *_: seen.append(here(model, on_host)))
        assert here(model, on_host) == []
        assert torch.equal(model(**inputs), plain)
    assert sum(moves) == sum(parameter.numel() for parameter in model.parameters())
    assert seen == [["text_encoder"], ["text_encoder_2"], ["transformer"], ["transformer"], ["vae"]]
    assert here(model, on_host) == []
    undo()
    with torch.no_grad():
        assert torch.equal(model(**inputs), plain)


def test_parts_are_those_of_a_pipeline() -> None:
    with pytest.raises(ValueError, match="nobody calls transformer_blocks, single_transformer_blocks of this Flux"):
        WeightOffload("part").check(flux().model, training=False)
    with pytest.raises(UsageError, match="must be a multiple of 16"):
        workload_named("flux_pipeline", {"height": "1000"})


def run(*chosen: tuple[str, dict[str, str]], **settings: str) -> Run:
    few = {"double_layers": "1", "single_layers": "2", "text_layers": "2", "short_text_layers": "1"}
    request = Request("flux_pipeline", {**few, "narrow": "2", "resolution": "256x256", **settings}, chosen)
    return predict(plan_of(request), lambda _: None).run


@pytest.mark.slow
def test_a_run_holds_one_part_at_a_time_and_moves_each_once_however_many_steps() -> None:
    offload = ("weight_offload", {"granularity": "part"})
    whole, apart, longer = run(), run(offload), run(offload, denoising="5")
    assert whole.host_bytes == 0
    assert apart.host_bytes == longer.host_bytes == whole.weights_bytes
    assert apart.peak_allocated_bytes < 0.75 * whole.peak_allocated_bytes
    assert longer.peak_allocated_bytes == apart.peak_allocated_bytes


@pytest.mark.slow
def test_more_steps_take_time_and_no_memory() -> None:
    two, six = run(), run(denoising="6")
    assert six.peak_allocated_bytes == two.peak_allocated_bytes
    assert six.flops > 1.5 * two.flops
