"""LTX-Video and Wan as a whole: words go in and a video comes out."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memviz.errors import UsageError
from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from memviz.runner.run import Run
from memviz.runner.workloads import workload_named
from optimizations.vae_tiling import VaeTiling
from optimizations.weight_offload import WeightOffload

CPU = torch.device("cpu")
CALLS = {
    "ltx_pipeline": [("text_encoder", 1)] * 2 + [("transformer", 2)] * 2 + [("vae", 1)],
    "wan_pipeline": [("text_encoder", 1)] * 2 + [("transformer", 1)] * 4 + [("vae", 1)],
}
"""Parts in the order in which they run, with their batch: LTX looks at both prompts at once, Wan apart."""
SIZES = {"ltx_pipeline": (9, 256, 352), "wan_pipeline": (5, 64, 80)}
BOTH = pytest.mark.parametrize("name", CALLS)


@cache
def twin(name: str) -> tuple[nn.Module, dict[str, Any]]:
    workload = workload_named(name).small()
    torch.manual_seed(0)
    return workload.build(), workload.inputs(CPU)


@cache
def video(name: str) -> Tensor:
    model, inputs = twin(name)
    with torch.no_grad():
        made: Tensor = model(**inputs)
    return made


@pytest.mark.slow
@BOTH
def test_each_part_runs_as_often_and_at_the_batch_of_diffusers(name: str) -> None:
    model, inputs = twin(name)
    calls: list[tuple[str, int]] = []
    hooks = [
        part.register_forward_hook(
            lambda _, args, kwargs, __, part_name=part_name: calls.append(
                (part_name, len((*args, *kwargs.values())[0]))
            ),
            with_kwargs=True,
        )
        for part_name, part in model.named_children()
    ]
    try:
        with torch.no_grad():
            made = model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    assert calls == CALLS[name]
    assert made.shape == (1, 3, *SIZES[name])
    assert torch.equal(made, video(name))


@pytest.mark.slow
@BOTH
def test_the_words_reach_the_video(name: str) -> None:
    model, inputs = twin(name)
    with torch.no_grad():
        other = model(**{**inputs, "prompts": (inputs["prompts"] + 1) % 40})
    assert (other - video(name)).norm() > 1e-3 * video(name).norm()


@pytest.mark.slow
def test_latents_of_ltx_are_put_in_their_places_as_diffusers_does() -> None:
    from diffusers import LTXPipeline

    model, inputs = twin("ltx_pipeline")
    given: list[Tensor] = []
    hooks = [
        model.get_submodule("vae").register_forward_pre_hook(lambda _, args: given.append(args[0])),
        model.get_submodule("transformer").register_forward_hook(lambda *call: (torch.zeros_like(call[2][0]),)),
    ]
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        for hook in hooks:
            hook.remove()
    assert torch.equal(given[0], LTXPipeline._unpack_latents(inputs["latents"], 2, 8, 11))


@pytest.mark.slow
@BOTH
def test_its_parts_wait_on_the_host_and_its_autoencoder_works_in_tiles(name: str) -> None:
    model, inputs = twin(name)
    WeightOffload("part").check(model, training=False)
    widest: list[int] = []
    decoder = model.get_submodule("vae.decoder")
    hook = decoder.register_forward_hook(lambda _, args, output: widest.append(max(output.shape[-2:])))
    undo = VaeTiling().apply(model.get_submodule("vae"))
    try:
        with torch.no_grad():
            tiled = model(**inputs)
    finally:
        undo()
        hook.remove()
    assert tiled.shape == video(name).shape
    assert len(widest) > 1
    assert max(widest) <= workload_named(name).small().tile  # type: ignore[attr-defined]


def test_sizes_that_do_not_fold_are_refused() -> None:
    with pytest.raises(UsageError, match="must be 1 more than a multiple of 8"):
        workload_named("ltx_pipeline", {"frames": "80"})
    with pytest.raises(UsageError, match="tile is 160; it must be a multiple of 64"):
        workload_named("ltx_pipeline", {"tile": "160"})
    with pytest.raises(UsageError, match="must be a multiple of 16"):
        workload_named("wan_pipeline", {"height": "1000"})


def run(name: str, *chosen: tuple[str, dict[str, str]], **settings: str) -> Run:
    few = {"layers": "2", "text_layers": "2", "narrow": "2", "resolution": "64x64", "frames": "9"}
    return predict(plan_of(Request(name, {**few, **settings}, chosen)), lambda _: None).run


@pytest.mark.slow
@BOTH
def test_more_steps_take_time_and_no_memory_and_parts_take_turns(name: str) -> None:
    two, four = run(name), run(name, denoising="4")
    apart = run(name, ("weight_offload", {"granularity": "part"}))
    assert four.peak_allocated_bytes == two.peak_allocated_bytes
    assert four.flops > two.flops
    assert apart.host_bytes >= two.weights_bytes
    assert apart.peak_allocated_bytes < two.peak_allocated_bytes
