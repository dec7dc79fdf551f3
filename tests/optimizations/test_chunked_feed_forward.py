"""Chunked feed-forward: the same outputs and gradients in less memory, for every kind of feed-forward."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from optimizations.chunked_feed_forward import ChunkedFeedForward, feed_forwards
from optimizations.split_feed_forward import SplitFeedForward
from tests.optimizations.memory import Memory
from tests.optimizations.tiny import bert, different, flux, gpt2, llama, one_step, vit
from tests.optimizations.whole import Whole


class ScaledMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor, residual: torch.Tensor, *, scale: Any = 1.0) -> torch.Tensor:
        return residual + self.down(torch.relu(self.up(x))) * scale


@pytest.mark.parametrize("scale", [0.5, torch.tensor(0.5), torch.linspace(0, 1, 8), torch.rand(2, 5, 1)])
def test_further_tensors_are_cut_where_they_have_the_same_rows(scale: Any):
    torch.manual_seed(0)
    model, x, residual = ScaledMLP(), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    expected = model(x, residual, scale=scale)
    ChunkedFeedForward(tokens=3).apply(model)
    torch.testing.assert_close(model(x, residual, scale=scale), expected)
    with torch.no_grad():
        torch.testing.assert_close(model(x, residual=residual, scale=scale), expected)
    with pytest.raises(ValueError, match=r"ScaledMLP is given \(2, 1, 8\) beside \(2, 5, 8\) \(scale\)"):
        model(x, residual, scale=torch.ones(2, 1, 8))


@pytest.mark.parametrize(("make", "count"), [(gpt2, 4), (llama, 4), (bert, 4), (vit, 4), (flux, 5)])
def test_inner_tensors_are_never_of_more_tokens_than_that(make: Any, count: int):
    case, rows = make(), list[int]()

    def note(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if output.shape[-1] > inputs[0].shape[-1]:
            rows.append(output.shape[:-1].numel())

    found = list(feed_forwards(case.model))
    assert len(found) == count
    for _, module in found:
        for path, layer in module.named_modules():
            if hasattr(layer, "weight") and not re.search("norm|attention", path):
                layer.register_forward_hook(note)
    with torch.no_grad():
        case.loss(case.model)
        assert min(rows) > 3
        rows.clear()
        ChunkedFeedForward(tokens=3).apply(case.model)
        case.loss(case.model)
    assert max(rows) == 3


def test_dropout_is_drawn_again_for_backward_as_it_was():
    case = gpt2()
    ChunkedFeedForward(tokens=5).apply(case.model)
    assert different(one_step(case.model, case.loss), one_step(case.model, case.loss)) == []


def test_layers_that_were_exchanged_afterwards_are_called():
    """Not their weights are read, so that quantized ones and adapters will do."""
    model, x = Whole(), torch.randn(2, 9, 16)
    ChunkedFeedForward(tokens=4).apply(model)
    with torch.no_grad():
        before = model(x)
        model.blocks[0].ff[2] = nn.Sequential(model.blocks[0].ff[2], nn.Linear(16, 16))
        after = model(x)
        twin = Whole()
        twin.blocks[0].ff[2] = model.blocks[0].ff[2]
        torch.testing.assert_close(after, twin(x))
    assert not torch.allclose(before, after)


def test_a_feed_forward_that_is_cut_already_is_refused():
    model = Whole()
    SplitFeedForward(2).apply(model)
    with pytest.raises(ValueError, match="already replaced"):
        ChunkedFeedForward().check(model, training=False)


class MLP(nn.Sequential):
    """Named like a feed-forward, but it mixes tokens."""


@pytest.mark.parametrize("mixing", [nn.Softmax(dim=1), nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4)])
def test_a_module_in_which_tokens_may_see_each_other_is_not_taken_for_one(mixing: Any):
    assert list(feed_forwards(MLP(nn.Linear(4, 8), mixing, nn.Linear(8, 4)))) == []
    assert [name for name, _ in feed_forwards(MLP(nn.Linear(4, 8), nn.Softplus(), nn.Linear(8, 4)))] == [""]


def peak(model: nn.Module, x: torch.Tensor, *, gradients: bool) -> int:
    with Memory() as memory, torch.set_grad_enabled(gradients):
        memory.note([*model.parameters(), x])
        output = model(x)
        if gradients:
            output.mean().backward()
    return memory.peak_allocated


def test_inference_holds_input_output_and_two_pieces():
    tokens, width = 1 << 14, 512
    with torch.device("meta"):
        model, x = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)), None
        x = torch.empty(tokens, width)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    for piece in (1024, 2048, 4096):
        undo = ChunkedFeedForward(tokens=piece).apply(model)
        wide = 4 * width * 4 * piece
        assert peak(model, x, gradients=False) == weights + 2 * x.nbytes + 2 * wide
        undo()


def test_training_keeps_inputs_only_where_pieces_are_computed_again():
    with torch.device("meta"):
        model, x = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 64)), torch.empty(1 << 14, 64)
    whole = peak(model, x, gradients=True)
    inner = 1024 * (1 << 14) * 4
    for recompute, kept in ((True, 0), (False, 2)):
        undo = ChunkedFeedForward(tokens=1024, recompute=recompute).apply(model)
        assert kept * inner <= peak(model, x, gradients=True) < (kept + 0.7) * inner
        undo()
    assert whole > 2.9 * inner
