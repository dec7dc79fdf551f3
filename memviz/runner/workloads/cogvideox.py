"""CogVideoX's transformer through diffusers' own class, in both published sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.random_inputs import RandomInputs
from memviz.runner.workloads.video_model import VideoModel
from memviz.runner.workloads.workload import DTYPES, Published, check_multiple, plural

_CHANNELS = 16
_SMALL_HEADS = 16


@dataclass(frozen=True)
class _PublishedCogVideoX:
    heads: int
    layers: int
    rotary: bool
    """Positions turn queries and keys (5b), or are added once at the start (2b)."""


_SIZES = {"2b": _PublishedCogVideoX(30, 30, rotary=False), "5b": _PublishedCogVideoX(48, 42, rotary=True)}


@dataclass(frozen=True)
class CogVideoX(VideoModel):
    name: ClassVar[str] = "cogvideox"
    title: ClassVar[str] = "CogVideoX transformer"
    sentence: ClassVar[str] = "Makes video: text and video in one long sequence, all of it attending to all of it."
    published: ClassVar[tuple[Published, ...]] = (
        Published({"size": "2b"}, 1_693_783_872, "2B", "https://huggingface.co/zai-org/CogVideoX-2b"),
        Published({"size": "5b"}, 5_570_283_072, "5B", "https://huggingface.co/zai-org/CogVideoX-5b"),
    )

    size: str = knob("2b", "which published model", choices=tuple(_SIZES))
    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(49, "frames of the video: 1 more than a multiple of 4", least=1)
    height: int = knob(480, "of the video: a multiple of 16", unit="pixels", least=1)
    width: int = knob(720, "of the video: a multiple of 16", unit="pixels", least=1)
    text_tokens: int = knob(226, "tokens of the prompt, padding included", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published: 30 and 42", least=1)
    heads: int | None = knob(None, "attention heads; none means as published: 30 and 48", least=1)
    head_width: int = knob(64, "channels of an attention head: a multiple of 16", least=16)
    text_width: int = knob(4096, "channels of the text encoder's output", least=1)

    def _check(self) -> None:
        super()._check()
        check_multiple("head_width", self.head_width, 16, why="frame, row and column each turn an even part of it")

    @property
    def _published(self) -> _PublishedCogVideoX:
        return _SIZES[self.size]

    def _model(self) -> nn.Module:
        from diffusers import CogVideoXTransformer3DModel

        _, height, width = self.latents
        model: nn.Module = CogVideoXTransformer3DModel(
            num_attention_heads=self.heads or self._published.heads,
            attention_head_dim=self.head_width,
            num_layers=self.layers or self._published.layers,
            text_embed_dim=self.text_width,
            max_text_seq_length=self.text_tokens,
            sample_height=height,
            sample_width=width,
            sample_frames=self.frames,
            use_rotary_positional_embeddings=self._published.rotary,
        )
        # The table of positions is computed in float64; `from_pretrained` converts it with the weights.
        for module in model.modules():
            for name, table in module.named_buffers(recurse=False):
                setattr(module, name, table.to(DTYPES[self.dtype]))
        return model

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, dtype = RandomInputs(device, self.seed, micro_batch), DTYPES[self.dtype]
        frames, height, width = self.latents
        arguments: dict[str, Any] = {
            "hidden_states": draw.normal(self.batch, frames, _CHANNELS, height, width, dtype=dtype),
            "encoder_hidden_states": draw.normal(self.batch, self.text_tokens, self.text_width, dtype=dtype),
            "timestep": draw.whole(1000, self.batch),
        }
        if self._published.rotary:
            shape = self.tokens, self.head_width
            cosines = draw.made(shape, torch.float32, lambda: self._turns()[0])
            sines = draw.made(shape, torch.float32, lambda: self._turns()[1])
            arguments["image_rotary_emb"] = cosines, sines
        return arguments

    def _turns(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every token's place in the video, which the pipeline hands to the model."""
        from diffusers.models.embeddings import get_3d_rotary_pos_embed

        frames, height, width = self.latents
        grid = height // self.patch, width // self.patch
        turns: tuple[Tensor, Tensor] = get_3d_rotary_pos_embed(self.head_width, ((0, 0), grid), grid, frames)
        return turns

    def small(self) -> Self:
        """Heads are halved, so that whatever divided the inner size still does."""
        heads = self.heads or self._published.heads
        while heads > _SMALL_HEADS and heads % 2 == 0:
            heads //= 2
        smaller = self._at_most(batch=2, frames=9, height=64, width=96, text_tokens=16, text_width=128)
        return replace(smaller, layers=min(self.layers or self._published.layers, 4), heads=heads, head_width=16)

    def _shapes(self) -> str:
        layers = plural(self.layers or self._published.layers, "layer")
        tokens = f"{self.tokens:,} + {self.text_tokens} tokens"
        return f"{self.size}, {layers}, {self._videos()} ({tokens})"
