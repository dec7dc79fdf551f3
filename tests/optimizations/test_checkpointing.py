"""Checkpointed blocks: chosen by number, bitwise equal, and holding only their inputs."""

import functools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from memviz.runner.plan import make_workload
from optimizations.checkpointing import Checkpointing, blocks
from tests.optimizations.memory import Memory
from tests.optimizations.tiny import Block, Stack, cache_of, different, gpt2, llama, ltx, one_step, stack

STRATEGIES = {
    "none": ({"every": 0}, ()),
    "all": ({}, (0, 1, 2, 3, 4)),
    "every 2nd": ({"every": 2}, (0, 2, 4)),
    "every 4th": ({"every": 4}, (0, 4)),
    "all but every 2nd": ({"every": 2, "invert": True}, (1, 3)),
    "all but every 4th": ({"every": 4, "invert": True}, (1, 2, 3)),
    "skip some": ({"skip": "0,3"}, (1, 2, 4)),
    "skip a range": ({"every": 2, "skip": "1-3"}, (0, 4)),
    "keep matmuls": ({"keep": "matmuls"}, (0, 1, 2, 3, 4)),
    "offload": ({"offload": True}, (0, 1, 2, 3, 4)),
}
each_strategy = pytest.mark.parametrize(("knobs", "chosen"), STRATEGIES.values(), ids=STRATEGIES.keys())


@each_strategy
def test_the_chosen_blocks_run_twice_and_no_bit_changes_with_dropout(knobs, chosen):
    case = stack(dropout=0.3)
    plain = one_step(case.model, case.loss)
    for block in case.model.blocks:
        block.strides.clear()
    Checkpointing(**knobs).apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    assert case.model.runs == [2 if number in chosen else 1 for number in range(5)]


def test_a_models_own_cache_is_written_once():
    case = llama()
    tokens = torch.arange(6).reshape(1, 6)
    Checkpointing(every=2).apply(case.model)
    output = case.model(input_ids=tokens, labels=tokens, use_cache=True)
    output.loss.backward()
    assert [layer.keys.shape[2] for layer in cache_of(output).layers] == [6, 6, 6, 6]


@given(every=st.integers(0, 9), count=st.integers(0, 40), skip=st.sets(st.integers(0, 39)))
def test_inverted_is_the_rest_and_skipped_is_in_neither(every, count, skip):
    text = ",".join(map(str, skip))
    one = Checkpointing(every=every, skip=text).chosen(count)
    other = Checkpointing(every=every, skip=text, invert=True).chosen(count)
    assert sorted([*one, *other]) == [number for number in range(count) if number not in skip]
    assert all(every and number % every == 0 for number in one)


# What is held. On meta, so that it can be the model of a GPU's allocator that counts.

TOKENS, WIDTH, DEPTH = 64, 64, 6
INPUT_BYTES = TOKENS * WIDTH * 4


def held_after_forward(strategy: Checkpointing | None, transposed: bool = False) -> tuple[int, int, list[str]]:
    """Bytes of activations on the device and on the host after a forward pass, and the operators of the backward."""
    with torch.device("meta"):
        model = Stack(DEPTH, WIDTH)
        x = torch.empty(TOKENS, WIDTH)
    if strategy is not None:
        strategy.apply(model)
    with Memory("meta") as device, Memory("cpu") as host:
        device.note([*model.parameters(), x])
        before = device.allocated
        output = model(x)
        held = device.allocated - before - INPUT_BYTES, host.allocated
        device.operators.clear()
        output.sum().backward()
        del output
        assert host.allocated == 0
    return *held, device.operators


def test_a_checkpointed_block_holds_its_input_and_nothing_else():
    assert held_after_forward(Checkpointing())[0] == DEPTH * INPUT_BYTES


def test_kept_matmuls_are_held_and_not_computed_again():
    (all_again, _, again), (kept, _, seldom) = (
        held_after_forward(Checkpointing(keep=each)) for each in ("nothing", "both")
    )
    # Of each block the result of `up`, four times as wide; the result of `down` is not needed for backward.
    assert kept - all_again >= DEPTH * 4 * INPUT_BYTES
    assert (again.count("addmm") > 0, seldom.count("addmm")) == (True, 0)


def test_offloaded_inputs_leave_the_device_and_come_back():
    on_device, on_host, _ = held_after_forward(Checkpointing(offload=True))
    # The last block's output is the model's.
    assert (on_device, on_host) == (0, DEPTH * INPUT_BYTES)


def test_an_offloaded_input_comes_back_as_it_lay():
    with torch.device("meta"):
        model = Stack(2)
        x = torch.empty(8, 6).t().requires_grad_()
    Checkpointing(offload=True).apply(model.blocks)
    model.blocks[0](x).sum().backward()
    assert model.blocks[0].strides == [(1, 6), (1, 6)]


