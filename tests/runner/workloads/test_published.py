"""Our models are the published ones: their parameters are counted on meta, where nothing is held."""

import pytest
import torch

from memviz.runner.plan import make_workload
from memviz.runner.workloads import WORKLOADS
from tests.marks import slow_rows

OURS = [
    ("feed_forward", {}, 5 * (4096 * 16384 * 2 + 16384 + 4096)),
    ("feed_forward", {"activation": "geglu"}, 5 * (4096 * 16384 * 3 + 2 * 16384 + 4096)),
    ("vae", {}, 49_490_199),
    ("flux_pipeline", {}, 123_060_480 + 4_762_310_656 + 11_901_408_320 + 49_545_475),
    ("sdxl_pipeline", {}, 123_060_480 + 694_659_840 + 2_567_463_684 + 49_490_199),
    ("ltx_pipeline", {}, 4_762_310_656 + 1_923_385_472 + 238_789_296),
    ("wan_pipeline", {}, 5_680_910_336 + 1_418_996_800 + 73_295_603),
    ("wan_pipeline", {"size": "14b"}, 5_680_910_336 + 14_288_491_584 + 73_295_603),
    ("transformer_block", {}, 739_270_656),
]
"""Unpublished models, a part of one, and whole pipelines: text encoders, the denoiser and a decoder."""
PUBLISHED = [(kind, model) for kind in WORKLOADS for model in getattr(kind, "published", ())]
FIRST = [(kind.name, model.settings, model.parameters) for kind in WORKLOADS for model in kind.published[:1]]
OTHERS = [(kind.name, model.settings, model.parameters) for kind in WORKLOADS for model in kind.published[1:]]
NAMED_BY_SIZE = {"CogVideoX-2b": 0.16, "CogVideoX-5b": 0.12, "Wan2.1": 0.1}
"""Relative difference between the size in a model's name and its weights."""


@pytest.mark.parametrize(("kind", "model"), PUBLISHED, ids=lambda part: getattr(part, "source", ""))
def test_each_has_as_many_as_its_page_says(kind, model):
    said = float(model.said[:-1]) * {"M": 10**6, "B": 10**9}[model.said[-1]]
    name = model.source.rpartition("/")[2]
    assert model.source.startswith("https://")
    assert model.parameters == pytest.approx(said, rel=NAMED_BY_SIZE.get(name, 0.04))


def test_every_model_of_a_library_says_where_it_was_published():
    of_a_library = {kind.name for kind in WORKLOADS if kind.library in ("diffusers", "transformers")}
    assert {kind.name for kind, _ in PUBLISHED} == of_a_library
    for kind in {kind for kind, _ in PUBLISHED if hasattr(kind, "size")}:
        assert len(kind.published) == len(kind.__dataclass_fields__["size"].metadata["choices"])


@pytest.mark.parametrize(("name", "settings", "parameters"), [*OURS[:3], *FIRST, *slow_rows(*OURS[3:], *OTHERS)])
def test_parameters(name, settings, parameters):
    workload = make_workload(name, settings)
    with torch.device("meta"):
        model = workload.build()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    formats = {"bf16": torch.bfloat16, "fp32": torch.float32}
    assert {parameter.dtype for parameter in model.parameters()} == {formats[workload.dtype]}
    assert {each.device.type for each in (*model.parameters(), *model.buffers())} == {"meta"}
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(("name", "size"), [("gpt2", "124m"), ("llama", "1b")])
def test_tied_embeddings_are_one_matrix(name, size):
    with torch.device("meta"):
        model = make_workload(name, {"size": size}).build()
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_positions_of_cogvideox_are_converted_and_those_of_llama_kept():
    with torch.device("meta"):
        video, text = make_workload("cogvideox").build(), make_workload("llama").build()
    assert {buffer.dtype for buffer in video.buffers()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in text.buffers()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "settings", "tokens"),
    [
        ("ltx_video", {}, 11 * 16 * 24),
        ("ltx_video", {"video": "161x704x1216"}, 21 * 22 * 38),
        ("flux", {}, 64 * 64),
        ("flux", {"resolution": "768x1360"}, 48 * 85),
        ("flux_pipeline", {"resolution": "768x1360"}, 48 * 85),
        ("cogvideox", {}, 13 * 30 * 45),
    ],
)
def test_pictures_and_videos_become_tokens(name, settings, tokens):
    assert make_workload(name, settings).tokens == tokens


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
    assert make_workload(name, settings).describe() == described
