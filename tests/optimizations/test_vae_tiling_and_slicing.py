"""VAE tiling and slicing: the decoded image, and the tensors live during decoding."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from memviz.runner.request import Run
from optimizations.vae_slicing import VaeSlicing
from optimizations.vae_tiling import VaeTiling
from tests.optimizations.memory import predicted
from tests.optimizations.tiny import autoencoder

both = pytest.mark.parametrize("kind", [VaeSlicing, VaeTiling], ids=lambda kind: kind.name)


def decoded(model: Any, latents: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        picture: torch.Tensor = model.decode(latents).sample
    return picture


def decoder_calls(model: Any) -> list[torch.Size]:
    """Record the shapes of the decoder's inputs."""
    shapes: list[torch.Size] = []
    model.decoder.register_forward_pre_hook(lambda _module, inputs: shapes.append(inputs[0].shape))
    return shapes


def test_slices_decode_each_picture_alone_and_the_same_up_to_rounding() -> None:
    model, latents = autoencoder().model, torch.randn(3, 4, 32, 32)
    whole, shapes = decoded(model, latents), decoder_calls(model)
    undo = VaeSlicing().apply(model)
    torch.testing.assert_close(decoded(model, latents), whole)
    assert shapes == [(1, 4, 32, 32)] * 3
    undo()
    assert torch.equal(decoded(model, latents), whole)
    assert shapes[3:] == [(3, 4, 32, 32)]


def test_tiles_are_those_of_the_model_and_change_the_picture_beyond_the_first() -> None:
    model, latents = autoencoder().model, torch.randn(1, 4, 32, 32)
    whole, shapes = decoded(model, latents), decoder_calls(model)
    undo = VaeTiling().apply(model)
    tiled = decoded(model, latents)
    assert tiled.shape == whole.shape
    assert not torch.allclose(tiled, whole, atol=1e-3)
    assert len(shapes) == 9
    assert shapes[0] == (1, 4, 16, 16)
    small = latents[..., :16, :16]
    assert torch.equal(decoded(model, small), decoded(autoencoder().model, small))
    undo()
    assert torch.equal(decoded(model, latents), whole)


@both
def test_a_model_that_did_so_before_still_does_when_it_is_undone(kind: Any) -> None:
    model: Any = autoencoder().model
    model.enable_slicing()
    model.enable_tiling()
    kind().apply(model)()
    assert (model.use_slicing, model.use_tiling) == (True, True)


@both
def test_an_autoencoder_inside_a_model_is_found_and_copies_take_it_along(kind: Any) -> None:
    whole = nn.ModuleDict({"vae": autoencoder().model, "other": nn.Linear(2, 2)})
    undo = kind().apply(whole)
    word = "use_slicing" if kind is VaeSlicing else "use_tiling"
    assert getattr(copy.deepcopy(whole)["vae"], word)
    undo()
    assert not getattr(whole["vae"], word)


def run(batch: int, size: int, *names: str) -> Run:
    settings = {"batch": str(batch), "resolution": f"{size}x{size}", "channels": "32", "tile": "128"}
    return predicted("vae", settings, *((name, {}) for name in names)).run


@pytest.mark.slow
def test_activations_of_a_run_are_one_picture_s_or_one_tile_s() -> None:
    """Besides, latents and pictures exist at the peak, and finished tiles, which overlap by a quarter."""
    one, three, six, sliced = run(1, 256), run(3, 256), run(6, 256), run(3, 256, "vae_slicing")
    picture = 3 * 256 * 256 * 2
    # Not three to one: cuDNN copies the images of a batch of one, whose strides do not count as channels last.
    assert six.peak_allocated_bytes - six.weights_bytes > 1.8 * (three.peak_allocated_bytes - three.weights_bytes)
    assert sliced.peak_allocated_bytes < 0.6 * three.peak_allocated_bytes
    assert 0 < sliced.peak_allocated_bytes - one.peak_allocated_bytes <= 3 * picture
    tile, tiled = run(1, 128), run(1, 256, "vae_tiling")
    assert 0 < tiled.peak_allocated_bytes - tile.peak_allocated_bytes <= 2 * 9 * picture / 4
    assert tiled.peak_allocated_bytes < 0.6 * one.peak_allocated_bytes
    assert tiled.flops > 1.5 * one.flops
