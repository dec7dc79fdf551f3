"""The workloads: lookup by name, refusals, published sizes and tables, feed-forward stacks, and no heavy import."""

import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner import published
from memviz.runner.plan import make_workload
from memviz.runner.published import PublishedRow, Seed
from memviz.runner.workloads import WORKLOADS, Workload
from memviz.runner.workloads.layer_stacks import ACTIVATIONS, FeedForwardStack
from optimizations import OPTIMIZATIONS
from tests.facts import missing
from tests.house.repository import ROOT
from tests.marks import slow_rows

NAMES = [kind.name for kind in WORKLOADS]


def test_each_is_found_by_its_name_and_settings_turn_the_knobs():
    assert len(set(NAMES)) == len(NAMES)
    assert [type(make_workload(name)) for name in NAMES] == list(WORKLOADS)
    workload = make_workload("ltx_video", {"video": "41x256x384", "batch": "2", "mode": "inference"})
    assert (workload.frames, workload.height, workload.width, workload.batch) == (41, 256, 384, 2)
    assert not workload.training

    with pytest.raises(UsageError) as caught:
        make_workload("ltx-video")
    facts = ("no workload ltx-video", "Did you mean ltx_video?", ", ".join(NAMES), "config.json", "FILE.py:function")
    assert missing(caught.value, *facts) == []


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("feed_forward", {"batch": "-1"}, "feed_forward: batch is -1; the minimum is 1."),
        ("feed_forward", {"batch": "0"}, "feed_forward: batch is 0; the minimum is 1."),
        ("feed_forward", {"activation": "relu"}, "feed_forward: activation cannot be relu. Did you mean gelu? "),
        ("feed_forward", {"dropout": "1"}, "feed_forward: dropout is 1.0; it must be at least 0 and"),
        ("feed_forward", {"residual": "true", "dim_out": "128"}, "feed_forward: residual adds 4096 channels to 128;"),
        ("feed_forward", {"micro_batches": "4"}, "feed_forward: micro_batches is 4, but only training has"),
        ("ltx_video", {"frames": "80"}, "ltx_video: frames is 80; it must be 1 more than a multiple of 8, such as"),
        ("ltx_video", {"height": "500"}, "ltx_video: height is 500; it must be a multiple of 32, such as"),
        ("flux", {"resolution": "1024x7"}, "flux: width is 7; it must be a multiple of 16, such as 16, beca"),
        ("cogvideox", {"size": "7b"}, "cogvideox: size cannot be 7b. There are 2b, 5b."),
        ("cogvideox", {"frames": "2"}, "cogvideox: frames is 2; it must be 1 more than a multiple of 4, such as"),
        ("gpt2", {"sequence": "2048"}, "gpt2: sequence is 2048; GPT-2 knows 1024 positions."),
        ("gpt2", {"narrow": "5"}, "gpt2: narrow is 5; it must divide the 12 heads."),
        ("llama", {"cache": "true"}, "llama: cache is for inference only."),
        ("llama", {"dtype": "fp8"}, "llama: dtype cannot be fp8. There are bf16, fp16, fp32."),
        ("transformer_block", {"parts": "3"}, "transformer_block: 64 heads cannot be split into 3 equal parts."),
        ("transformer_block", {"inner": "28674"}, "transformer_block: inner 28674 cannot be split into 4 equal parts."),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_built(name, settings, message):
    with pytest.raises(UsageError) as caught:
        make_workload(name, settings)
    assert str(caught.value).startswith(message)


@pytest.mark.slow
def test_naming_a_workload_loads_no_library_of_models():
    """It takes them seconds, and a wrong knob is refused without."""
    program = """
import sys
from memviz.runner.workloads import WORKLOADS
made = [each() for each in WORKLOADS]
print(*sorted({"diffusers", "transformers"} & set(sys.modules)))
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


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


def test_tied_embeddings_are_one_matrix_and_positions_of_cogvideox_are_converted_and_those_of_llama_kept():
    with torch.device("meta"):
        gpt2, llama, video = (make_workload(name).build() for name in ("gpt2", "llama", "cogvideox"))
    for model in (gpt2, llama):
        assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert {buffer.dtype for buffer in video.buffers()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in llama.buffers()} == {torch.float32}


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


def test_a_run_in_a_line():
    video = "28 layers, 1 video of 81 x 512 x 768 (4,224 tokens), bf16, training step"
    assert make_workload("ltx_video").describe() == f"LTX-Video transformer, 1.92 B parameters, {video}"
    block = "1 layer, 1 of 4 parts, 1 x 1024 tokens, bf16, training step of 4 micro-batches"
    title = "Tensor-parallel transformer block, 739.27 M parameters"
    assert make_workload("transformer_block").describe() == f"{title}, {block}"


CPU = torch.device("cpu")
SMALL = FeedForwardStack(batch=1, sequence=64, dim=128, layers=5)


def sizes_after_each_layer(workload: FeedForwardStack) -> list[float]:
    torch.manual_seed(workload.seed)
    model = workload.build()
    sizes = []
    x = workload.inputs(CPU)["x"]
    with torch.no_grad():
        for layer in model.blocks:
            x = x + layer(x) if workload.residual else layer(x)
            sizes.append(float(x.std(dim=-1).median()))
        assert torch.equal(model(**workload.inputs(CPU)), x)
    return sizes


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_signal_survives_five_layers(activation, residual):
    sizes = sizes_after_each_layer(replace(SMALL, activation=activation, residual=residual))
    assert min(sizes) > 0.2
    assert max(sizes) < 6


def test_torchs_own_weights_lose_it_as_the_seed_did():
    """The published table was measured with these: the fifth layer's output hardly depends on the input."""
    workload = replace(SMALL, initial="torch")
    assert sizes_after_each_layer(workload)[-1] < 0.1
    torch.manual_seed(0)
    model = workload.build()
    one, other = torch.randn(2, 1, 32, 128)
    assert (model(one) - model(other)).norm() < 0.05 * model(one).norm()


