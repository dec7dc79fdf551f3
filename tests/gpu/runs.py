"""Workloads that are recorded on a real GPU: plain ones, and with each optimization that goes with them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from memviz.runner.request import Request

_LTX = {"layers": "8"}
_FLUX = {"double_layers": "2", "single_layers": "4"}
_LLAMA = {"sequence": "2048"}
_SPLIT = ("split_feed_forward", {})
_FP8 = ("layerwise_casting", {})
_ALL = ("checkpointing", {})
_EXPANDABLE = ("allocator_settings", {"conf": "expandable_segments:True"})
_HUB = "transformers"
_GENERATE = {"mode": "inference", "cache": "true", "new_tokens": "64"}
_READ = {**_LLAMA, "mode": "inference"}
_LOSS, _LORA = ("chunked_cross_entropy", {}), ("lora", {})
_OFFLOAD = ("weight_offload", {})
_SECOND = ("checkpointing", {"every": "2"})


@dataclass(frozen=True)
class Run:
    name: str
    workload: str
    settings: Mapping[str, str] = field(default_factory=dict)
    optimizations: tuple[tuple[str, Mapping[str, str]], ...] = ()
    optimizer: str = "none"
    gib: float = 8
    """Memory of the card that it needs, about."""
    library: str = "diffusers"

    @property
    def request(self) -> Request:
        return Request(self.workload, self.settings, self.optimizations, optimizer=self.optimizer)  # type: ignore[arg-type]


def _flat(how: str) -> Run:
    optimizations = (("flat_gradients", {"how": how}),)
    return Run(f"block-{how.replace('_', '-')}", "transformer_block", {}, optimizations, gib=12, library="")


def _attention(kernel: str) -> tuple[str, Mapping[str, str]]:
    return "attention_backend", {"backend": kernel}


RUNS = (
    Run("feed-forward", "feed_forward", gib=7),
    Run("feed-forward-split", "feed_forward", {}, (_SPLIT,), gib=7),
    Run("ltx", "ltx_video", _LTX, gib=10),
    Run("ltx-checkpointed", "ltx_video", _LTX, (_ALL,), gib=10),
    Run("ltx-checkpointed-2nd", "ltx_video", _LTX, (_SECOND,), gib=10),
    _flat("plain"),
    _flat("list_then_cat"),
    _flat("flat"),
    Run("flux", "flux", _FLUX, gib=6),
    Run("flux-fp8", "flux", _FLUX, (_FP8,), gib=6),
    Run(
        "gpt2", "gpt2", optimizer="adamw", gib=13, library=_HUB
    ),
    Run(
        "gpt2-expandable", "gpt2", {}, (_EXPANDABLE,), "adamw", 13, library=_HUB,
    ),
    Run("block-math", "transformer_block", {}, (_attention("math"),), gib=7, library=""),
    Run("block-cudnn", "transformer_block", {}, (_attention("cudnn"),), gib=7, library=""),
    Run("ltx-math", "ltx_video", {"layers": "2"}, (_attention("math"),), gib=14),
    Run("ltx-efficient", "ltx_video", _LTX, (_attention("efficient"),), gib=10),
    Run("flux-flash", "flux", _FLUX, (_attention("flash"),), gib=6),
    Run("gpt2-fused", "gpt2", optimizer="adamw-fused", gib=13, library=_HUB),
    Run("gpt2-checkpointed", "gpt2", {}, (_ALL,), "adamw", 13, library=_HUB),
    Run("llama", "llama", _LLAMA, gib=15, library=_HUB),
    Run("llama-checkpointed", "llama", _LLAMA, (_ALL,), gib=15, library=_HUB),
    Run("llama-split", "llama", _LLAMA, (_SPLIT, _ALL), gib=15, library=_HUB),
    Run("cogvideox", "cogvideox", gib=7),
    Run("cogvideox-split", "cogvideox", {}, (_SPLIT,), gib=7),
    Run("cogvideox-fp8", "cogvideox", {}, (_FP8,), gib=7),
    Run("ltx-offload", "ltx_video", _LTX, (("checkpointing", {"offload": "true"}),), gib=10),
    Run("ltx-whole", "ltx_video", gib=25),
    Run("ltx-whole-checkpointed", "ltx_video", {}, (_ALL,), gib=25),
    Run("ltx-whole-checkpointed-2nd", "ltx_video", {}, (_SECOND,), gib=25),
    Run("flux-whole", "flux", gib=26),
    Run("flux-whole-fp8", "flux", {}, (_FP8,), gib=26),
    Run("flux-fp8-ahead", "flux", _FLUX, (("layerwise_casting", {"ahead": "true"}),), gib=6),
    Run("flux-offload-ahead", "flux", _FLUX, (("weight_offload", {"ahead": "true"}),), gib=6),
    Run("sdxl", "sdxl", gib=10),
    Run("sdxl-train", "sdxl", {"mode": "training", "height": "512", "width": "512"}, gib=24),
    Run("sdxl-train-checkpointed", "sdxl", {"mode": "training", "height": "512", "width": "512"}, (_ALL,), gib=20),
    Run("vae", "vae", gib=10),
    Run("vae-tiled", "vae", {}, (("vae_tiling", {}),), gib=6),
    Run("vae-train", "vae", {"part": "whole", "mode": "training", "height": "512", "width": "512"}, gib=20),
    Run("sdxl-pipeline", "sdxl_pipeline", gib=16),
    Run("sdxl-8-gb", "sdxl_pipeline", {"tile": "512"}, (_OFFLOAD, ("vae_tiling", {})), gib=8),
    Run("ltx-pipeline", "ltx_pipeline", gib=24),
    Run("ltx-pipeline-offload", "ltx_pipeline", {}, (_OFFLOAD,), gib=24),
    Run("wan", "wan", gib=10),
    Run("wan-pipeline", "wan_pipeline", {"frames": "33"}, gib=26),
    Run("hunyuan-video", "hunyuan_video", gib=32),
    Run("flux-pipeline", "flux_pipeline", gib=38),
    Run("flux-12-gb", "flux_pipeline", {}, (_OFFLOAD,), gib=8),
    Run("qwen3", "qwen3", gib=24, library=_HUB),
    Run("qwen3-generate", "qwen3", _GENERATE, gib=12, library=_HUB),
    Run("qwen3-static-cache", "qwen3", _GENERATE, (("kv_cache", {"kind": "static"}),), gib=12, library=_HUB),
    Run("mixtral", "mixtral", {"layers": "2", "sequence": "2048"}, gib=30, library=_HUB),
    Run("bert", "bert", optimizer="adamw", gib=16, library=_HUB),
    Run("vit", "vit", optimizer="adamw", gib=16, library=_HUB),
    Run("llama-lora", "llama", _LLAMA, (_LORA, _ALL), "adamw", 12, library=_HUB),
    Run("llama-chunked-loss", "llama", _LLAMA, (_LOSS, _ALL), "adamw", 24, library=_HUB),
    Run("llama-step-in-backward", "llama", _LLAMA, (("optimizer_in_backward", {}),), "adamw", 24, library=_HUB),
    Run("llama-8-bit", "llama", _LLAMA, (("eight_bit_states", {}),), "adamw", 24, library=_HUB),
    Run("llama-quantized", "llama", _READ, (("weight_quantization", {}),), gib=12, library=_HUB),
    Run("llama-quantized-4", "llama", _READ, (("weight_quantization", {"bits": "4"}),), gib=12, library=_HUB),
    Run("llama-pieces", "llama", {**_LLAMA, "batch": "4"}, (("gradient_accumulation", {}),), "adamw", 36, library=_HUB),
    Run("llama-activations-on-host", "llama", _LLAMA, (("activation_offload", {}),), gib=20, library=_HUB),
    Run("llama-chunked", "llama", _LLAMA, (("chunked_feed_forward", {}),), gib=20, library=_HUB),
    Run("llama-8b-lora", "llama", {"size": "8b", "sequence": "4096"}, (_LORA, _ALL, _LOSS), "adamw", 24, library=_HUB),
)  # fmt: skip
