"""Adapters: at first the same model, then only they learn, and gradients and states are theirs alone."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import memviz
from memviz.runner.output_check.comparison import check_outputs
from memviz.runner.plan import plan_of
from memviz.runner.request import Request
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.lora import Adapted, Lora, merge
from tests.optimizations.tiny import bert, flux, gpt2, llama, ltx, stack, vit

CASES = [bert, flux, gpt2, llama, ltx, stack, vit]
all_cases = pytest.mark.parametrize("case", CASES, ids=lambda each: each.__name__)


def trained(case, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW(
        [parameter for parameter in case.model.parameters() if parameter.requires_grad], lr=0.002
    )
    for _ in range(steps):
        torch.manual_seed(0)
        case.loss(case.model).backward()
        optimizer.step()
        optimizer.zero_grad()


def loss_of(case) -> torch.Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        return case.loss(case.model)


@pytest.mark.parametrize("by", ["torch", "peft"])
@all_cases
def test_at_first_it_is_the_same_model_then_adapters_learn_and_undone_it_is_the_model_it_was(case, by):
    if by == "peft":
        pytest.importorskip("peft", reason="peft is not installed")
    made = case()
    weights = {name: each.detach().clone() for name, each in made.model.named_parameters()}
    classes = [type(module) for module in made.model.modules()]
    before = loss_of(made)
    undo = Lora(rank=4, by=by).apply(made.model)
    assert torch.equal(loss_of(made), before)
    names = {name for name, each in made.model.named_parameters() if each.requires_grad}
    assert names == {name for name, _ in made.model.named_parameters() if ".lora_" in name}
    trained(made)
    assert loss_of(made) < before
    undo()
    assert [type(module) for module in made.model.modules()] == classes
    assert all(torch.equal(each, weights[name]) for name, each in made.model.named_parameters())
    assert all(parameter.requires_grad for parameter in made.model.parameters())
    assert torch.equal(loss_of(made), before)


@all_cases
def test_merged_into_the_weights_it_computes_what_it_learnt(case):
    made = case()
    made.model.eval()
    undo = Lora(rank=4, alpha=8.0).apply(made.model)
    trained(made)
    learnt = loss_of(made)
    merge(made.model)
    undo()
    torch.testing.assert_close(loss_of(made), learnt, rtol=1e-4, atol=1e-5)


def test_what_is_adapted_is_named_and_lies_in_the_blocks():
    case = llama()
    undo = Lora(only="(q|v)_proj").apply(case.model)
    adapted = [name for name, each in case.model.named_modules() if isinstance(each, Adapted)]
    assert adapted == [f"model.layers.{n}.self_attn.{which}_proj" for n in range(4) for which in "qv"]
    assert not isinstance(case.model.lm_head, Adapted)
    undo()


def test_a_layer_with_two_names_is_adapted_once():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"one": shared, "other": shared})
    undo = Lora(rank=2).apply(model)
    assert model["one"] is model["other"]
    assert sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad) == 16
    undo()
    assert model["one"] is shared is model["other"]


def test_a_copy_learns_by_itself():
    case = stack(dropout=0.0)
    undo = Lora(rank=4).apply(case.model)
    twin = copy.deepcopy(case.model)
    before = loss_of(case)
    undo()
    trained(type(case)(twin, case.loss))
    assert torch.equal(loss_of(case), before)
    assert loss_of(type(case)(twin, case.loss)) < before


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")  # padding makes them
@pytest.mark.parametrize("by", ["torch", "peft"])
@pytest.mark.parametrize("padded", [False, True])
def test_an_encoder_of_torch_computes_its_adapters_in_eval_mode_too(by, padded):
    if by == "peft":
        pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=padded)
    undo = Lora(rank=4, by=by).apply(model)
    for adapter in (each for each in model.parameters() if each.requires_grad):
        nn.init.normal_(adapter, std=0.3)
    x, valid = torch.randn(2, 7, 32), torch.arange(7) < torch.tensor([[7], [5]])
    mask = {"src_key_padding_mask": ~valid} if padded else {}
    with torch.no_grad():
        expected, found = model.train()(x, **mask), model.eval()(x, **mask)
        torch.testing.assert_close(found[valid], expected[valid], rtol=1e-4, atol=1e-5)
        undo()
        assert not torch.allclose(model(x, **mask)[valid], expected[valid], rtol=0.1)
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("by", ["torch", "peft"])
def test_undo_keeps_what_was_set_on_the_model_since(by):
    if by == "peft":
        pytest.importorskip("peft", reason="peft is not installed")
    model = llama().model
    before = set(vars(model))
    undo = Lora(rank=2, by=by).apply(model)
    model.note = "mine"
    undo()
    assert (set(vars(model)) - before, model.note) == ({"note"}, "mine")


def test_adapters_start_with_the_standard_deviation_that_peft_starts_with():
    """Kaiming-uniform with a = sqrt(5): uniform up to 1 / sqrt(inputs)."""
    torch.manual_seed(0)
    down = Adapted(nn.Linear(1024, 8), 64, 16.0).lora_down.weight.detach()
    assert float(down.std()) == pytest.approx((3 * 1024) ** -0.5, rel=0.02)
    assert float(down.abs().max()) == pytest.approx(1024**-0.5, rel=0.01)


def test_beside_weights_in_eight_bits_adapters_have_more():
    case = llama()
    undo_lora = Lora(rank=4).apply(case.model)
    undo = LayerwiseCasting().apply(case.model)
    kinds = {each.dtype for name, each in case.model.named_parameters() if "layers" in name and "norm" not in name}
    assert kinds == {torch.float8_e4m3fn, torch.float32}
    before = loss_of(case)
    trained(case)
    assert loss_of(case) < before
    undo()
    undo_lora()


@pytest.fixture
def library() -> Any:
    return pytest.importorskip("peft", reason="peft is not installed")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("autocast", [True, False])
def test_a_step_takes_what_it_takes_with_get_peft_model_to_the_byte(library, autocast):
    def ours(model: nn.Module) -> nn.Module:
        Lora(rank=8, by="peft", autocast_adapter_dtype=autocast).apply(model)
        return model

    def theirs(model: nn.Module) -> nn.Module:
        config = library.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
        wrapped: nn.Module = library.get_peft_model(model, config, autocast_adapter_dtype=autocast)
        return wrapped

    peaks = [peak_of_a_step(change) for change in (ours, theirs)]
    assert peaks[0] == peaks[1]


def peak_of_a_step(change: Callable[[nn.Module], nn.Module]) -> tuple[int, int, int]:
    with memviz.predicting() as prediction:
        model = change(llama().model.to("cuda", torch.bfloat16))
        tokens = torch.randint(0, 64, (1, 64)).cuda()
        optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
        for _ in range(2):
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return prediction.peak_requested, prediction.peak_allocated, prediction.peak_reserved


def test_outputs_with_adapters_of_peft_are_as_claimed(library):
    chosen = (("lora", {"by": "peft"}), ("optimizer_in_backward", {}))
    plan = plan_of(Request("llama", {"layers": "2", "sequence": "64"}, chosen, optimizer="adamw", numerics=False))
    numerics = check_outputs(plan, lambda _: None, "predicted")
    assert numerics is not None
    assert numerics["verdict"]["ok"] is True, numerics["verdict"]
