"""Layerwise casting: memory, the time of casts, accuracy, and refusals."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from memviz.runner.plan import make_workload
from memviz.trace.model import Action
from optimizations import apply_all
from optimizations.checkpointing import Checkpointing
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward
from tests.optimizations.memory import Memory, predicted
from tests.optimizations.tiny import gpt2, llama, ltx

FP8 = torch.float8_e4m3fn
SMALL = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
PIECES = ("leaf", "block", "model")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """An embedding, blocks, a convolution, buffers of three types, and an output matrix, perhaps the embedding's."""

    def __init__(self, width: int = 8, depth: int = 3, tied: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(20, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.mix = nn.Conv1d(width, width, 3, padding=1)
        self.proj_out = nn.Linear(width, 20, bias=False)
        if tied:
            self.proj_out.weight = self.words.weight
        self.register_buffer("scale", torch.full((1,), 1.001))
        self.register_buffer("order", torch.arange(width))
        self.register_buffer("mask", torch.arange(width) % 5 != 0)

    def forward(self, tokens: Tensor) -> Tensor:
        x = (self.words(tokens) * self.scale)[..., self.order] * self.mask
        for block in self.blocks:
            x = block(x)
        return self.proj_out(self.mix(x.transpose(1, 2)).transpose(1, 2))


TOKENS = torch.arange(12).reshape(2, 6)


def model(dtype: torch.dtype = torch.bfloat16, **more: object) -> Model:
    torch.manual_seed(0)
    return Model(**more).to(dtype).eval()


def rounded(of: nn.Module, through: torch.dtype = FP8, *, keep: tuple[str, ...] = ("norm",)) -> nn.Module:
    """Return a copy with the weights and biases of matrices rounded once by hand."""
    twin = copy.deepcopy(of)
    for name, each in twin.named_parameters():
        if not any(word in name for word in keep):
            each.data = each.data.to(through).to(each.dtype)
    return twin


def dtypes(of: nn.Module) -> dict[str, torch.dtype]:
    return {name: each.dtype for name, each in of.state_dict().items()}


def nbytes(of: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in of.parameters())


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
    """Matrices that are cast up while each watched module computes; filled as the model runs."""
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
        (lambda: nn.LayerNorm(4), {}, "There is nothing to cast in this model: it has no layer with a weight matrix."),
        (
            lambda: nn.ModuleDict({"norm": nn.Linear(2, 2)}),
            {},
            "nothing to cast in this model: all are skipped, by norm; shorten skip.",
        ),
        (lambda: nn.Linear(2, 2).to(FP8), {}, "already quantized or cast. Start from weights in bf16"),
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


@pytest.mark.parametrize("granularity", ["leaf", "block"])
@torch.no_grad()
def test_casting_ahead_changes_no_bit_and_leaves_nothing_behind(granularity):
    case, before, expected = model(tied=True), dtypes(model(tied=True)), rounded(model(tied=True))(TOKENS)
    casting = LayerwiseCasting(granularity=granularity, skip="", ahead=True)
    undo = casting.apply(case)
    resting = dtypes(case)
    case(TOKENS)
    twin = copy.deepcopy(case)
    for each in (case, case, twin, twin):
        assert torch.equal(each(TOKENS), expected)
        assert dtypes(each) == resting
    undo()
    assert dtypes(case) == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in case.modules())


@torch.no_grad()
def test_what_was_cast_ahead_is_not_taken_once_the_pass_goes_elsewhere_or_the_weight_is_another():
    case, twin = model(), rounded(model())
    LayerwiseCasting(skip="", ahead=True).apply(case)
    assert torch.equal(case(TOKENS), twin(TOKENS))
    changed = twin.blocks[0].down.weight
    changed.mul_(2)
    # While the layer before it computes it is cast up already: what is loaded then counts all the same.
    loaded = case.blocks[0].down.weight

    def load_it(*_: object) -> None:
        loaded.copy_(changed.to(FP8))

    load = case.blocks[0].up.register_forward_hook(load_it)
    assert torch.equal(case(TOKENS), twin(TOKENS))
    load.remove()
    with pytest.raises(IndexError):
        case(TOKENS + 100)
    for each in (case, twin):
        del each.blocks[1]
    assert torch.equal(case(TOKENS), twin(TOKENS))
    assert torch.equal(case(TOKENS), twin(TOKENS))


def test_ahead_two_pieces_are_up_at_once_from_the_second_pass_on():
    width = 512
    with torch.device("meta"):
        case = nn.Sequential(*(Block(width) for _ in range(6))).bfloat16()
        x = torch.empty(1, width, dtype=torch.bfloat16)
    matrix, peaks = 4 * width * width, []
    for ahead in (False, True):
        undo = LayerwiseCasting(skip="", ahead=ahead).apply(case)
        with torch.no_grad():
            for _ in range(2):
                with Memory() as memory:
                    memory.note(list(case.parameters()))
                    case(x)
                peaks.append(memory.peak_allocated)
        undo()
    assert peaks[0] == peaks[1] == peaks[2]
    assert peaks[3] - peaks[2] == pytest.approx(2 * matrix, rel=0.01)


@pytest.mark.slow
def test_the_stream_takes_every_weight_but_those_of_the_first_piece_and_the_peak_grows_by_one():
    settings = {"double_layers": "1", "single_layers": "2"}

    def run(ahead: str):
        done = predicted("flux", settings, ("layerwise_casting", {"skip": "norm", "ahead": ahead}))
        events = done.trace.devices[0].events
        beside = (events.stream != 0) & (events.action == Action.ALLOC)
        return done.run, events.size[beside]

    (plain, nothing), (ahead, beside) = run("false"), run("true")
    with torch.device("meta"):
        case = make_workload("flux", settings).build()
    LayerwiseCasting(skip="norm").apply(case)
    wide = {name: 2 * each.numel() for name, each in case.named_parameters() if each.dtype == FP8}
    first = {name for name in wide if name.startswith("x_embedder")}
    assert len(nothing) == 0
    assert sorted(beside) == sorted(size for name, size in wide.items() if name not in first)
    assert 0 < ahead.peak_allocated_bytes - plain.peak_allocated_bytes <= max(wide.values()) + 512
    assert (ahead.weights_bytes, ahead.flops, ahead.bytes_moved) == (
        plain.weights_bytes,
        plain.flops,
        plain.bytes_moved,
    )


# Forwards that take hold of weights below them


class AsksForDtype(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.other = nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.inner(x.to(self.other.weight.dtype)).to(next(self.inner.parameters()).dtype))


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, self.layers[0].weight, self.layers[0].bias)


