"""What pipelines of diffusers share: text encoders, a denoiser that runs once a step, and an autoencoder in the end."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.picture_model import side_in_tiles
from memviz.runner.workloads.workload import FromConfiguration, check_multiple, plural

Denoiser = TypeVar("Denoiser", bound=FromConfiguration)

PROMPT = 77
"""Tokens that CLIP reads."""
CLIP_WORDS, T5_WORDS, UMT5_WORDS = 49_408, 32_128, 256_384


class PipelineModel(FromConfiguration):
    """Subclasses give the workload of their denoiser alone, which has most of the same knobs."""

    holds: ClassVar[tuple[str, ...] | None] = ("an autoencoder",)

    denoising: int
    tile: int

    def _check(self) -> None:
        check_multiple("tile", self.tile, 32, why="tiles overlap by a quarter, in latents too")
        self._denoiser()

    def _sides_in_tiles(self, reduced_tile: int, of: int) -> dict[str, Any]:
        """Knobs of a reduced model whose picture is to its tiles as the picture is."""
        sides = {
            name: side_in_tiles(getattr(self, name), self.tile, reduced_tile=reduced_tile, of=of)
            for name in ("height", "width")
        }
        return {**sides, "tile": reduced_tile}

    @abstractmethod
    def _denoiser(self) -> FromConfiguration: ...

    def _alone(self, kind: type[Denoiser], **other: Any) -> Denoiser:
        """A workload of the denoiser alone, whose knobs are those of the pipeline by name, but for `other`."""
        here = {one.name for one in fields(self)}
        same = {one.name: getattr(self, one.name) for one in fields(kind) if one.init and one.name in here}
        return kind(**{**same, **other})

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output.square().mean()
        return mean

    def _steps(self) -> str:
        return plural(self.denoising, "step")


class Parts(nn.Module):
    """A pipeline as a module: its parts under the names that they have in diffusers."""

    text_encoder: nn.Module
    vae: nn.Module

    def __init__(self, *, steps: int, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.steps = steps


def tile_knob(default: int = 1024, *, least: int = 32) -> Any:
    return knob(default, "a side of a tile, if the autoencoder works in tiles", unit="pixels", least=least)


def words_of(published: int, narrow: int) -> int:
    """Of a vocabulary, where a model is made `narrow` times narrower."""
    return published if narrow == 1 else published // 8 // narrow


def clip_encoder(*, words: int, width: int, layers: int, heads: int, projected: bool = False) -> nn.Module:
    """With `projected` it has a matrix more, which SDXL's larger one ends with."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=PROMPT,
        projection_dim=width,
        hidden_act="gelu" if projected else "quick_gelu",
        bos_token_id=0,
        eos_token_id=2,
    )
    model: nn.Module = (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)
    return model


def t5_encoder(*, narrow: int, layers: int) -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    model: nn.Module = T5EncoderModel(T5Config(**_t5_sizes(T5_WORDS, narrow, layers)))
    return model


def umt5_encoder(*, narrow: int, layers: int) -> nn.Module:
    """Of many languages: more words, and distances between them that count differently in every block."""
    from transformers import UMT5Config, UMT5EncoderModel

    model: nn.Module = UMT5EncoderModel(UMT5Config(**_t5_sizes(UMT5_WORDS, narrow, layers)))
    return model


def _t5_sizes(words: int, narrow: int, layers: int) -> dict[str, Any]:
    """Of the largest one, which pipelines have."""
    return {
        "vocab_size": words_of(words, narrow),
        "d_model": 4096 // narrow,
        "d_ff": 10_240 // narrow,
        "num_layers": layers,
        "num_heads": 64 // narrow,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    }


def encoded(encoder: nn.Module, prompts: Tensor, parts: int) -> list[Tensor]:
    """Of what to show and what not to show, one after the other."""
    return [encoder(input_ids=part).last_hidden_state for part in prompts.chunk(parts)]


def picture_decoder(*, channels: int, latent_channels: int, tile: int, product: bool) -> nn.Module:
    """`product`: whether latents go through a convolution of one pixel first."""
    from memviz.runner.workloads.vae_decoder import Decoder

    model: nn.Module = Decoder(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=tuple(channels * factor for factor in (1, 2, 4, 4)),
        layers_per_block=2,
        latent_channels=latent_channels,
        sample_size=tile,
        use_quant_conv=product,
        use_post_quant_conv=product,
    )
    return model
