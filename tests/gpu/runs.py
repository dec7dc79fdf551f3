"""Which workloads are captured, as they are and with each optimization that goes with them, most wanted first.

What a run needs of the card is a guess for choosing, on the safe side; the results have the real figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LTX = {"layers": "8"}
_FLUX = {"double_layers": "2", "single_layers": "4"}
_LLAMA = {"sequence": "2048"}
_SPLIT = ("split_feed_forward", {})
_FP8 = ("layerwise_casting", {})
_ALL = ("checkpointing", {})
_EXPANDABLE = ("allocator_settings", {"conf": "expandable_segments:True"})
_SECOND = ("checkpointing", {"every": "2"})
_DIFFUSERS, _TRANSFORMERS = ("diffusers",), ("transformers",)


@dataclass(frozen=True)
class Run:
    name: str
    workload: str
    settings: Mapping[str, str] = field(default_factory=dict)
    optimizations: tuple[tuple[str, Mapping[str, str]], ...] = ()
    optimizer: str = "none"
    gib: float = 8
    seconds: float = 12
    libraries: tuple[str, ...] = _DIFFUSERS
    small: bool = False
    """Whether it is part of the short round."""
    shows: str = ""
    """Of those that may become a sample: what people see in it."""

    @property
    def request(self) -> dict[str, Any]:
        """Arguments of a `Request`."""
        return {
            "workload": self.workload,
            "settings": dict(self.settings),
            "optimizations": [[name, dict(knobs)] for name, knobs in self.optimizations],
            "optimizer": self.optimizer,
        }


def _flat(how: str, shows: str, *, small: bool = False) -> Run:
    name, made = f"block-{how.replace('_', '-')}", (("flat_gradients", {"how": how}),)
    return Run(name, "transformer_block", {}, made, gib=12, libraries=(), small=small, shows=shows)


def _attention(kernel: str) -> tuple[str, Mapping[str, str]]:
    return "attention_backend", {"backend": kernel}


RUNS = (
    Run("feed-forward", "feed_forward", gib=7, small=True, shows="Five wide feed-forwards, one after the other"),
    Run("feed-forward-split", "feed_forward", {}, (_SPLIT,), gib=7, small=True, shows="The same, each in four slices"),
    Run("ltx", "ltx_video", _LTX, gib=10, small=True, shows="A training step of LTX-Video, cut to 8 blocks"),
    Run("ltx-checkpointed", "ltx_video", _LTX, (_ALL,), gib=10, small=True, shows="The same, all blocks checkpointed"),
    Run("ltx-checkpointed-2nd", "ltx_video", _LTX, (_SECOND,), gib=10, shows="The same, every second checkpointed"),
    _flat("plain", "Four micro-batches, gradients joined for each", small=True),
    _flat("list_then_cat", "The same, fp32 gradients in a list that is joined at the end"),
    _flat("flat", "The same, added up in one flat buffer"),
    Run("flux", "flux", _FLUX, gib=6, shows="A forward pass of Flux, cut to 2 and 4 blocks"),
    Run("flux-fp8", "flux", _FLUX, (_FP8,), gib=6, shows="The same, weights stored in fp8"),
    Run(
        "gpt2", "gpt2", optimizer="adamw", gib=13, libraries=_TRANSFORMERS, small=True, shows="GPT-2 trained with AdamW"
    ),
    Run(
        "gpt2-expandable", "gpt2", {}, (_EXPANDABLE,), "adamw", 13, libraries=_TRANSFORMERS,
        shows="The same with expandable segments",
    ),
    Run("block-math", "transformer_block", {}, (_attention("math"),), gib=7, libraries=()),
    Run("block-cudnn", "transformer_block", {}, (_attention("cudnn"),), gib=7, libraries=()),
    Run("ltx-math", "ltx_video", {"layers": "2"}, (_attention("math"),), gib=14),
    Run("ltx-efficient", "ltx_video", _LTX, (_attention("efficient"),), gib=10),
    Run("flux-flash", "flux", _FLUX, (_attention("flash"),), gib=6),
    Run("gpt2-fused", "gpt2", optimizer="adamw-fused", gib=13, libraries=_TRANSFORMERS),
    Run("gpt2-checkpointed", "gpt2", {}, (_ALL,), "adamw", 13, libraries=_TRANSFORMERS),
    Run("llama", "llama", _LLAMA, gib=15, seconds=15, libraries=_TRANSFORMERS),
    Run("llama-checkpointed", "llama", _LLAMA, (_ALL,), gib=15, seconds=15, libraries=_TRANSFORMERS),
    Run("llama-split", "llama", _LLAMA, (_SPLIT, _ALL), gib=15, seconds=15, libraries=_TRANSFORMERS),
    Run("cogvideox", "cogvideox", gib=7, seconds=15),
    Run("cogvideox-split", "cogvideox", {}, (_SPLIT,), gib=7, seconds=15),
    Run("cogvideox-fp8", "cogvideox", {}, (_FP8,), gib=7, seconds=15),
    Run("ltx-offload", "ltx_video", _LTX, (("checkpointing", {"offload": "true"}),), gib=10),
    Run("ltx-whole", "ltx_video", gib=25, seconds=25),
    Run("ltx-whole-checkpointed", "ltx_video", {}, (_ALL,), gib=25, seconds=25),
    Run("ltx-whole-checkpointed-2nd", "ltx_video", {}, (_SECOND,), gib=25, seconds=25),
    Run("flux-whole", "flux", gib=26, seconds=40),
    Run("flux-whole-fp8", "flux", {}, (_FP8,), gib=26, seconds=40),
    Run("flux-fp8-ahead", "flux", _FLUX, (("layerwise_casting", {"ahead": "true"}),), gib=6),
    Run("flux-offload-ahead", "flux", _FLUX, (("weight_offload", {"ahead": "true"}),), gib=6),
)  # fmt: skip


def run_named(name: str) -> Run:
    return next(each for each in RUNS if each.name == name)