def test_gates_double_the_first_matrix_the_last_layer_may_give_another_width_and_biases_may_go():
    for activation in ("geglu", "swiglu"):
        shapes = {tuple(weight.shape) for weight in replace(SMALL, activation=activation).build().parameters()}
        assert shapes == {(1024, 128), (1024,), (128, 512), (128,)}
    model = replace(SMALL, dim_out=48, bias=False).build()
    assert model(torch.randn(1, 8, 128)).shape == (1, 8, 48)
    assert [name for name, _ in model.named_parameters() if "bias" in name] == []


def test_dropout_is_for_training_alone():
    for mode, equal in (("inference", True), ("training", False)):
        torch.manual_seed(0)
        workload = replace(SMALL, dropout=0.3, mode=mode)
        model, inputs = workload.build(), workload.inputs(CPU)
        assert torch.equal(model(**inputs), model(**inputs)) is equal


@pytest.mark.parametrize(("dim", "small"), [(4096, 256), (3072, 192), (1920, 240), (100, 100), (4099, 4099)])
def test_the_twin_keeps_what_divides_the_inner_size(dim, small):
    assert FeedForwardStack(dim=dim).small().dim == small


PARTICULAR = [kind for kind in OPTIMIZATIONS if getattr(kind, "only_on", "")]


@pytest.mark.parametrize("kind", WORKLOADS, ids=lambda kind: kind.name)
def test_an_optimization_of_one_kind_of_model_finds_it_where_it_is_said_to_be(kind: type[Workload]) -> None:
    with torch.device("meta"):
        model = kind().small().build()
    assert PARTICULAR
    for optimization in PARTICULAR:
        try:
            optimization().check(model, training=False)
        except ValueError:
            found = False
        else:
            found = True
        assert found == (optimization.only_on in kind.holds), optimization.name


def test_only_the_gated_ones_were_split_wrongly_and_split_right_they_are_as_equal_as_the_rest(monkeypatch):
    monkeypatch.setattr(published, "FeedForwardStack", partial(FeedForwardStack, dim=64))
    found = published.split_differences(ACTIVATIONS, 4)
    wrong = {name for name, each in found.items() if each["as first published"][0] > 1e-4}
    assert wrong == {"geglu", "swiglu"}
    assert all(each["split"][0] < 1e-6 and each["split"][1] <= each["split"][0] for each in found.values())


def test_one_layer_is_summed_one_product_after_the_other(monkeypatch):
    """In sequence a one is lost next to 2**24, which blockwise sums keep; and published rounding is reproduced."""
    weight = torch.tensor([[2.0**24, 1.0, -(2.0**24)], [2.0**24, -(2.0**24), 1.0]])
    assert published._in_turn(torch.ones(1, 3), weight).tolist() == [[0.0, 1.0]]
    monkeypatch.setattr(published, "FeedForwardStack", partial(FeedForwardStack, dim=256))
    absmax, absmean = published.one_layer_difference(4)
    # The published layer sums 16 times as many products, and so rounds four times as much, at equal outputs.
    assert absmean == pytest.approx(3.3257e-07 / 4, rel=0.25)
    assert absmean < absmax < 6.7353e-06


def test_a_percentage_stands_only_where_it_is_the_same_model():
    seed = Seed("one", "", "", "", lambda tell: iter(()))
    alike, other = (PublishedRow("case", "loss", 10.0, 5.0, same_model=same) for same in (True, False))
    assert [seed.as_json(each)["difference_percent"] for each in (alike, other)] == [-50.0, None]
