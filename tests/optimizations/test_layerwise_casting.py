"""Weights that rest small: what they take, when they are up, what that does to values, and what is refused."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from optimizations.layerwise_casting import LayerwiseCasting
from tests.optimizations.casting import FP8, PIECES, SMALL, TOKENS, Block, dtypes, model, nbytes, rounded
from tests.optimizations.memory import Memory

# Values


@pytest.mark.parametrize("granularity", PIECES)
@pytest.mark.parametrize("storage", SMALL)
@torch.no_grad()
def test_it_computes_with_weights_rounded_once_and_with_nothing_else(storage, granularity):
    case = model(torch.float32)
    expected = rounded(case, SMALL[storage])(TOKENS)
    LayerwiseCasting(storage, granularity=granularity, skip="").apply(case)
    assert [torch.equal(case(TOKENS), expected) for _ in range(3)] == [True] * 3
    assert LayerwiseCasting(storage).claim == "lossy"


@given(st.lists(st.floats(-448, 448, width=32), min_size=1, max_size=40), st.sampled_from(["bf16", "fp16", "fp32"]))
@settings(deadline=None)
@torch.no_grad()
def test_after_the_first_rounding_casting_up_and_down_loses_nothing(values, compute):
    layer = nn.Linear(len(values), 1, bias=False)
    layer.weight.data = torch.tensor([values])
    LayerwiseCasting(compute=compute).apply(layer)
    stored = layer.weight.data.clone().view(torch.uint8)
    for _ in range(2):
        layer(torch.ones(1, len(values)))
        assert torch.equal(layer.weight.data.view(torch.uint8), stored)


@pytest.mark.parametrize("granularity", PIECES)
@pytest.mark.parametrize("compute", ["bf16", "fp16", "fp32"])
@torch.no_grad()
def test_matrices_compute_in_another_dtype_than_the_rest_of_the_model(compute, granularity):
    case, seen = model(torch.float32), set()
    LayerwiseCasting(compute=compute, granularity=granularity, skip="").apply(case)
    for name in ("blocks.0.up", "blocks.1.norm", "proj_out"):
        layer = case.get_submodule(name)
        layer.register_forward_pre_hook(
            lambda module, args, name=name: seen.add((name, args[0].dtype, module.weight.dtype))
        )
    wide = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[compute]
    assert case(TOKENS).dtype == torch.float32
    assert seen == {
        ("blocks.0.up", wide, wide),
        ("proj_out", wide, wide),
        ("blocks.1.norm", torch.float32, torch.float32),
    }


@torch.no_grad()
def test_undo_brings_back_dtypes_and_hooks_and_the_values_that_storage_kept():
    case = model()
    before, objects, expected = dtypes(case), dict(case.named_parameters()), rounded(case)
    undo = LayerwiseCasting(skip="").apply(case)
    assert dtypes(case) != before
    case(TOKENS)
    undo()
    assert dtypes(case) == before
    assert all(each is objects[name] for name, each in case.named_parameters())
    assert all(torch.equal(each, expected.state_dict()[name]) for name, each in case.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in case.modules())


# What is cast


def test_matrices_and_their_biases_are_cast_and_vectors_and_buffers_left_alone():
    case = model(torch.float32, depth=1)
    LayerwiseCasting(skip="").apply(case)
    assert dtypes(case) == {
        "scale": torch.float32,
        "order": torch.int64,
        "mask": torch.bool,
        "words.weight": FP8,
        "blocks.0.norm.weight": torch.float32,
        "blocks.0.norm.bias": torch.float32,
        "blocks.0.up.weight": FP8,
        "blocks.0.up.bias": FP8,
        "blocks.0.down.weight": FP8,
        "blocks.0.down.bias": FP8,
        "mix.weight": FP8,
        "mix.bias": FP8,
        "proj_out.weight": FP8,
    }


@pytest.mark.parametrize(
    ("knobs", "left"),
    [
        ({}, {"proj_out"}),
        ({"skip": ""}, set()),
        ({"skip": "down, ^words$"}, {"words", "blocks.0.down", "blocks.1.down"}),
        ({"skip": r"^blocks\.1$"}, {"blocks.1.up", "blocks.1.down"}),
        ({"skip": "", "skip_classes": "Conv1d"}, {"mix"}),
        (
            {"skip": "", "skip_classes": "Block Embedding"},
            {f"blocks.{n}.{m}" for n in (0, 1) for m in ("up", "down")} | {"words"},
        ),
        ({"skip": "", "skip_classes": "_ConvNd"}, {"mix"}),
    ],
    ids=lambda given: str(sorted(given)) if isinstance(given, set) else str(given),
)
def test_patterns_and_classes_leave_modules_alone_with_all_below_them(knobs, left):
    case = model(depth=2)
    undo = LayerwiseCasting(**knobs).apply(case)
    matrices = [name for name, each in case.named_modules() if isinstance(each, (nn.Linear, nn.Conv1d, nn.Embedding))]
    assert {name for name in matrices if case.get_submodule(name).weight.dtype != FP8} == left
    undo()


def test_what_a_models_class_asks_for_is_left_alone_where_skip_says_so():
    case = model()
    case._skip_layerwise_casting_patterns, case._keep_in_fp32_modules = ["mix"], ["up"]
    LayerwiseCasting(skip="@declared").apply(case)
    kept = {name for name, dtype in dtypes(case).items() if dtype == torch.bfloat16 and name.endswith("weight")}
    assert {name for name in kept if "norm" not in name} == {"mix.weight", *(f"blocks.{n}.up.weight" for n in range(3))}


@given(st.lists(st.sampled_from(["up", "down", r"blocks\.1", "mix", "proj", "norm"])), st.sampled_from([*SMALL]))
@settings(deadline=None, max_examples=40)
def test_what_is_skipped_is_all_that_is_missing_from_the_saving_without_skips(patterns, storage):
    every, some = model(torch.float32), model(torch.float32)
    LayerwiseCasting(storage, skip="").apply(every)
    LayerwiseCasting(storage, skip=",".join(patterns), skip_classes="Conv1d").apply(some)
    small = {name for name, dtype in dtypes(every).items() if dtype == SMALL[storage]}
    left = [each for name, each in some.named_parameters() if name in small and each.dtype == torch.float32]
    assert nbytes(some) - nbytes(every) == sum(each.numel() * (4 - SMALL[storage].itemsize) for each in left)
    for name, each in some.named_parameters():
        path = name.rpartition(".")[0]
        skipped = any(re.search(pattern, path) for pattern in patterns) or isinstance(
            some.get_submodule(path), nn.Conv1d
        )
        assert (each.dtype == SMALL[storage]) == (name in small and not skipped)


@torch.no_grad()
def test_a_shared_weight_is_cast_once_for_all_who_use_it_or_for_none():
    case = model(tied=True)
    expected = rounded(case)(TOKENS)
    undo = LayerwiseCasting(skip="").apply(case)
    assert case.proj_out.weight is case.words.weight and case.words.weight.dtype == FP8
    assert torch.equal(case(TOKENS), expected)
    undo()
    LayerwiseCasting(skip="^proj_out$").apply(case)
    assert case.words.weight.dtype == torch.bfloat16
    case(TOKENS)


def test_a_weight_that_a_module_shares_without_casting_it_is_left_alone():
    """Only layers with matrices and nothing below them see to it that a weight is up."""

    class Output(nn.Module):
        def __init__(self, words: nn.Embedding) -> None:
            super().__init__()
            self.table, self.mix = words.weight, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(x) @ self.table.T

    words = nn.Embedding(9, 4)
    case = nn.Sequential(words, Output(words))
    LayerwiseCasting().apply(case)
    with torch.no_grad():
        assert case(torch.arange(3)).shape == (3, 9)
    assert {name: dtype == FP8 for name, dtype in dtypes(case).items()} == {
        "0.weight": False,
        "1.table": False,
        "1.mix.weight": True,
        "1.mix.bias": True,
    }


# When it is up


@contextmanager
def up_during(case: nn.Module, watched: tuple[str, ...]) -> Iterator[dict[str, set[str]]]:
    """Which matrices are cast up while each watched module computes; filled as the model runs."""
    seen: dict[str, set[str]] = {}

    def look(name: str) -> None:
        up = {each for each, weight in case.named_parameters() if weight.dtype != FP8 and weight.dim() > 1}
        seen[name] = {each.removesuffix(".weight") for each in up}

    handles = [case.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: look(name)) for name in watched]
    yield seen
    for each in handles:
        each.remove()


@pytest.mark.parametrize(
    ("granularity", "in_block", "in_words"),
    [
        ("leaf", {"blocks.1.up"}, {"words"}),
        ("block", {"blocks.1.up", "blocks.1.down"}, {"words"}),
        ("model", *[{"words", "mix", "proj_out", *(f"blocks.{n}.{m}" for n in range(3) for m in ("up", "down"))}] * 2),
    ],
)
@torch.no_grad()
def test_granularity_says_what_is_up_at_once(granularity, in_block, in_words):
    case = model()
    LayerwiseCasting(granularity=granularity, skip="").apply(case)
    with up_during(case, ("blocks.1.up", "words")) as seen:
        case(TOKENS)
    assert seen == {"blocks.1.up": in_block, "words": in_words}
    assert case.words.weight.dtype == case.mix.weight.dtype == case.blocks[1].up.weight.dtype == FP8


@pytest.mark.parametrize(("granularity", "up"), [("leaf", 1), ("block", 2), ("model", 2 * 6)])
def test_the_peak_is_all_at_rest_and_what_is_up_at_once(granularity, up):
    """Casting frees each old weight as it makes the new one: so a piece that is up counts once, in its wide dtype."""
    width = 512
    with torch.device("meta"):
        case = nn.Sequential(*(Block(width) for _ in range(6))).bfloat16()
        x = torch.empty(1, width, dtype=torch.bfloat16)
    LayerwiseCasting(granularity=granularity, skip="").apply(case)
    matrix = 4 * width * width
    with torch.no_grad(), Memory() as memory:
        memory.note(list(case.parameters()))
        assert memory.allocated == pytest.approx(12 * matrix, rel=0.01)
        case(x)
    assert memory.allocated == pytest.approx(12 * matrix, rel=0.01)
    # One matrix at a time has both: the old one until the new one is there.
    assert memory.peak_allocated == pytest.approx((12 - up + 2 * up + 1) * matrix, rel=0.02)


@pytest.mark.parametrize("granularity", PIECES)
@torch.no_grad()
def test_an_exception_in_a_forward_leaves_nothing_up(granularity):
    case = model()
    expected = rounded(case)(TOKENS)
    LayerwiseCasting(granularity=granularity, skip="").apply(case)
    resting = dtypes(case)
    with pytest.raises(IndexError):
        case(TOKENS + 100)
    stop = case.blocks[1].down.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        case(TOKENS)
    stop.remove()
    assert dtypes(case) == resting
    assert torch.equal(case(TOKENS), expected)


@torch.no_grad()
def test_a_layer_that_calls_itself_stays_up_until_the_outer_call_ends():
    class Twice(nn.Linear):
        def forward(self, x: Tensor, again: bool = True) -> Tensor:
            return super().forward(self(x, again=False) if again else x)

    layer, x = Twice(4, 4), torch.randn(2, 4)
    expected = rounded(layer)(x)
    LayerwiseCasting().apply(layer)
    assert torch.equal(layer(x), expected)
    assert layer.weight.dtype == FP8


@torch.no_grad()
def test_a_deep_copy_casts_its_own_weights():
    case = model()
    LayerwiseCasting(skip="").apply(case)
    expected = case(TOKENS)
    twin = copy.deepcopy(case)
    for parameter in case.parameters():
        parameter.zero_()
    assert torch.equal(twin(TOKENS), expected)
    assert dtypes(twin) == dtypes(case)


def test_under_inference_mode_weights_stay_ordinary_tensors():
    case = model()
    LayerwiseCasting(skip="").apply(case)
    with torch.inference_mode():
        case(TOKENS)
    assert not any(parameter.is_inference() for parameter in case.parameters())


# Refusals


@pytest.mark.parametrize(
    ("make", "knobs", "words"),
    [
        (lambda: nn.LayerNorm(4), {}, "There is nothing to cast in this model: it has no layer with a matrix."),
        (
            lambda: nn.ModuleDict({"norm": nn.Linear(2, 2)}),
            {},
            "nothing to cast in this model: all are skipped, by norm; shorten skip.",
        ),
        (lambda: nn.Linear(2, 2).to(FP8), {}, "quantized or cast already. Start from weights in bf16"),
        (
            lambda: nn.ParameterDict({"q": nn.Parameter(torch.zeros(2, 2, dtype=torch.int8), False)}),
            {},
            "q is a Parameter of torch.int8",
        ),
        (
            lambda: nn.Linear(2, 2).bfloat16(),
            {"storage": "bf16"},
            "save nothing when stored in bf16: choose an fp8 storage.",
        ),
        (
            lambda: nn.Linear(2, 2).bfloat16(),
            {"storage": "fp16", "compute": "fp32"},
            "torch.bfloat16 save nothing when stored in fp16",
        ),
    ],
)
def test_what_cannot_be_cast_is_refused_before_anything_changes(make, knobs, words):
    case = make()
    before = dtypes(case)
    for refuse in (
        lambda: LayerwiseCasting(**knobs).check(case, training=False),
        lambda: LayerwiseCasting(**knobs).apply(case),
    ):
        with pytest.raises(ValueError) as refused:
            refuse()
        assert words in str(refused.value)
    assert dtypes(case) == before


def test_a_second_casting_is_refused():
    case = model()
    LayerwiseCasting().apply(case)
    with pytest.raises(ValueError, match="quantized or cast already"):
        LayerwiseCasting().apply(case)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"storage": "int8"}, "storage cannot be 'int8'; it is one of float8_e4m3fn, float8_e5m2, bf16, fp16."),
        ({"compute": "float8_e4m3fn"}, "compute cannot be"),
        ({"granularity": "row"}, "granularity cannot be 'row'; it is one of leaf, block, model."),
        ({"skip": "norm,("}, "'(' in skip is not a regular expression"),
        ({"storage": "fp16", "compute": "bf16"}, "torch.bfloat16 save nothing when stored in fp16"),
        ({"storage": "bf16", "compute": "bf16"}, "save nothing"),
        (
            {"granularity": "model", "ahead": True},
            "there is no next one to cast ahead: choose",
        ),
    ],
    ids=str,
)
def test_impossible_knobs(knobs, words):
    with pytest.raises(ValueError) as refused:
        LayerwiseCasting(**knobs)
    assert words in str(refused.value)
