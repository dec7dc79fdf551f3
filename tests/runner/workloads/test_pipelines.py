"""Whole pipelines: parts run in the order and at the batch of diffusers, and wait on the host for their turn."""

from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from memviz.errors import UsageError
from memviz.runner.execute import predict
from memviz.runner.plan import make_workload, plan_of
from memviz.runner.request import Request, Run
from optimizations import weight_offload
from optimizations.vae_tiling import VaeTiling
from optimizations.weight_offload import WeightOffload
from tests.optimizations.tiny import flux

CPU = torch.device("cpu")
TWO_ENCODERS = ("text_encoder", "text_encoder_2")
CALLS = {
    "flux_pipeline": [*((name, 1) for name in TWO_ENCODERS)] + [("transformer", 1)] * 2 + [("vae", 1)],
    "sdxl_pipeline": [*((name, 2) for name in TWO_ENCODERS)] + [("unet", 2)] * 2 + [("vae", 1)],
    "ltx_pipeline": [("text_encoder", 1)] * 2 + [("transformer", 2)] * 2 + [("vae", 1)],
    "wan_pipeline": [("text_encoder", 1)] * 2 + [("transformer", 1)] * 4 + [("vae", 1)],
}
"""Parts in the order in which they run, with their batch: LTX looks at both prompts at once, Wan apart."""
SHAPES = {
    "flux_pipeline": (1, 3, 64, 64),
    "sdxl_pipeline": (1, 3, 64, 64),
    "ltx_pipeline": (1, 3, 9, 256, 352),
    "wan_pipeline": (1, 3, 5, 64, 80),
}
every_pipeline = pytest.mark.parametrize("name", CALLS)
videos = pytest.mark.parametrize("name", ["ltx_pipeline", "wan_pipeline"])


@cache
def twin(name: str) -> tuple[Any, dict[str, Any]]:
    workload = make_workload(name).small()
    torch.manual_seed(0)
    return workload.build(), workload.inputs(CPU)


@cache
def output(name: str) -> Tensor:
    model, inputs = twin(name)
    with torch.no_grad():
        made: Tensor = model(**inputs)
    return made


@pytest.mark.slow
@every_pipeline
def test_each_part_runs_as_often_and_at_the_batch_of_diffusers(name: str) -> None:
    model, inputs = twin(name)
    calls: list[tuple[str, int]] = []

    def note(part: str) -> Any:
        return lambda _, args, kwargs, __: calls.append((part, len((*args, *kwargs.values())[0])))

    with ExitStack() as hooks, torch.no_grad():
        for key, part in model.named_children():
            hooks.enter_context(part.register_forward_hook(note(key), with_kwargs=True))
        made = model(**inputs)
    assert calls == CALLS[name]
    assert made.shape == SHAPES[name]
    assert torch.equal(made, output(name))


@pytest.mark.slow
@every_pipeline
def test_every_prompt_reaches_the_output(name: str) -> None:
    model, inputs = twin(name)
    for prompt in (key for key in inputs if "prompt" in key):
        with torch.no_grad():
            other = model(**{**inputs, prompt: (inputs[prompt] + 1) % 40})
        assert (other - output(name)).norm() > 1e-3 * output(name).norm()


@pytest.mark.slow
def test_without_guidance_a_step_of_sdxl_looks_at_the_prompt_alone() -> None:
    workload = replace(make_workload("sdxl_pipeline").small(), guided=False)
    inputs = workload.inputs(CPU)
    assert [len(inputs[name]) for name in ("prompts", "latents", "time_ids")] == [1, 1, 1]
    model, given = twin("sdxl_pipeline")
    # If both halves have the same prompt, guidance has no effect.
    same = {**given, "prompts": given["prompts"][1:].repeat(2, 1), "time_ids": given["time_ids"][1:].repeat(2, 1)}
    one = {**given, "prompts": given["prompts"][1:], "time_ids": given["time_ids"][1:]}
    with torch.no_grad():
        guided = model(**same)
        model.guided = False
        try:
            assert torch.allclose(model(**one), guided, rtol=1e-3, atol=1e-4)
        finally:
            model.guided = True


@pytest.mark.slow
def test_latents_of_flux_are_unpacked_as_diffusers_does() -> None:
    from diffusers import FluxPipeline

    model, _ = twin("flux_pipeline")
    tokens = torch.randn(2, 4 * 4, 64)
    assert torch.equal(model._unpacked(tokens), FluxPipeline._unpack_latents(tokens, 64, 64, 8))


