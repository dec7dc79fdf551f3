"""The workloads: models with their inputs and losses, one file for each kind of model.

Importing them imports torch only; the libraries that a model comes from are imported when it is built.
"""

from __future__ import annotations

from collections.abc import Mapping

from memviz.errors import UsageError
from memviz.runner.knobs import with_knobs
from memviz.runner.workloads.diffusion_presets import CogVideoX, Flux, HunyuanVideo, LtxVideo, Sdxl, Vae, Wan
from memviz.runner.workloads.layer_stacks import FeedForwardStack, TransformerBlock
from memviz.runner.workloads.own import is_own, own_workload
from memviz.runner.workloads.pipelines import FluxPipeline, LtxPipeline, SdxlPipeline, WanPipeline
from memviz.runner.workloads.transformer_presets import Bert, Gpt2, Llama, Mixtral, Qwen3, Vit
from memviz.runner.workloads.workload import Workload
from memviz.text import nearest

__all__ = ["WORKLOADS", "Workload", "make_workload"]

WORKLOADS: tuple[type[Workload], ...] = (
    FeedForwardStack,
    LtxVideo,
    LtxPipeline,
    Flux,
    FluxPipeline,
    CogVideoX,
    Wan,
    WanPipeline,
    HunyuanVideo,
    Sdxl,
    SdxlPipeline,
    Vae,
    Gpt2,
    Llama,
    Qwen3,
    Mixtral,
    Bert,
    Vit,
    TransformerBlock,
)
"""In the order in which they are shown."""


def make_workload(name: str, settings: Mapping[str, str] | None = None) -> Workload:
    """Return a preset with these knobs, or the workload of a user's file. Nothing is built, no file is executed."""
    if is_own(name):
        return own_workload(name, settings or {})
    by_name = {kind.name: kind for kind in WORKLOADS}
    if name not in by_name:
        raise UsageError(
            f"There is no workload {name}.{nearest(name, by_name)} "
            "A model of your own is a config.json or FILE.py:function."
        )
    return with_knobs(by_name[name], settings or {})
