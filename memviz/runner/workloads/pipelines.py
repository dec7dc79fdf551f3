"""Pipelines of diffusers, whole: text encoders, a denoiser that runs once a step, and the decoder of the autoencoder.

The FLUX.1-dev pipeline with the encoder of its autoencoder, 34 million weights, weighs the 31.4 GiB that diffusers'
comparison of quantized pipelines measured: https://huggingface.co/blog/diffusers-quantization
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from memviz.runner.request import knob
from memviz.runner.workloads.diffusion_presets import (
    SDXL_HEAD,
    WAN_SIZES,
    DiffusionModel,
    Flux,
    LtxVideo,
    Sdxl,
    VideoModel,
    Wan,
    autoencoder_configuration,
    frames_knob,
    images_knob,
    published_knob,
    side_knob,
    sides_in_tiles,
    text_tokens_knob,
    videos_knob,
)
from memviz.runner.workloads.workload import FromConfiguration, RandomInputs, check_multiple, size_knob
from memviz.units import counted

PROMPT = 77
"""Tokens that CLIP reads."""
CLIP_WORDS, T5_WORDS, UMT5_WORDS = 49_408, 32_128, 256_384


class PipelineModel(FromConfiguration):
    """A pipeline whose knobs have the names of those of its denoiser alone."""

    library = "pipeline"
    holds = ("an autoencoder",)
    together: ClassVar[dict[str, tuple[str, ...]]] = DiffusionModel.together
    denoiser: ClassVar[type[DiffusionModel]]
    reduced_tile: ClassVar[int] = 64
    guided: bool = False
    batch: int
    denoising: int
    tile: int

    def _check(self) -> None:
        check_multiple("tile", self.tile, 32, why="tiles overlap by a quarter, also in latents")
        self.denoiser_alone()

    def inputs(self, device: torch.device, micro_batch: int = 0) -> dict[str, Any]:
        alone = self.denoiser_alone().inputs(device, micro_batch)
        return {**super().inputs(device, micro_batch), **self._first_latents(alone)}

    @abstractmethod
    def _first_latents(self, alone: dict[str, Any]) -> dict[str, Any]:
        """Inputs of the denoising, from those of the denoiser alone."""

    @property
    def tokens(self) -> int:
        """Tokens of the picture or video, without text."""
        return int(self.denoiser_alone().tokens)

    @property
    def prompts(self) -> int:
        """Prompts of a batch, the negative ones included."""
        return self.batch * (1 + self.guided)

    def denoiser_alone(self) -> Any:
        """The workload of the denoiser, with the knobs of the pipeline where their names are the same."""
        here = {field.name for field in fields(self)}
        names = [field.name for field in fields(self.denoiser) if field.init and field.name in here]
        return self.denoiser(**{**{name: getattr(self, name) for name in names}, **self._denoiser_knobs()})

    @abstractmethod
    def _denoiser_knobs(self) -> dict[str, Any]:
        """Knobs of the denoiser that are not those of the pipeline."""

    def small(self) -> Self:
        sides: dict[str, Any] = sides_in_tiles(self, self.reduced_tile, self.denoiser.side)
        return replace(super().small(), **sides)

    def loss(self, output: Any) -> Tensor:
        mean: Tensor = output.square().mean()
        return mean

    def _shapes(self) -> str:
        alone = replace(self.denoiser_alone(), batch=self.batch)
        tokens = f" ({alone.tokens:,} + {self.text_tokens} tokens)" if hasattr(self, "text_tokens") else ""
        size = f"{self.size}, " if hasattr(self, "size") else ""
        return f"{size}{alone.contents_text()}{tokens}, {counted(self.denoising, 'step')}"


class PipelineModules(nn.Module):
    """A pipeline as a module: its parts under the names that they have in diffusers."""

    text_encoder: nn.Module
    text_encoder_2: nn.Module
    transformer: nn.Module
    unet: nn.Module
    vae: nn.Module

    def __init__(self, pipeline: Any, *, sides: tuple[int, ...] = (), **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.steps, self.guided, self.sides = pipeline.denoising, pipeline.guided, sides


def denoising_knob(what: str, real: int) -> Any:
    return knob(2, f"denoising steps; a real {what} takes about {real}, with the same peak", least=1)


def tile_knob(default: int = 1024, *, least: int = 32) -> Any:
    return knob(default, "tile size for VAE tiling", unit="pixels", least=least)


def text_layers_knob(default: int, encoder: str = "text encoder", *, least: int = 1) -> Any:
    return published_knob(default, f"blocks of the {encoder}", least=least)


def vocabulary_of(published: int, narrow: int) -> int:
    """Return the size of a vocabulary in a model that is `narrow` times narrower."""
    return published if narrow == 1 else published // 8 // narrow


def clip_encoder(*, vocabulary: int, width: int, layers: int, heads: int, projected: bool = False) -> Any:
    """With `projected` it has a matrix more, which SDXL's larger one ends with."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=vocabulary,
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
    return (CLIPTextModelWithProjection if projected else CLIPTextModel)(config)