@pytest.mark.parametrize("make", [AsksForDtype, Reads, lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)])
@pytest.mark.parametrize("granularity", PIECES)
@torch.no_grad()
def test_weights_that_are_read_and_not_called_are_up_for_their_reader(make, granularity):
    torch.manual_seed(0)
    case, x = nn.Sequential(make(), make()).bfloat16().eval(), torch.randn(2, 3, 4, dtype=torch.bfloat16)
    expected = rounded(case, keep=("norm", "in_proj"))(x)
    LayerwiseCasting(granularity=granularity, skip="").apply(case)
    assert torch.equal(case(x), expected)
    assert FP8 in dtypes(case).values()


@torch.no_grad()
def test_who_asks_for_the_dtype_of_many_weights_keeps_up_only_the_first():
    case = AsksForDtype()
    case.inner.append(nn.Linear(4, 4))
    LayerwiseCasting().apply(case)
    up: list[str] = []
    case.other.register_forward_pre_hook(
        lambda *_: up.extend(name for name, each in case.named_parameters() if each.dtype != FP8)
    )
    case(torch.randn(2, 4))
    assert up == ["inner.0.weight", "other.weight", "other.bias"]


@pytest.mark.parametrize("granularity", PIECES)
@pytest.mark.parametrize("make", [ltx, gpt2, llama])
@torch.no_grad()
def test_models_of_both_libraries_with_split_feed_forwards_where_they_have_them(make, granularity):
    case = make()
    whole = case.model.eval()
    names = {name for name, each in whole.named_parameters() if each.dim() < 2 and not name.endswith("bias")}
    vectors = (*names, "norm", "ln_", "scale_shift_table")
    twin = rounded(whole, keep=vectors)
    split = SplitFeedForward(4)
    chosen = [LayerwiseCasting(granularity=granularity, skip="")]
    if make is not gpt2:
        chosen.append(split)
        split.apply(twin)
    told = whole.dtype
    undo = apply_all(whole, chosen)
    assert torch.equal(case.loss(whole), case.loss(twin))
    assert whole.dtype == told and nbytes(whole) < 0.27 * nbytes(twin)
    kind = type(whole)
    undo()
    assert type(whole) is not kind and type(whole) is type(make().model)


# Training


def test_frozen_weights_train_adapters_with_the_gradients_of_the_rounded_model():
    torch.manual_seed(0)
    frozen = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Flatten(), nn.Linear(20, 6), nn.ReLU(), nn.Linear(6, 6))
    frozen.requires_grad_(False)
    case = nn.ModuleDict({"frozen": frozen, "lora_A": nn.Linear(6, 2)})
    x = torch.randn(3, 4, 5, requires_grad=True)
    twin = rounded(case, keep=("lora",))
    LayerwiseCasting().check(case, training=True)
    LayerwiseCasting().apply(case)
    gradients = []
    for each in (twin, case):
        each["lora_A"](each["frozen"](x)).square().sum().backward()
        gradients.append([x.grad.clone(), *(weight.grad for weight in each["lora_A"].parameters())])
        x.grad = None
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert all(isinstance(parameter, nn.Parameter) for parameter in case.parameters())
    assert [each.weight.dtype for each in (frozen[0], frozen[2], frozen[4])] == [FP8] * 3


@pytest.mark.slow
def test_training_with_frozen_weights_saves_only_under_checkpointing():
    width, depth = 256, 6
    with torch.device("meta"):
        case = nn.Sequential(*(Block(width) for _ in range(depth))).bfloat16().requires_grad_(False)
        x = torch.empty(1, width, dtype=torch.bfloat16, requires_grad=True)

    def peak() -> float:
        with Memory() as memory:
            memory.note(list(case.parameters()))
            case(x).sum().backward()
        return memory.peak_allocated / (2 * depth * 4 * width * width)

    assert peak() == pytest.approx(2, abs=0.2)  # bytes a weight
    LayerwiseCasting(skip="").apply(case)
    assert peak() == pytest.approx(3, abs=0.2)
    Checkpointing().apply(case)
    assert peak() < 1.6


def test_trained_weights_are_refused_by_the_check_or_when_a_gradient_would_be_recorded():
    case, casting = model(), LayerwiseCasting(skip="")
    with pytest.raises(ValueError, match=r"16 of .* trained, words the first.*requires_grad_\(False\) and train"):
        casting.check(case, training=True)
    casting.check(case.requires_grad_(False), training=True)
    casting.apply(case.requires_grad_(True))
    resting = dtypes(case)
    with pytest.raises(ValueError, match="words has a trained weight, and is cast. Updates smaller"):
        case(TOKENS)
    assert dtypes(case) == resting
    with torch.no_grad():
        case(TOKENS)
