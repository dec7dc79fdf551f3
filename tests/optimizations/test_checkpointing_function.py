"""Checkpointing by a function of the user's own, in either form that it may have."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from optimizations.checkpointing import Checkpointing, blocks
from tests.optimizations.tiny import Block, different, llama, ltx, one_step, stack


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
    """The form that diffusers calls: the block, whose attributes it reads, and what it gets, by position."""
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
