"""The workloads: models with their inputs and losses, one file for each kind of model.

Importing them imports torch only; the libraries that a model comes from are imported when it is built.
"""

from __future__ import annotations

from memviz.runner.workloads.diffusion_presets import CogVideoX, Flux, HunyuanVideo, LtxVideo, Sdxl, Vae, Wan
from memviz.runner.workloads.layer_stacks import FeedForwardStack, TransformerBlock
from memviz.runner.workloads.pipelines import FluxPipeline, LtxPipeline, SdxlPipeline, WanPipeline
from memviz.runner.workloads.transformer_presets import Bert, Gpt2, Llama, Mixtral, Qwen3, Vit
from memviz.runner.workloads.workload import Workload

__all__ = ["WORKLOADS", "Workload"]

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