def test_what_is_passed_by_name_is_offloaded_too():
    with torch.device("meta"):
        model = Stack(2)
        x, scale = torch.empty(6, 8), torch.empty(6, 32, requires_grad=True)
    Checkpointing(offload=True).apply(model)
    with Memory("cpu") as host:
        output = model.blocks[0](model.first(x), scale=scale * 2)
        held = host.allocated
        output.sum().backward()
    assert held == 512 + 1024


# Where it has no effect, and what it leaves alone.


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_without_autograd_every_block_runs_once(off):
    case = stack()
    case.model.eval()
    with off():
        plain = case.loss(case.model)
        Checkpointing().apply(case.model)
        assert torch.equal(case.loss(case.model), plain)
    assert case.model.runs == [2] * 5


def test_a_checkpointed_block_is_still_what_it_was():
    case = stack()
    names = list(case.model.state_dict())
    Checkpointing().apply(case.model)
    assert all(isinstance(block, Block) and type(block).__name__ == "Block" for block in case.model.blocks)
    assert list(case.model.state_dict()) == names
    assert list(blocks(case.model)) == [f"blocks.{number}" for number in range(5)]


def test_hooks_on_a_block_run_in_the_recomputation_too():
    case = stack()
    for block in case.model.blocks:
        block.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
    plain = one_step(case.model, case.loss)
    Checkpointing().apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []


def test_applying_twice_is_refused_and_so_is_undoing_beneath_what_came_later():
    model = stack().model
    undo = Checkpointing(every=2).apply(model)
    with pytest.raises(ValueError, match="already checkpointed. Undo that first"):
        Checkpointing().apply(model)
    kind = type(model.blocks[0])
    model.blocks[0].__class__ = type("Later", (kind,), {})
    with pytest.raises(RuntimeError, match="applied to the checkpointed blocks later"):
        undo()
    model.blocks[0].__class__ = kind
    undo()
    assert {type(block) for block in model.blocks} == {Block}
    undo()


@torch.library.custom_op("memviz_tests::drawing_attention", mutates_args=())
def drawing_attention(x: Tensor, dropout_p: float) -> Tensor:
    return x * (torch.rand_like(x) >= dropout_p) if dropout_p else x.clone()


def _save(ctx, inputs, output):
    ctx.save_for_backward(output != 0)


drawing_attention.register_autograd(lambda ctx, gradient: (gradient * ctx.saved_tensors[0], None), setup_context=_save)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_kept_attention_with_dropout_does_not_shift_later_random_numbers(dropout):
    class Drawing(Block):
        def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
            return super().forward(drawing_attention(x, dropout))

    torch.manual_seed(0)
    model = nn.Sequential(Drawing(8, 0.5), Drawing(8, 0.5))
    x = torch.randn(4, 8)
    plain = one_step(model, lambda model: model(x).square().mean())
    Checkpointing(keep="attention").apply(model)
    assert different(plain, one_step(model, lambda model: model(x).square().mean())) == []


# -- detection of blocks


def test_blocks_of_diffusers_and_transformers():
    assert list(blocks(ltx().model)) == [f"transformer_blocks.{number}" for number in range(4)]
    assert list(blocks(gpt2().model)) == [f"transformer.h.{number}" for number in range(4)]
    assert list(blocks(llama().model)) == [f"model.layers.{number}" for number in range(4)]


def test_every_outermost_list_of_alike_modules_counts():
    inside = nn.Sequential(Block(), Block())
    model = nn.Module()
    model.mixed = nn.Sequential(nn.Embedding(4, 8), Block(), Block(), nn.Linear(8, 4))
    model.nested = nn.ModuleList([nn.ModuleList([inside]), nn.ModuleList([nn.Sequential(Block(), Block())])])
    model.leaves = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model.shared = nn.ModuleList([model.mixed[1], Block()])
    assert list(blocks(model)) == ["mixed.1", "mixed.2", "nested.0", "nested.1", "shared.1"]


def test_layers_of_several_classes_count_where_each_says_it_can_be_checkpointed():
    class One(Block):
        gradient_checkpointing = False

    class Other(Block):
        gradient_checkpointing = False

    assert list(blocks(nn.ModuleList([One(), Other(), One()]))) == ["0", "1", "2"]
    assert list(blocks(nn.ModuleList([One(), Block(), One()]))) == []


def test_a_model_that_checkpoints_by_itself_is_refused():
    case = ltx()
    case.model.enable_gradient_checkpointing()
    with pytest.raises(ValueError, match=r"disable_gradient_checkpointing\(\)"):
        Checkpointing().apply(case.model)
    case.model.disable_gradient_checkpointing()
    Checkpointing().apply(case.model)


