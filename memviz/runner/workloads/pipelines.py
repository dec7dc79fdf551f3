"""Pipelines of diffusers, whole: text encoders, a denoiser that runs once a step, and the decoder of the autoencoder.

The FLUX.1-dev pipeline with the encoder of its autoencoder, 34 million weights, weighs the 31.4 GiB that diffusers'
comparison of quantized pipelines measured: https://huggingface.co/blog/diffusers-quantization
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from memviz.runner.knobs import knob
from memviz.runner.workloads.image_models import Flux, Sdxl, images_knob, side_in_tiles, side_knob
from memviz.runner.workloads.video_models import VIDEO_SIDES, WAN_SIZES, LtxVideo, Wan
from memviz.runner.workloads.workload import FromConfiguration, RandomInputs, check_multiple, plural

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


class PipelineModules(nn.Module):
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
    """Return the size of a vocabulary in a model that is `narrow` times narrower."""
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
    """Return UMT5, the multilingual T5: a larger vocabulary, and its own relative position bias in every block."""
    from transformers import UMT5Config, UMT5EncoderModel

    model: nn.Module = UMT5EncoderModel(UMT5Config(**_t5_sizes(UMT5_WORDS, narrow, layers)))
    return model


def _t5_sizes(words: int, narrow: int, layers: int) -> dict[str, Any]:
    """Sizes of T5-XXL, the encoder of these pipelines."""
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
    """Encode each part of the prompts by itself, such as positive and negative ones."""
    return [encoder(input_ids=part).last_hidden_state for part in prompts.chunk(parts)]


def picture_decoder(*, channels: int, latent_channels: int, tile: int, product: bool) -> nn.Module:
    """`product`: whether latents go through a convolution of one pixel first."""
    from memviz.runner.workloads.autoencoders import ImageDecoder

    model: nn.Module = ImageDecoder(
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


_FLUX_LATENT_CHANNELS = 16
_FLUX_PIXELS_PER_TOKEN = 16
_FLUX_POOLED = 768
_FLUX_SCALE, _FLUX_SHIFT = 0.3611, 0.1159
"""Scale and shift of the latents that the autoencoder is given."""


@dataclass(frozen=True)
class FluxPipeline(PipelineModel):
    name: ClassVar[str] = "flux_pipeline"
    title: ClassVar[str] = "FLUX.1-dev pipeline"
    sentence: ClassVar[str] = (
        "Makes pictures from words: two text encoders, the transformer once a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}
    depths: ClassVar[tuple[str, ...]] = ("double_layers", "single_layers", "text_layers", "short_text_layers")

    batch: int = images_knob()
    height: int = side_knob(16)
    width: int = side_knob(16)
    text_tokens: int = knob(512, "tokens of the prompt, padding included", least=1)
    denoising: int = knob(2, "steps of the transformer; a real picture takes 28 or so, with the same peak", least=1)
    double_layers: int = knob(19, "blocks with text and picture apart; the published model has 19", least=1)
    single_layers: int = knob(38, "blocks with text and picture as one; the published model has 38", least=1)
    text_layers: int = knob(24, "blocks of the larger text encoder; the published model has 24", least=1)
    short_text_layers: int = knob(12, "blocks of the smaller text encoder; the published model has 12", least=1)
    narrow: int = knob(1, "divides heads, widths and vocabularies", choices=(1, 2, 4, 8))
    tile: int = tile_knob()

    def _denoiser(self) -> Flux:
        return self._alone(Flux, heads=24 // self.narrow, text_width=4096 // self.narrow)

    @property
    def tokens(self) -> int:
        """Tokens of the picture alone, without text."""
        return self._denoiser().tokens

    def _model(self) -> nn.Module:
        return FluxModules(
            steps=self.denoising,
            sides=(self.height // _FLUX_PIXELS_PER_TOKEN, self.width // _FLUX_PIXELS_PER_TOKEN),
            text_encoder=self._short_text_encoder(),
            text_encoder_2=self._text_encoder(),
            transformer=self._denoiser()._model(),
            vae=self._autoencoder(),
        )

    def _short_text_encoder(self) -> nn.Module:
        words = words_of(CLIP_WORDS, self.narrow)
        return clip_encoder(words=words, width=_FLUX_POOLED, layers=self.short_text_layers, heads=12)

    def _text_encoder(self) -> nn.Module:
        return t5_encoder(narrow=self.narrow, layers=self.text_layers)

    def _autoencoder(self) -> nn.Module:
        channels = max(32, 128 // self.narrow)
        return picture_decoder(channels=channels, latent_channels=_FLUX_LATENT_CHANNELS, tile=self.tile, product=False)

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw = RandomInputs(device, self.seed, micro_batch)
        inner = self._denoiser().inputs(device, micro_batch)
        return {
            "short_prompt": draw.whole(words_of(CLIP_WORDS, self.narrow), self.batch, PROMPT),
            "prompt": draw.whole(words_of(T5_WORDS, self.narrow), self.batch, self.text_tokens),
            **{name: inner[name] for name in ("hidden_states", "img_ids", "txt_ids", "guidance")},
        }

    def small(self) -> Self:
        smaller = self._at_most(
            batch=2,
            text_tokens=16,
            denoising=2,
            double_layers=2,
            single_layers=2,
            text_layers=2,
            short_text_layers=2,
        )
        return replace(smaller, **self._sides_in_tiles(64, of=16), narrow=8)

    def _shapes(self) -> str:
        pictures = self._denoiser()._pictures()
        return f"{pictures} ({self.tokens:,} + {self.text_tokens} tokens), {self._steps()}"


class FluxModules(PipelineModules):
    """Forward pass of FLUX, in the order of diffusers' pipeline."""

    text_encoder_2: nn.Module
    transformer: nn.Module

    def __init__(self, *, steps: int, sides: tuple[int, int], **parts: nn.Module) -> None:
        super().__init__(steps=steps, **parts)
        self.sides = sides

    def forward(self, short_prompt: Tensor, prompt: Tensor, hidden_states: Tensor, **places: Tensor) -> Tensor:
        pooled = self.text_encoder(input_ids=short_prompt).pooler_output
        text = self.text_encoder_2(input_ids=prompt).last_hidden_state
        latents = hidden_states
        for number in range(self.steps):
            time = torch.full((len(latents),), 1 - number / self.steps, dtype=latents.dtype, device=latents.device)
            velocity = self.transformer(
                hidden_states=latents,
                timestep=time,
                pooled_projections=pooled,
                encoder_hidden_states=text,
                return_dict=False,
                **places,
            )[0]
            latents = latents - velocity / self.steps
        picture: Tensor = self.vae(self._unpacked(latents) / _FLUX_SCALE + _FLUX_SHIFT)
        return picture

    def _unpacked(self, tokens: Tensor) -> Tensor:
        """A token is 2 x 2 latents."""
        squares = tokens.view(len(tokens), *self.sides, _FLUX_LATENT_CHANNELS, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return squares.reshape(len(tokens), _FLUX_LATENT_CHANNELS, 2 * self.sides[0], 2 * self.sides[1])


_SMALLER_ENCODER_WIDTH, _LARGER_ENCODER_WIDTH = 768, 1280
"""Channels of the text encoders."""
_SDXL_HEAD = 64
_SDXL_SCALE = 0.13025
"""Scale of the latents that the autoencoder is given."""
_SDXL_GUIDANCE = 5.0


@dataclass(frozen=True)
class SdxlPipeline(PipelineModel):
    name: ClassVar[str] = "sdxl_pipeline"
    title: ClassVar[str] = "SDXL pipeline"
    sentence: ClassVar[str] = (
        "Makes pictures from words: two text encoders, the UNet once a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = {"resolution": ("height", "width")}
    depths: ClassVar[tuple[str, ...]] = ("depth", "text_layers", "short_text_layers")

    batch: int = images_knob()
    height: int = side_knob(32)
    width: int = side_knob(32)
    guided: bool = knob(True, "whether each step looks at the prompt and at none, which doubles its batch")
    denoising: int = knob(2, "steps of the UNet; a real picture takes 50 or so, with the same peak", least=1)
    depth: int = knob(10, "transformer blocks at the smallest size; the published model has 10", least=2)
    text_layers: int = knob(32, "blocks of the larger text encoder; the published model has 32", least=2)
    short_text_layers: int = knob(12, "blocks of the smaller text encoder; the published model has 12", least=2)
    narrow: int = knob(1, "divides widths, heads and vocabularies", choices=(1, 4))
    tile: int = tile_knob()

    def _denoiser(self) -> Sdxl:
        text = (_SMALLER_ENCODER_WIDTH + _LARGER_ENCODER_WIDTH) // self.narrow
        channels, batch = 320 // self.narrow // 64 * 64, self.batch * (1 + self.guided)
        return self._alone(Sdxl, batch=batch, text_tokens=PROMPT, channels=channels, text_width=text)

    def _model(self) -> nn.Module:
        channels = 128 if self.narrow == 1 else 32
        return SdxlModules(
            steps=self.denoising,
            guided=self.guided,
            text_encoder=self._text_encoder(_SMALLER_ENCODER_WIDTH, self.short_text_layers),
            text_encoder_2=self._text_encoder(_LARGER_ENCODER_WIDTH, self.text_layers),
            unet=self._denoiser()._model(),
            vae=picture_decoder(channels=channels, latent_channels=4, tile=self.tile, product=True),
        )

    def _text_encoder(self, width: int, layers: int) -> nn.Module:
        words, heads = words_of(CLIP_WORDS, self.narrow), width // self.narrow // _SDXL_HEAD
        return clip_encoder(
            words=words,
            width=width // self.narrow,
            layers=layers,
            heads=heads,
            projected=width == _LARGER_ENCODER_WIDTH,
        )

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, words = RandomInputs(device, self.seed, micro_batch), words_of(CLIP_WORDS, self.narrow)
        inner = self._denoiser().inputs(device, micro_batch)
        return {
            "prompts": draw.whole(words, self.batch * (1 + self.guided), PROMPT),
            "latents": inner["sample"][: self.batch].clone(),
            "time_ids": inner["added_cond_kwargs"]["time_ids"],
        }

    def small(self) -> Self:
        smaller = self._at_most(batch=2, denoising=2, depth=2, text_layers=2, short_text_layers=2)
        return replace(smaller, **self._sides_in_tiles(64, of=32), narrow=4)

    def _shapes(self) -> str:
        alone = replace(self._denoiser(), batch=self.batch)
        return f"{alone._pictures()}, {self._steps()}"


class SdxlModules(PipelineModules):
    """Forward pass of SDXL, in the order of diffusers' pipeline."""

    text_encoder_2: nn.Module
    unet: nn.Module

    def __init__(self, *, steps: int, guided: bool, **parts: nn.Module) -> None:
        super().__init__(steps=steps, **parts)
        self.guided = guided

    def forward(self, prompts: Tensor, latents: Tensor, time_ids: Tensor) -> Tensor:
        """`prompts` are what to draw, after as many of what not to draw where each step looks at both."""
        smaller = self.text_encoder(input_ids=prompts, output_hidden_states=True)
        larger = self.text_encoder_2(input_ids=prompts, output_hidden_states=True)
        text = torch.cat([smaller.hidden_states[-2], larger.hidden_states[-2]], dim=-1)
        conditions = {"text_embeds": larger.text_embeds, "time_ids": time_ids}
        del smaller, larger
        for number in range(self.steps):
            noise = self.unet(
                torch.cat([latents] * 2) if self.guided else latents,
                torch.tensor(1000 - 1000 * number // self.steps - 1, device=latents.device),
                encoder_hidden_states=text,
                added_cond_kwargs=conditions,
                return_dict=False,
            )[0]
            if self.guided:
                without, prompted = noise.chunk(2)
                noise = without + _SDXL_GUIDANCE * (prompted - without)
            latents = latents - noise / self.steps
        picture: Tensor = self.vae(latents / _SDXL_SCALE)
        return picture


_LTX_TILE_OVERLAP = 64
"""Pixels that tiles share, as diffusers has them."""
_LTX_GUIDANCE = 3.0


@dataclass(frozen=True)
class LtxPipeline(PipelineModel):
    name: ClassVar[str] = "ltx_pipeline"
    title: ClassVar[str] = "LTX-Video pipeline"
    sentence: ClassVar[str] = (
        "Makes video from words: a text encoder, the transformer once a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = VIDEO_SIDES
    depths: ClassVar[tuple[str, ...]] = ("layers", "text_layers")

    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(161, "frames of the video: 1 more than a multiple of 8", least=1)
    height: int = knob(512, "of the video: a multiple of 32", unit="pixels", least=1)
    width: int = knob(704, "of the video: a multiple of 32", unit="pixels", least=1)
    text_tokens: int = knob(128, "tokens of the prompt, padding included", least=1)
    guided: bool = knob(True, "whether each step looks at the prompt and at none, which doubles its batch")
    denoising: int = knob(2, "steps of the transformer; a real video takes 50 or so, with the same peak", least=1)
    layers: int = knob(28, "transformer blocks; the published model has 28", least=1)
    text_layers: int = knob(24, "blocks of the text encoder; the published model has 24", least=1)
    narrow: int = knob(1, "divides heads, widths and vocabulary", choices=(1, 2, 4, 8))
    tile: int = tile_knob(512, least=2 * _LTX_TILE_OVERLAP)

    def _check(self) -> None:
        super()._check()
        check_multiple("tile", self.tile, _LTX_TILE_OVERLAP, why="tiles share 64 pixels a side, and a latent has 32")

    def _denoiser(self) -> LtxVideo:
        heads, text = 32 // self.narrow, 4096 // self.narrow
        return self._alone(LtxVideo, batch=self.batch * (1 + self.guided), heads=heads, text_width=text)

    def _model(self) -> nn.Module:
        return LtxModules(
            steps=self.denoising,
            guided=self.guided,
            latents=self._denoiser().latents,
            text_encoder=self._text_encoder(),
            transformer=self._denoiser()._model(),
            vae=self._autoencoder(),
        )

    def _text_encoder(self) -> nn.Module:
        return t5_encoder(narrow=self.narrow, layers=self.text_layers)

    def _autoencoder(self) -> nn.Module:
        from memviz.runner.workloads.autoencoders import LtxDecoder, in_tiles_of

        widths = tuple(width // self.narrow for width in (128, 256, 512, 512))
        decoder = LtxDecoder(block_out_channels=widths, decoder_block_out_channels=widths)
        return in_tiles_of(decoder, self.tile, _LTX_TILE_OVERLAP)

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, prompts = RandomInputs(device, self.seed, micro_batch), self.batch * (1 + self.guided)
        inner = self._denoiser().inputs(device, micro_batch)
        return {
            "prompts": draw.whole(words_of(T5_WORDS, self.narrow), prompts, self.text_tokens),
            "mask": inner["encoder_attention_mask"],
            # As the pipeline has them, whatever the transformer computes in.
            "latents": inner["hidden_states"][: self.batch].to(torch.float32, copy=True),
        }

    def small(self) -> Self:
        smaller = self._at_most(batch=2, frames=9, text_tokens=16, denoising=2, layers=2, text_layers=2)
        return replace(smaller, **self._sides_in_tiles(4 * _LTX_TILE_OVERLAP, of=32), narrow=8)

    def _shapes(self) -> str:
        alone = replace(self._denoiser(), batch=self.batch)
        return f"{alone._videos()} ({alone.tokens:,} + {self.text_tokens} tokens), {self._steps()}"


class LtxModules(PipelineModules):
    """Forward pass of LTX-Video, in the order of diffusers' pipeline."""

    transformer: nn.Module

    def __init__(self, *, steps: int, guided: bool, latents: tuple[int, int, int], **parts: nn.Module) -> None:
        super().__init__(steps=steps, **parts)
        self.guided, self.sides = guided, dict(zip(("num_frames", "height", "width"), latents, strict=True))

    def forward(self, prompts: Tensor, mask: Tensor, latents: Tensor) -> Tensor:
        """`prompts` are what not to show, then as many of what to show, where each step looks at both."""
        text = torch.cat(encoded(self.text_encoder, prompts, 1 + self.guided))
        for number in range(self.steps):
            given = torch.cat([latents] * 2) if self.guided else latents
            velocity = self.transformer(
                hidden_states=given.to(text.dtype),
                encoder_hidden_states=text,
                timestep=torch.full((len(given),), 1000 - 1000 * number / self.steps, device=given.device),
                encoder_attention_mask=mask,
                return_dict=False,
                **self.sides,
            )[0].float()
            if self.guided:
                without, prompted = velocity.chunk(2)
                velocity = without + _LTX_GUIDANCE * (prompted - without)
            latents = latents - velocity / self.steps
        squares = latents.view(len(latents), *self.sides.values(), -1).permute(0, 4, 1, 2, 3)
        video: Tensor = self.vae(squares.to(text.dtype))
        return video


_WAN_GUIDANCE = 5.0


@dataclass(frozen=True)
class WanPipeline(PipelineModel):
    name: ClassVar[str] = "wan_pipeline"
    title: ClassVar[str] = "Wan 2.1 pipeline"
    sentence: ClassVar[str] = (
        "Makes video from words: a text encoder, the transformer twice a step, and the autoencoder in the end."
    )
    together: ClassVar[dict[str, tuple[str, ...]]] = VIDEO_SIDES
    depths: ClassVar[tuple[str, ...]] = ("layers", "text_layers")

    size: str = knob("1.3b", "which published model", choices=tuple(WAN_SIZES))
    batch: int = knob(1, "videos at once", least=1)
    frames: int = knob(81, "frames of the video: 1 more than a multiple of 4", least=1)
    height: int = knob(480, "of the video: a multiple of 16", unit="pixels", least=1)
    width: int = knob(832, "of the video: a multiple of 16", unit="pixels", least=1)
    text_tokens: int = knob(512, "tokens of the prompt, padding included", least=1)
    guided: bool = knob(True, "whether each step looks at the prompt and then at none")
    denoising: int = knob(2, "steps of the transformer; a real video takes 50 or so, with the same peak", least=1)
    layers: int | None = knob(None, "transformer blocks; none means as published: 30 and 40", least=1)
    text_layers: int = knob(24, "blocks of the text encoder; the published model has 24", least=1)
    narrow: int = knob(1, "divides heads and widths, and those of the text encoder twice", choices=(1, 2, 4))
    tile: int = tile_knob(256)

    def _denoiser(self) -> Wan:
        return self._alone(Wan, text_width=4096 // self.narrow**2)

    def _model(self) -> nn.Module:
        return WanModules(
            steps=self.denoising,
            guided=self.guided,
            text_encoder=self._text_encoder(),
            transformer=self._denoiser()._model(),
            vae=self._autoencoder(),
        )

    def _text_encoder(self) -> nn.Module:
        return umt5_encoder(narrow=self.narrow**2, layers=self.text_layers)

    def _autoencoder(self) -> nn.Module:
        from memviz.runner.workloads.autoencoders import WanDecoder, in_tiles_of

        return in_tiles_of(WanDecoder(base_dim=96 // self.narrow), self.tile, self.tile // 4)

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        draw, prompts = RandomInputs(device, self.seed, micro_batch), self.batch * (1 + self.guided)
        inner = self._denoiser().inputs(device, micro_batch)
        return {
            "prompts": draw.whole(words_of(UMT5_WORDS, self.narrow**2), prompts, self.text_tokens),
            # As the pipeline has them, whatever the transformer computes in.
            "latents": inner["hidden_states"].to(torch.float32, copy=True),
        }

    def small(self) -> Self:
        smaller = self._at_most(batch=2, frames=5, text_tokens=16, denoising=2, text_layers=2)
        layers = min(self._denoiser().depth, 2)
        return replace(smaller, **self._sides_in_tiles(32, of=16), layers=layers, narrow=4)

    def _shapes(self) -> str:
        alone = self._denoiser()
        tokens = f"{alone.tokens:,} + {self.text_tokens} tokens"
        return f"{self.size}, {alone._videos()} ({tokens}), {self._steps()}"


class WanModules(PipelineModules):
    """Forward pass of Wan, in the order of diffusers' pipeline."""

    transformer: nn.Module

    def __init__(self, *, steps: int, guided: bool, **parts: nn.Module) -> None:
        super().__init__(steps=steps, **parts)
        self.guided = guided

    def forward(self, prompts: Tensor, latents: Tensor) -> Tensor:
        """`prompts` are what to show, then as many of what not to show, where each step looks at both."""
        texts = encoded(self.text_encoder, prompts, 1 + self.guided)
        for number in range(self.steps):
            given = latents.to(texts[0].dtype)
            time = torch.full((len(given),), 1000 - 1000 * number / self.steps, device=given.device)
            velocity = self.transformer(given, time, texts[0], return_dict=False)[0]
            if self.guided:
                without = self.transformer(given, time, texts[1], return_dict=False)[0]
                velocity = without + _WAN_GUIDANCE * (velocity - without)
            latents = latents - velocity / self.steps
        video: Tensor = self.vae(latents.to(texts[0].dtype))
        return video
