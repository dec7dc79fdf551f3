"""Casting in models that read the weights below them, that are trained in part, and that are large."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from optimizations import apply_all
from optimizations.checkpointing import Checkpointing
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward
from tests.optimizations.casting import FP8, PIECES, TOKENS, Block, dtypes, model, nbytes, rounded
from tests.optimizations.memory import GiB, Memory
from tests.optimizations.tiny import gpt2, llama, ltx

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


def test_recomputation_under_checkpointing_finds_the_weights_up():
    case = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)).requires_grad_(False)
    twin, x = rounded(case), torch.randn(2, 4)
    LayerwiseCasting().apply(case)
    grads = []
    for each in (twin, case):
        given = x.clone().requires_grad_()
        checkpoint(each, given, use_reentrant=False).square().sum().backward()
        grads.append(given.grad)
    assert torch.equal(*grads)
    assert dtypes(case) == {name: FP8 for name in dtypes(case)}


def test_trained_weights_are_refused_with_the_reason_and_what_would_work():
    case = model()
    with pytest.raises(
        ValueError, match=r"^16 of the weights to cast are trained, words the first\. Updates smaller"
    ) as why:
        LayerwiseCasting(skip="").check(case, training=True)
    assert "requires_grad_(False) and train adapters" in str(why.value)
    LayerwiseCasting(skip="").check(case, training=False)
    LayerwiseCasting(skip="").check(case.requires_grad_(False), training=True)


def test_trained_weights_are_refused_at_the_latest_when_a_gradient_would_be_recorded():
    case = model()
    LayerwiseCasting(skip="").apply(case)
    resting = dtypes(case)
    with pytest.raises(ValueError, match="words has a trained weight, and is cast. Updates smaller"):
        case(TOKENS)
    assert dtypes(case) == resting
    with torch.no_grad():
        case(TOKENS)


# Flux, on tensors without data


def flux(**more: int) -> nn.Module:
    from diffusers import FluxTransformer2DModel

    with torch.device("meta"):
        made = FluxTransformer2DModel(guidance_embeds=True, **more)
    for parameter in made.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return made


def _is_kept(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(module, nn.Linear) and weight is not None and weight.dtype == torch.bfloat16


def test_skipping_norms_costs_flux_three_gib_in_its_modulation():
    case = flux()
    whole = nbytes(case)
    skipping = flux()
    LayerwiseCasting().apply(skipping)
    LayerwiseCasting(skip="").apply(case)
    assert whole / GiB == pytest.approx(22.17, abs=0.01)
    assert nbytes(case) == pytest.approx(whole / 2, rel=1e-4)
    modulation = [name for name, module in skipping.named_modules() if "norm" in name and _is_kept(module)]
    assert len(modulation) == 77
    assert (nbytes(skipping) - nbytes(case)) / GiB == pytest.approx(3.02, abs=0.01)


@pytest.mark.slow
@torch.no_grad()
def test_flux_as_one_piece_saves_nothing_while_it_runs():
    case = flux(num_layers=2, num_single_layers=2)

    def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    inputs = {"hidden_states": empty(1, 16, 64), "encoder_hidden_states": empty(1, 8, 4096)}
    inputs |= {"pooled_projections": empty(1, 768), "timestep": empty(1), "guidance": empty(1)}
    inputs |= {"img_ids": empty(16, 3), "txt_ids": empty(8, 3)}

    def peak() -> int:
        with Memory() as memory:
            memory.note(list(case.parameters()))
            case(**inputs)
        return memory.peak_allocated

    peaks = {"whole": peak()}
    for granularity in PIECES:
        undo = LayerwiseCasting(granularity=granularity, skip="").apply(case)
        peaks[granularity] = peak()
        undo()
    assert {name: each / peaks["whole"] for name, each in peaks.items()} == pytest.approx(
        {"whole": 1.0, "leaf": 0.55, "block": 0.7, "model": 1.0}, abs=0.06
    )