@pytest.mark.slow
def test_latents_of_ltx_are_unpacked_as_diffusers_does() -> None:
    from diffusers import LTXPipeline

    model, inputs = twin("ltx_pipeline")
    given: list[Tensor] = []
    into = model.vae.register_forward_pre_hook(lambda _, args: given.append(args[0]))
    with into, model.transformer.register_forward_hook(lambda *call: (torch.zeros_like(call[2][0]),)), torch.no_grad():
        model(**inputs)
    assert torch.equal(given[0], LTXPipeline._unpack_latents(inputs["latents"], 2, 8, 11))


@pytest.mark.slow
@videos
def test_the_autoencoder_of_a_video_works_in_tiles(name: str) -> None:
    model, inputs = twin(name)
    widest: list[int] = []
    undo = VaeTiling().apply(model.vae)
    hook = model.vae.decoder.register_forward_hook(lambda _, args, made: widest.append(max(made.shape[-2:])))
    with hook, torch.no_grad():
        tiled = model(**inputs)
    undo()
    assert tiled.shape == output(name).shape
    assert len(widest) > 1
    assert max(widest) <= make_workload(name).small().tile  # type: ignore[attr-defined]


@pytest.mark.slow
@every_pipeline
def test_a_part_comes_once_stays_for_all_steps_and_goes_when_the_next_one_comes(name: str, monkeypatch: Any) -> None:
    model, inputs = twin(name)
    parts = dict(model.named_children())
    moved: list[int] = []
    on_host: set[int] = set()

    def to_host(tensor: Tensor) -> Tensor:
        host = -tensor
        on_host.add(host.data_ptr())
        return host

    def to_device(tensor: Tensor, device: torch.device) -> Tensor:
        moved.append(tensor.numel())
        return -tensor

    def here() -> list[str]:
        """Parts whose weights are not the copies that wait."""
        return [key for key, part in parts.items() if next(part.parameters()).data_ptr() not in on_host]

    monkeypatch.setattr(weight_offload, "_on_host", to_host)
    monkeypatch.setattr(weight_offload, "_on_device", to_device)
    undo = WeightOffload("part").apply(model)
    seen: list[list[str]] = []
    with ExitStack() as hooks, torch.no_grad():
        for part in parts.values():
            hooks.enter_context(part.register_forward_hook(lambda *_: seen.append(here())))
        assert here() == []
        assert torch.equal(model(**inputs), output(name))
    assert seen == [[part] for part, _ in CALLS[name]]
    assert sum(moved) == sum(parameter.numel() for parameter in model.parameters())
    assert here() == []
    undo()
    with torch.no_grad():
        assert torch.equal(model(**inputs), output(name))


def test_parts_are_those_of_a_pipeline() -> None:
    with pytest.raises(ValueError, match="transformer_blocks, single_transformer_blocks of this Flux"):
        WeightOffload("part").check(flux().model, training=False)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("flux_pipeline", {"height": "1000"}, "must be a multiple of 16"),
        ("ltx_pipeline", {"frames": "80"}, "must be 1 more than a multiple of 8"),
        ("ltx_pipeline", {"tile": "160"}, "tile is 160; it must be a multiple of 64"),
        ("wan_pipeline", {"height": "1000"}, "must be a multiple of 16"),
    ],
)
def test_sizes_that_do_not_fold_are_refused(name: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_workload(name, settings)


FEW = {
    "flux_pipeline": {"double_layers": "1", "single_layers": "2", "text_layers": "2", "short_text_layers": "1"}
    | {"narrow": "2", "resolution": "256x256"},
    "ltx_pipeline": {"layers": "2", "text_layers": "2", "narrow": "2", "resolution": "64x64", "frames": "9"},
    "wan_pipeline": {"layers": "2", "text_layers": "2", "narrow": "2", "resolution": "64x64", "frames": "9"},
}


def run(name: str, *chosen: tuple[str, dict[str, str]], **settings: str) -> Run:
    return predict(plan_of(Request(name, {**FEW[name], **settings}, chosen)), lambda _: None).run


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_more_steps_take_time_and_no_memory_and_parts_take_turns(name: str) -> None:
    offload = ("weight_offload", {"granularity": "part"})
    two, four, apart = run(name), run(name, denoising="4"), run(name, offload)
    assert four.peak_allocated_bytes == two.peak_allocated_bytes
    assert four.flops > two.flops
    # A pipeline may keep a few numbers of its scheduler on the host.
    assert apart.host_bytes >= two.weights_bytes and two.host_bytes < 1024
    assert apart.peak_allocated_bytes < two.peak_allocated_bytes