class _Counting(nn.Module):
    """Takes its own number from a list and counts on, as the decoder of Wan does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, scales: list[float], position: list[int]) -> Tensor:
        scale = scales[position[0]]
        position[0] += 1
        return self.layer(x).tanh() * scale


class _CountingStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Counting() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        position = [0]
        for block in self.blocks:
            x = block(x, scales=[1.0, 2.0, 3.0], position=position)
        assert position == [3]
        return x


def test_a_list_that_blocks_write_to_is_as_it_was_when_they_run_again():
    torch.manual_seed(0)
    model, x = _CountingStack(), torch.randn(2, 4)
    plain = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    Checkpointing().apply(model)
    again = torch.autograd.grad(model(x).sum(), [*model.parameters()])
    assert all(map(torch.equal, plain, again))


def test_a_function_of_the_users_runs_the_chosen_blocks():
    case = stack()
    plain = one_step(case.model, case.loss)
    seen = []

    def own(number, block, *args):
        seen.append(number)
        return checkpoint(block, *args, use_reentrant=False) if number else block(*args)

    for each in case.model.blocks:
        each.strides.clear()
    Checkpointing(every=2, function=own).apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    assert (seen, case.model.runs) == ([0, 2, 4], [1, 1, 2, 1, 2])


def as_published(model, *args):
    """Call checkpoint as diffusers does: the block, and its arguments by position."""
    if model.layer_index % 2 == 0:
        return checkpoint(model.__call__, *args, use_reentrant=False)
    return model(*args)


@pytest.mark.parametrize("make", [stack, ltx, llama])
def test_a_function_in_the_published_form_chooses_by_the_blocks_own_attributes(make):
    case, runs = make(), []
    plain = one_step(case.model, case.loss)
    for index, block in enumerate(blocks(case.model).values()):
        block.layer_index = index
        block.register_forward_pre_hook(lambda module, *_: runs.append(module.layer_index))
    undo = Checkpointing(function=as_published).apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    count = len(blocks(case.model))
    assert sorted(runs) == sorted([*range(count), *range(0, count, 2)])
    undo()
    assert different(plain, one_step(case.model, case.loss)) == []


def test_pytorchs_own_checkpoint_can_be_that_function():
    case = stack()
    plain = one_step(case.model, case.loss)
    for block in case.model.blocks:
        block.strides.clear()
    Checkpointing(function=functools.partial(checkpoint, use_reentrant=False)).apply(case.model)
    assert different(plain, one_step(case.model, case.loss)) == []
    assert case.model.runs == [2] * 5


def test_what_a_block_takes_by_name_reaches_a_function_by_position_and_the_rest_by_name():
    class Named(Block):
        def forward(self, x: Tensor, scale: Tensor | None = None, *, shift: float = 0.0) -> Tensor:
            return super().forward(x, scale) + shift

    class Calls(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Named() for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x=x, scale=torch.full((1,), 0.5), shift=2.0)
            return x

    seen = []

    def own(model, *args):
        assert isinstance(model, Named) and model.up.weight.requires_grad
        seen.append([type(arg) for arg in args])
        return checkpoint(model, *args, use_reentrant=False)

    torch.manual_seed(0)
    model, x = Calls(), torch.randn(2, 3, 8)
    plain = one_step(model, lambda each: each(x).sum())
    Checkpointing(function=own).apply(model)
    assert different(plain, one_step(model, lambda each: each(x).sum())) == []
    assert seen == [[Tensor, Tensor]] * 2


def test_a_function_whose_first_parameter_is_the_number_is_still_given_it():
    seen = []

    def own(number, *rest):
        seen.append(number)
        return rest[0](*rest[1:])

    def typed(place: int, *rest):
        return own(place, *rest)

    for function in (own, typed):
        case = stack()
        Checkpointing(every=2, function=function).apply(case.model)
        case.loss(case.model)
    assert seen == [0, 2, 4] * 2


def unet() -> Any:
    workload = make_workload("sdxl", {"mode": "training"}).small()
    torch.manual_seed(0)
    return workload.build(), workload


@pytest.mark.slow
def test_blocks_are_what_diffusers_checkpoints() -> None:
    """It hands them to a function; here are all of those, and as many transformer blocks."""
    model, workload = unet()
    theirs: list[nn.Module] = []

    def note(module: nn.Module, *args: Any) -> Any:
        theirs.append(module)
        return module(*args)

    model.enable_gradient_checkpointing(gradient_checkpointing_func=note)
    workload.loss(model(**workload.inputs(torch.device("cpu")))).backward()
    model.disable_gradient_checkpointing()
    ours = blocks(model)
    assert sum(type(block).__name__ == "BasicTransformerBlock" for block in ours.values()) == sum(
        type(block).__name__ == "BasicTransformerBlock" for block in theirs
    )
    assert set(ours.values()) >= set(theirs)
    assert "mid_block.attentions.0.transformer_blocks.0" in ours
