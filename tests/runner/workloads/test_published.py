"""Our models are the published ones: their parameters are counted on meta, where nothing is held."""

from __future__ import annotations

import pytest
import torch

from memviz.runner.workloads import WORKLOADS, workload_named

PUBLISHED = [
    ("feed_forward", {}, 5 * (4096 * 16384 * 2 + 16384 + 4096)),
    ("feed_forward", {"activation": "geglu"}, 5 * (4096 * 16384 * 3 + 2 * 16384 + 4096)),
    ("ltx_video", {}, 1_923_385_472),
    ("flux", {}, 11_901_408_320),
    ("cogvideox", {"size": "2b"}, 1_693_783_872),
    ("cogvideox", {"size": "5b"}, 5_570_283_072),
    ("gpt2", {}, 124_439_808),
    ("gpt2", {"size": "355m"}, 354_823_168),
    ("gpt2", {"size": "774m"}, 774_030_080),
    ("gpt2", {"size": "1558m"}, 1_557_611_200),
    ("llama", {"size": "1b"}, 1_235_814_400),
    ("llama", {"size": "3b"}, 3_212_749_824),
    ("llama", {"size": "8b"}, 8_030_261_248),
    ("qwen3", {"size": "0.6b"}, 596_049_920),
    ("qwen3", {"size": "1.7b"}, 1_720_574_976),
    ("qwen3", {"size": "4b"}, 4_022_468_096),
    ("qwen3", {"size": "8b"}, 8_190_735_360),
    ("mixtral", {}, 46_702_792_704),
    ("bert", {"size": "base"}, 109_514_298),
    ("bert", {"size": "large"}, 335_174_458),
    ("vit", {"size": "base"}, 86_567_656),
    ("vit", {"size": "large"}, 304_326_632),
    ("wan", {"size": "1.3b"}, 1_418_996_800),
    ("wan", {"size": "14b"}, 14_288_491_584),
    ("hunyuan_video", {}, 12_821_012_544),
    ("sdxl", {}, 2_567_463_684),
    ("vae", {"part": "whole"}, 83_653_863),
    ("vae", {}, 49_490_199),
    ("transformer_block", {}, 739_270_656),
]


@pytest.mark.parametrize(("name", "settings", "parameters"), PUBLISHED)
def test_parameters(name, settings, parameters):
    workload = workload_named(name, settings)
    with torch.device("meta"):
        model = workload.build()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    formats = {"bf16": torch.bfloat16, "fp32": torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {formats[workload.dtype]}
    assert {each.device.type for each in (*model.parameters(), *model.buffers())} == {"meta"}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("kind", WORKLOADS, ids=lambda each: each.name)
def test_the_whole_model_runs_without_numbers(kind):
    """On meta the shapes of a whole forward pass are computed, and nothing else."""
    workload = kind()
    with torch.device("meta"):
        model = workload.build()
    with torch.set_grad_enabled(workload.training):
        output = model(**workload.inputs(torch.device("meta")))
        tensor = workload.loss(output)
    assert tensor.device.type == "meta"
    assert tensor.shape == () if workload.training else True


@pytest.mark.parametrize(("name", "size"), [("gpt2", "124m"), ("llama", "1b")])
def test_tied_embeddings_are_one_matrix(name, size):
    with torch.device("meta"):
        model = workload_named(name, {"size": size}).build()
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_positions_of_cogvideox_are_converted_and_those_of_llama_kept():
    with torch.device("meta"):
        video, text = workload_named("cogvideox").build(), workload_named("llama").build()
    assert {buffer.dtype for buffer in video.buffers()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in text.buffers()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "settings", "tokens"),
    [
        ("ltx_video", {}, 11 * 16 * 24),
        ("ltx_video", {"video": "161x704x1216"}, 21 * 22 * 38),
        ("flux", {}, 64 * 64),
        ("flux", {"resolution": "768x1360"}, 48 * 85),
        ("cogvideox", {}, 13 * 30 * 45),
    ],
)
def test_pictures_and_videos_become_tokens(name, settings, tokens):
    assert workload_named(name, settings).tokens == tokens


@pytest.mark.parametrize(
    ("name", "settings", "described"),
    [
        (
            "ltx_video",
            {},
            "LTX-Video transformer, 1.92 B parameters, 28 layers, 1 video of 81 x 512 x 768 (4,224 tokens), bf16, "
            "training step",
        ),
        (
            "transformer_block",
            {},
            "Tensor-parallel transformer block, 739.27 M parameters, 1 layer, 1 of 4 parts, 1 x 1024 tokens, bf16, "
            "training step of 4 micro-batches",
        ),
    ],
)
def test_a_run_in_a_line(name, settings, described):
    assert workload_named(name, settings).describe() == described
