"""Parts that pipelines of diffusers share: text encoders and the half of an autoencoder that makes pictures."""

from __future__ import annotations

from torch import nn

PROMPT = 77
"""Tokens that CLIP reads."""
CLIP_WORDS, T5_WORDS = 49_408, 32_128


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


def t5_encoder(*, words: int, width: int, inner: int, layers: int, heads: int) -> nn.Module:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=words,
        d_model=width,
        d_ff=inner,
        num_layers=layers,
        num_heads=heads,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    model: nn.Module = T5EncoderModel(config)
    return model


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
