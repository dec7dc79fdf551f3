"""Blocks of a UNet: as fine as those that diffusers checkpoints itself, and no peak above its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from memviz.runner.run import Run
from memviz.runner.workloads import workload_named
from memviz.runner.workloads.image_models import Sdxl
from optimizations.checkpointing import Checkpointing, blocks
from tests.optimizations.tiny import different, one_step


def unet() -> Any:
    workload = workload_named("sdxl", {"mode": "training"}).small()
    torch.manual_seed(0)
    return workload.build(), workload


def test_blocks_are_what_diffusers_checkpoints() -> None:
    """It hands them to a function; here are all of those, and as many transformer blocks."""
    model, workload = unet()
    theirs: list[nn.Module] = []

    def note(module: nn.Module, *args: Any) -> Any:
        theirs.append(module)
        return module(*args)

    model.enable_gradient_checkpointing(gradient_checkpointing_func=note)
    workload.loss(model(**workload.inputs(torch.device("cpu")))).backward()
    model.disable_gradient_checkpointing()
    ours = blocks(model)
    assert sum(type(block).__name__ == "BasicTransformerBlock" for block in ours.values()) == sum(
        type(block).__name__ == "BasicTransformerBlock" for block in theirs
    )
    assert set(ours.values()) >= set(theirs)
    assert "mid_block.attentions.0.transformer_blocks.0" in ours


@pytest.mark.slow
def test_gradients_are_the_same_to_the_bit() -> None:
    model, workload = unet()
    inputs = workload.inputs(torch.device("cpu"))

    def loss(model: nn.Module) -> torch.Tensor:
        return workload.loss(model(**inputs))

    plain = one_step(model, loss)
    undo = Checkpointing().apply(model)
    assert different(plain, one_step(model, loss)) == []
    undo()
    assert different(plain, one_step(model, loss)) == []


def run(*chosen: tuple[str, dict[str, str]]) -> Run:
    settings = {"mode": "training", "channels": "128", "depth": "2", "resolution": "512x512"}
    return predict(plan_of(Request("sdxl", settings, chosen, numerics=False)), lambda _: None).run


@pytest.mark.slow
def test_a_step_takes_no_more_than_with_diffusers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours = run(), run(("checkpointing", {}))
    make = Sdxl._model

    def checkpointing_itself(workload: Sdxl) -> nn.Module:
        model: Any = make(workload)
        model.enable_gradient_checkpointing()
        return model  # type: ignore[no-any-return]

    monkeypatch.setattr(Sdxl, "_model", checkpointing_itself)
    theirs = run()
    assert ours.peak_allocated_bytes <= theirs.peak_allocated_bytes < plain.peak_allocated_bytes
