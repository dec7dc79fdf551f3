"""Weights are drawn on the device, and handed over as if they had never been there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from memviz.runner.measure.measured_run import drawn_on
from tests.runner.fake_gpu import FakeGpu


def places_of(model: nn.Module) -> set[str]:
    return {str(parameter.device) for parameter in model.parameters()}


def test_a_model_built_there_comes_back_in_host_memory():
    gpu, built = FakeGpu(), []

    def build() -> nn.Module:
        kept = gpu.malloc(3 << 20)
        built.append(nn.Linear(4, 4).weight.device.type)
        gpu.free(kept)
        return nn.Linear(4, 4)

    with torch.device("meta"):
        model = drawn_on(gpu.accelerator, build)
        assert places_of(nn.Linear(4, 4)) == {"meta"}
    assert (built, places_of(model)) == (["cpu"], {"cpu"})
    assert gpu.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"] == 0


def test_what_has_no_room_there_is_drawn_here():
    gpu, tried = FakeGpu(), []

    def build() -> nn.Module:
        model = nn.Linear(4, 4)
        tried.append(model.weight.device.type)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("Tried to allocate 40.00 GiB.")
        return model

    assert places_of(drawn_on(replace(gpu.accelerator, kind="meta"), build)) == {"cpu"}
    assert tried == ["meta", "cpu"]


def test_another_failure_is_told():
    with pytest.raises(ValueError, match="no such shape"):
        drawn_on(FakeGpu().accelerator, lambda: (_ for _ in ()).throw(ValueError("no such shape")))
