"""Changes and copies of a model after an optimization was applied, for every optimization.

The law: applied first and changed afterwards, or changed first and applied then, it is the same model. It computes
the same to the bit, keeps the same for backward, and undone it is the model without any optimization.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from optimizations import apply_all, attention_backend
from optimizations.allocator_settings import AllocatorSettings
from optimizations.attention_backend import AttentionBackend
from optimizations.checkpointing import Checkpointing
from optimizations.flat_gradients import FlatGradients
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward
from tests.marks import slow
from tests.optimizations.whole import WIDTH, Whole, add_lora, every_second

CASTING = LayerwiseCasting(skip="norm,down$,up$")
WAYS: dict[str, tuple[Any, ...]] = {
    "allocator settings": (AllocatorSettings(),),
    "attention": (AttentionBackend("math"),),
    "split": (SplitFeedForward(splits=4),),
    "casting": (CASTING,),
    "casting to bf16": (LayerwiseCasting(storage="bf16", skip="norm,down$,up$", granularity="block"),),
    "checkpointing": (Checkpointing(),),
    "a function": (Checkpointing(function=every_second),),
    "flat gradients": (FlatGradients(micro_batches=1),),
    "for training": (
        AttentionBackend("math"),
        SplitFeedForward(),
        Checkpointing(every=2),
        FlatGradients(micro_batches=1),
    ),
    "for inference": (AttentionBackend("math"), SplitFeedForward(), CASTING, Checkpointing()),
}


def saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(model: nn.Module) -> nn.Module:
    try:
        pickle.loads(pickle.dumps(torch.zeros(1).to(torch.float8_e4m3fn)))
    except AttributeError:  # PyTorch's own: an fp8 tensor is saved and copied, but not pickled
        if any(parameter.dtype is torch.float8_e4m3fn for parameter in model.parameters()):
            return saved(model)
    return pickle.loads(pickle.dumps(model))


def with_weights_of_another(model: nn.Module, **how: bool) -> nn.Module:
    other = Whole()
    for each in other.parameters():
        each.data = -each.data
    model.load_state_dict({name: each.detach() for name, each in other.state_dict().items()}, **how)
    return model.requires_grad_(next(model.parameters()).requires_grad)


def with_its_own_state(model: nn.Module) -> nn.Module:
    state = {name: each.clone() for name, each in model.state_dict().items()}
    model.load_state_dict(state)
    return model


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torch.save": saved,
    "a copy of a copy": lambda model: copy.deepcopy(pickled(copy.deepcopy(model))),
}
CHANGES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "nothing": lambda model: model,
    "to(bfloat16)": lambda model: model.to(torch.bfloat16),
    "half": lambda model: model.half(),
    "double": lambda model: model.double(),
    "half and float again": lambda model: model.half().float(),
    "cpu": lambda model: model.cpu(),
    "eval": lambda model: model.eval(),
    "state_dict": with_its_own_state,
    "load_state_dict": with_weights_of_another,
    "load_state_dict, assign": lambda model: with_weights_of_another(model, assign=True),
    "LoRA in attention": lambda model: add_lora(model, "attention"),
    "LoRA everywhere": lambda model: add_lora(model, ""),
}
REFUSED = {
    ("flat gradients", "double"): "which a sum in float32 cannot hold",
    ("for training", "double"): "which a sum in float32 cannot hold",
    ("casting to bf16", "half"): "save nothing when stored in bf16",
    ("casting to bf16", "to(bfloat16)"): "save nothing when stored in bf16",
    ("split", "LoRA everywhere"): "Undo the split first",
    ("for training", "LoRA everywhere"): "Undo the split first",
    ("for inference", "LoRA everywhere"): "Undo the split first",
}


@dataclass(frozen=True)
class Seen:
    """Outputs and gradients of a model, and the tensors saved for backward."""

    tensors: dict[str, Tensor]
    kept: list[tuple[int, ...]]
    """Shapes of tensors saved for backward, without the weights."""
    rests: dict[str, torch.dtype]
    """Dtypes of its weights at rest."""

    def differs(self, other: Seen) -> list[str]:
        assert self.tensors.keys() == other.tensors.keys()
        found = [name for name, each in self.tensors.items() if not torch.equal(each, other.tensors[name])]
        found += [] if sorted(self.kept) == sorted(other.kept) else ["kept"]
        return found + [name for name, each in self.rests.items() if other.rests[name] is not each]


def seen(model: nn.Module) -> Seen:
    torch.manual_seed(1)
    x, kept = torch.randn(2, 6, WIDTH), []
    model.zero_grad()
    with torch.no_grad():
        outputs = {"output": model(x).detach()}
    with saved_tensors_hooks(lambda each: kept.append(tuple(each.shape)) or each, lambda each: each):
        loss = model(x).float().square().mean()
    if loss.requires_grad:
        loss.backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
    return Seen({**outputs, **gradients}, kept, {name: each.dtype for name, each in model.named_parameters()})


def plain(way: str) -> nn.Module:
    """Weights that are cast cannot be trained."""
    casts = any(isinstance(each, LayerwiseCasting) for each in WAYS[way])
    return Whole().requires_grad_(not casts)


def test_a_model_from_another_process_takes_its_choice_of_kernel_along(monkeypatch):
    model = Whole()
    undo = AttentionBackend("math").apply(model)
    expected, text = seen(model), pickle.dumps(model)
    undo()
    others = seen(pickle.loads(text))
    before = list(attention_backend._in_force.choices)
    monkeypatch.setattr(attention_backend.os, "getpid", lambda: -1)
    twin = pickle.loads(text)
    assert (seen(twin).differs(expected), others.differs(seen(model)) == [] == expected.differs(others)) == ([], False)
    attention_backend._in_force.hold(before)


each_way = pytest.mark.parametrize("way", [*list(WAYS)[-2:], *slow(*list(WAYS)[:-2])])


@each_way
@pytest.mark.parametrize("change", CHANGES)
def test_changed_afterwards_it_is_what_it_would_be_changed_before(way, change):
    expected = CHANGES[change](plain(way))
    unchanged = seen(copy.deepcopy(expected))
    model = plain(way)
    undo = apply_all(model, WAYS[way])
    seen(model)
    model = CHANGES[change](model)
    if words := REFUSED.get((way, change)):
        with pytest.raises((ValueError, RuntimeError), match=words):
            seen(model)
    else:
        found = seen(model)
        undo_expected = apply_all(expected, WAYS[way])
        assert found.differs(seen(expected)) == []
        undo_expected()
    undo()
    assert seen(model).differs(unchanged) == []


@each_way
@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_optimized_as_the_model_is_and_lives_on_when_that_is_undone(way, how):
    model = plain(way)
    unchanged = seen(copy.deepcopy(model))
    undo = apply_all(model, WAYS[way])
    seen(model)
    twin = COPIES[how](model)
    assert {id(parameter) for parameter in twin.parameters()} & {
        id(parameter) for parameter in model.parameters()
    } == set()
    expected = seen(model)
    assert seen(twin).differs(expected) == []
    undo()
    assert seen(model).differs(unchanged) == []
    if any(isinstance(each, AttentionBackend) for each in WAYS[way]):
        undo = AttentionBackend("math").apply(Whole())  # that choice is the process's, and ends for copies too
    assert seen(twin).differs(expected) == []
    undo()


@each_way
@pytest.mark.parametrize("change", ["nothing", "half", "to(bfloat16)", "load_state_dict, assign"])
def test_undone_before_the_next_forward_pass_it_is_the_plain_model_too(way, change):
    unchanged = seen(CHANGES[change](plain(way)))
    model = plain(way)
    undo = apply_all(model, WAYS[way])
    model = CHANGES[change](model)
    undo()
    assert seen(model).differs(unchanged) == []
    assert [type(module) for module in model.modules()] == [type(module) for module in Whole().modules()]
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert list(model.named_buffers()) == []