def t5_encoder(kind: str, vocabulary: int, *, narrow: int, layers: int) -> Any:
    """T5-XXL, or its multilingual UMT5 with its own relative position bias in every block."""
    import transformers

    encoder: Any = getattr(transformers, f"{kind}EncoderModel")
    sizes = {
        "vocab_size": vocabulary_of(vocabulary, narrow),
        "d_model": 4096 // narrow,
        "d_ff": 10_240 // narrow,
        "num_layers": layers,
        "num_heads": 64 // narrow,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    }
    return encoder(encoder.config_class(**sizes))


def encoded(encoder: nn.Module, prompts: Tensor, parts: int) -> list[Tensor]:
    """Encode each part of the prompts by itself, such as positive and negative ones."""
    return [encoder(input_ids=part).last_hidden_state for part in prompts.chunk(parts)]


def picture_decoder(*, channels: int, latent_channels: int, tile: int, product: bool) -> Any:
    """`product`: whether latents go through a convolution of one pixel first."""
    from memviz.runner.workloads.autoencoders import ImageDecoder

    sizes = autoencoder_configuration(channels=channels, latent_channels=latent_channels, tile=tile)
    return ImageDecoder(**sizes, use_quant_conv=product, use_post_quant_conv=product)


_FLUX_LATENT_CHANNELS, _FLUX_POOLED = 16, 768
_FLUX_SCALE, _FLUX_SHIFT = 0.3611, 0.1159
"""Scale and shift of the latents that the autoencoder is given."""


@dataclass(frozen=True)
class FluxPipeline(PipelineModel):
    name = "flux_pipeline"
    title = "FLUX.1-dev pipeline"
    sentence = "Text to image: two text encoders, the transformer once per step, then the autoencoder."
    denoiser = Flux
    depths = ("double_layers", "single_layers", "text_layers", "short_text_layers")
    most = {"batch": 2, "text_tokens": 16, "denoising": 2} | dict.fromkeys(depths, 2)
    reduced = {"narrow": 8}

    batch: int = images_knob()
    height: int = side_knob(1024, 16, what="image")
    width: int = side_knob(1024, 16, what="image")
    text_tokens: int = text_tokens_knob(512)
    denoising: int = denoising_knob("image", 28)
    double_layers: int = published_knob(19, "double-stream blocks (text and image separate)")
    single_layers: int = published_knob(38, "single-stream blocks (text and image joined)")
    text_layers: int = text_layers_knob(24, "larger text encoder")
    short_text_layers: int = text_layers_knob(12, "smaller text encoder")
    narrow: int = knob(1, "divisor of heads, widths and vocabularies", choices=(1, 2, 4, 8))
    tile: int = tile_knob()

    def _denoiser_knobs(self) -> dict[str, Any]:
        return {"heads": 24 // self.narrow, "text_width": 4096 // self.narrow}

    def _model(self) -> nn.Module:
        vocabulary, channels = vocabulary_of(CLIP_WORDS, self.narrow), max(32, 128 // self.narrow)
        decoder = {"channels": channels, "latent_channels": _FLUX_LATENT_CHANNELS, "tile": self.tile}
        return FluxModules(
            self,
            sides=(self.height // Flux.side, self.width // Flux.side),
            text_encoder=clip_encoder(
                vocabulary=vocabulary, width=_FLUX_POOLED, layers=self.short_text_layers, heads=12
            ),
            text_encoder_2=t5_encoder("T5", T5_WORDS, narrow=self.narrow, layers=self.text_layers),
            transformer=self.denoiser_alone()._model(),
            vae=picture_decoder(**decoder, product=False),
        )

    def _first_latents(self, alone: dict[str, Any]) -> dict[str, Any]:
        return {name: alone[name] for name in ("hidden_states", "img_ids", "txt_ids", "guidance")}

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        return {
            "short_prompt": draw.integers(vocabulary_of(CLIP_WORDS, self.narrow), self.batch, PROMPT),
            "prompt": draw.integers(vocabulary_of(T5_WORDS, self.narrow), self.batch, self.text_tokens),
        }


class FluxModules(PipelineModules):
    """Forward pass of FLUX, in the order of diffusers' pipeline."""

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
_SDXL_SCALE = 0.13025
"""Scale of the latents that the autoencoder is given."""


@dataclass(frozen=True)
class SdxlPipeline(PipelineModel):
    name = "sdxl_pipeline"
    title = "SDXL pipeline"
    sentence = "Text to image: two text encoders, the UNet once per step, then the autoencoder."
    denoiser = Sdxl
    depths = ("depth", "text_layers", "short_text_layers")
    most = {"batch": 2, "denoising": 2} | dict.fromkeys(depths, 2)
    reduced = {"narrow": 4}

    batch: int = images_knob()
    height: int = side_knob(1024, 32, what="image")
    width: int = side_knob(1024, 32, what="image")
    guided: bool = knob(True, "classifier-free guidance, which doubles the batch of each step")
    denoising: int = denoising_knob("image", 50)
    depth: int = published_knob(10, "transformer blocks at the smallest size", least=2)
    text_layers: int = text_layers_knob(32, "larger text encoder", least=2)
    short_text_layers: int = text_layers_knob(12, "smaller text encoder", least=2)
    narrow: int = knob(1, "divisor of widths, heads and vocabularies", choices=(1, 4))
    tile: int = tile_knob()

    def _denoiser_knobs(self) -> dict[str, Any]:
        text = (_SMALLER_ENCODER_WIDTH + _LARGER_ENCODER_WIDTH) // self.narrow
        channels = 320 // self.narrow // 64 * 64
        return {"batch": self.prompts, "text_tokens": PROMPT, "channels": channels, "text_width": text}

    def _model(self) -> nn.Module:
        decoder = {"channels": 128 if self.narrow == 1 else 32, "latent_channels": 4, "tile": self.tile}
        return SdxlModules(
            self,
            text_encoder=self._text_encoder(_SMALLER_ENCODER_WIDTH, self.short_text_layers, projected=False),
            text_encoder_2=self._text_encoder(_LARGER_ENCODER_WIDTH, self.text_layers, projected=True),
            unet=self.denoiser_alone()._model(),
            vae=picture_decoder(**decoder, product=True),
        )

    def _text_encoder(self, width: int, layers: int, *, projected: bool) -> Any:
        vocabulary, width = vocabulary_of(CLIP_WORDS, self.narrow), width // self.narrow
        return clip_encoder(
            vocabulary=vocabulary, width=width, layers=layers, heads=width // SDXL_HEAD, projected=projected
        )

    def _first_latents(self, alone: dict[str, Any]) -> dict[str, Any]:
        latents, time_ids = alone["sample"][: self.batch].clone(), alone["added_cond_kwargs"]["time_ids"]
        return {"latents": latents, "time_ids": time_ids}

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        return {"prompts": draw.integers(vocabulary_of(CLIP_WORDS, self.narrow), self.prompts, PROMPT)}


class SdxlModules(PipelineModules):
    """Forward pass of SDXL, in the order of diffusers' pipeline."""

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
                noise = without + 5.0 * (prompted - without)
            latents = latents - noise / self.steps
        picture: Tensor = self.vae(latents / _SDXL_SCALE)
        return picture


_LTX_TILE_OVERLAP = 64
"""Pixels that tiles share, as diffusers has them."""


@dataclass(frozen=True)
class LtxPipeline(PipelineModel):
    name = "ltx_pipeline"
    title = "LTX-Video pipeline"
    sentence = "Text to video: a text encoder, the transformer once per step, then the autoencoder."
    together = VideoModel.together
    denoiser = LtxVideo
    depths = ("layers", "text_layers")
    reduced_tile = 4 * _LTX_TILE_OVERLAP
    most = {"batch": 2, "frames": 9, "text_tokens": 16, "denoising": 2, "layers": 2, "text_layers": 2}
    reduced = {"narrow": 8}

    batch: int = videos_knob()
    frames: int = frames_knob(161, 8)
    height: int = side_knob(512, 32)
    width: int = side_knob(704, 32)
    text_tokens: int = text_tokens_knob(128)
    guided: bool = knob(True, "classifier-free guidance, which doubles the batch of each step")
    denoising: int = denoising_knob("video", 50)
    layers: int = published_knob(28, "transformer blocks")
    text_layers: int = text_layers_knob(24)
    narrow: int = knob(1, "divisor of heads, widths and vocabulary", choices=(1, 2, 4, 8))
    tile: int = tile_knob(512, least=2 * _LTX_TILE_OVERLAP)

    def _check(self) -> None:
        super()._check()
        check_multiple("tile", self.tile, _LTX_TILE_OVERLAP, why="tiles overlap by 64 pixels, and a latent has 32")

    def _denoiser_knobs(self) -> dict[str, Any]:
        return {"batch": self.prompts, "heads": 32 // self.narrow, "text_width": 4096 // self.narrow}

    def _model(self) -> nn.Module:
        from memviz.runner.workloads.autoencoders import LtxDecoder, in_tiles_of

        alone, widths = self.denoiser_alone(), tuple(width // self.narrow for width in (128, 256, 512, 512))
        decoder = LtxDecoder(block_out_channels=widths, decoder_block_out_channels=widths)
        return LtxModules(
            self,
            sides=alone.latents,
            text_encoder=t5_encoder("T5", T5_WORDS, narrow=self.narrow, layers=self.text_layers),
            transformer=alone._model(),
            vae=in_tiles_of(decoder, self.tile, _LTX_TILE_OVERLAP),
        )

    def _first_latents(self, alone: dict[str, Any]) -> dict[str, Any]:
        # The pipeline keeps latents in fp32 for any dtype of the transformer.
        latents = alone["hidden_states"][: self.batch].to(torch.float32, copy=True)
        return {"mask": alone["encoder_attention_mask"], "latents": latents}

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        return {"prompts": draw.integers(vocabulary_of(T5_WORDS, self.narrow), self.prompts, self.text_tokens)}


class LtxModules(PipelineModules):
    """Forward pass of LTX-Video, in the order of diffusers' pipeline."""

    def forward(self, prompts: Tensor, mask: Tensor, latents: Tensor) -> Tensor:
        """`prompts` are what not to show, then as many of what to show, where each step looks at both."""
        sides = dict(zip(("num_frames", "height", "width"), self.sides, strict=True))
        text = torch.cat(encoded(self.text_encoder, prompts, 1 + self.guided))
        for number in range(self.steps):
            model_input = torch.cat([latents] * 2) if self.guided else latents
            velocity = self.transformer(
                hidden_states=model_input.to(text.dtype),
                encoder_hidden_states=text,
                timestep=torch.full((len(model_input),), 1000 - 1000 * number / self.steps, device=model_input.device),
                encoder_attention_mask=mask,
                return_dict=False,
                **sides,
            )[0].float()
            if self.guided:
                without, prompted = velocity.chunk(2)
                velocity = without + 3.0 * (prompted - without)
            latents = latents - velocity / self.steps
        squares = latents.view(len(latents), *self.sides, -1).permute(0, 4, 1, 2, 3)
        video: Tensor = self.vae(squares.to(text.dtype))
        return video


@dataclass(frozen=True)
class WanPipeline(PipelineModel):
    name = "wan_pipeline"
    title = "Wan 2.1 pipeline"
    sentence = "Text to video: a text encoder, the transformer twice per step, then the autoencoder."
    together = VideoModel.together
    denoiser = Wan
    sizes = WAN_SIZES
    depths = ("layers", "text_layers")
    reduced_tile = 32
    most = {"batch": 2, "frames": 5, "text_tokens": 16, "denoising": 2, "layers": 2, "text_layers": 2}
    reduced = {"narrow": 4}

    size: str = size_knob(sizes)
    batch: int = videos_knob()
    frames: int = frames_knob(81, 4)
    height: int = side_knob(480, 16)
    width: int = side_knob(832, 16)
    text_tokens: int = text_tokens_knob(512)
    guided: bool = knob(True, "classifier-free guidance, as a second pass per step")
    denoising: int = denoising_knob("video", 50)
    layers: int | None = knob(None, "transformer blocks (default: 30 and 40, as published)", least=1)
    text_layers: int = text_layers_knob(24)
    narrow: int = knob(1, "divisor of heads and widths, twice for the text encoder", choices=(1, 2, 4))
    tile: int = tile_knob(256)

    def _denoiser_knobs(self) -> dict[str, Any]:
        return {"text_width": 4096 // self.narrow**2}

    def _model(self) -> nn.Module:
        from memviz.runner.workloads.autoencoders import WanDecoder, in_tiles_of

        return WanModules(
            self,
            text_encoder=t5_encoder("UMT5", UMT5_WORDS, narrow=self.narrow**2, layers=self.text_layers),
            transformer=self.denoiser_alone()._model(),
            vae=in_tiles_of(WanDecoder(base_dim=96 // self.narrow), self.tile, self.tile // 4),
        )

    def _first_latents(self, alone: dict[str, Any]) -> dict[str, Any]:
        # The pipeline keeps latents in fp32 for any dtype of the transformer.
        return {"latents": alone["hidden_states"].to(torch.float32, copy=True)}

    def _inputs(self, draw: RandomInputs) -> dict[str, Any]:
        return {"prompts": draw.integers(vocabulary_of(UMT5_WORDS, self.narrow**2), self.prompts, self.text_tokens)}


class WanModules(PipelineModules):
    """Forward pass of Wan, in the order of diffusers' pipeline."""

    def forward(self, prompts: Tensor, latents: Tensor) -> Tensor:
        """`prompts` are what to show, then as many of what not to show, where each step looks at both."""
        texts = encoded(self.text_encoder, prompts, 1 + self.guided)
        for number in range(self.steps):
            model_input = latents.to(texts[0].dtype)
            time = torch.full((len(model_input),), 1000 - 1000 * number / self.steps, device=model_input.device)
            velocity = self.transformer(model_input, time, texts[0], return_dict=False)[0]
            if self.guided:
                without = self.transformer(model_input, time, texts[1], return_dict=False)[0]
                velocity = without + 5.0 * (velocity - without)
            latents = latents - velocity / self.steps
        video: Tensor = self.vae(latents.to(texts[0].dtype))
        return video
