"""SDXL as a whole: words go in and a picture comes out, with each step at twice the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from memviz.runner.workloads import workload_named
from optimizations.weight_offload import WeightOffload

CPU = torch.device("cpu")
PARTS = ["text_encoder", "text_encoder_2", "unet", "vae"]


@pytest.fixture(scope="module")
def twin() -> tuple[nn.Module, dict[str, Any]]:
    workload = workload_named("sdxl_pipeline").small()
    torch.manual_seed(0)
    return workload.build(), workload.inputs(CPU)


@pytest.mark.slow
def test_prompt_and_every_step_reach_the_picture(twin: tuple[nn.Module, dict[str, Any]]) -> None:
    model, inputs = twin
    calls: list[tuple[str, int]] = []
    hooks = [
        model.get_submodule(name).register_forward_hook(
            lambda _, args, kwargs, __, name=name: calls.append((name, len((*args, *kwargs.values())[0]))),
            with_kwargs=True,
        )
        for name in PARTS
    ]
    with torch.no_grad():
        picture = model(**inputs)
        for hook in hooks:
            hook.remove()
        other = model(**{**inputs, "prompts": (inputs["prompts"] + 1) % 40})
    assert picture.shape == (1, 3, 64, 64)
    assert calls == [("text_encoder", 2), ("text_encoder_2", 2), ("unet", 2), ("unet", 2), ("vae", 1)]
    assert (other - picture).norm() > 1e-3 * picture.norm()


def test_without_guidance_a_step_looks_at_the_prompt_alone(twin: tuple[nn.Module, dict[str, Any]]) -> None:
    workload = replace(workload_named("sdxl_pipeline").small(), guided=False)
    inputs = workload.inputs(CPU)
    assert [len(inputs[name]) for name in ("prompts", "latents", "time_ids")] == [1, 1, 1]
    model, given = twin
    # Where both halves ask for the same, what guides is nothing.
    same = {**given, "prompts": given["prompts"][1:].repeat(2, 1), "time_ids": given["time_ids"][1:].repeat(2, 1)}
    one = {**given, "prompts": given["prompts"][1:], "time_ids": given["time_ids"][1:]}
    with torch.no_grad():
        guided = model(**same)
        model.guided = False
        try:
            assert torch.allclose(model(**one), guided, rtol=1e-3, atol=1e-4)
        finally:
            model.guided = True


def test_its_parts_can_wait_for_each_other(twin: tuple[nn.Module, dict[str, Any]]) -> None:
    WeightOffload("part").check(twin[0], training=False)
