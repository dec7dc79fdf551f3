"""What there is to run: one file per workload, each a model with its inputs and its loss.

Importing them imports torch only; the libraries that a model comes from are imported when it is built.
"""

from __future__ import annotations

from collections.abc import Mapping

from memviz.errors import UsageError
from memviz.runner.knobs import nearest, with_knobs
from memviz.runner.workloads.bert import Bert
from memviz.runner.workloads.cogvideox import CogVideoX
from memviz.runner.workloads.feed_forward import FeedForwardStack
from memviz.runner.workloads.flux import Flux
from memviz.runner.workloads.flux_pipeline import FluxPipeline
from memviz.runner.workloads.gpt2 import Gpt2
from memviz.runner.workloads.hunyuan_video import HunyuanVideo
from memviz.runner.workloads.llama import Llama
from memviz.runner.workloads.ltx_pipeline import LtxPipeline
from memviz.runner.workloads.ltx_video import LtxVideo
from memviz.runner.workloads.mixtral import Mixtral
from memviz.runner.workloads.own import is_own, own_workload
from memviz.runner.workloads.qwen3 import Qwen3
from memviz.runner.workloads.sdxl import Sdxl
from memviz.runner.workloads.sdxl_pipeline import SdxlPipeline
from memviz.runner.workloads.transformer_block import TransformerBlock
from memviz.runner.workloads.vae import Vae
from memviz.runner.workloads.vit import Vit
from memviz.runner.workloads.wan import Wan
from memviz.runner.workloads.wan_pipeline import WanPipeline
from memviz.runner.workloads.workload import Workload

__all__ = ["WORKLOADS", "Workload", "workload_named"]

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


def workload_named(name: str, settings: Mapping[str, str] | None = None) -> Workload:
    """One of ours with these knobs turned, or a user's file. Nothing is built and no file is executed."""
    if is_own(name):
        return own_workload(name, settings or {})
    by_name = {kind.name: kind for kind in WORKLOADS}
    if name not in by_name:
        raise UsageError(
            f"There is no workload {name}.{nearest(name, by_name)} "
            "A model of your own is a config.json or FILE.py:function."
        )
    return with_knobs(by_name[name], settings or {})
