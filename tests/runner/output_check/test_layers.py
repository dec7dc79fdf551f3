"""Which layers there are, and each of them alone and in a row."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.difference import difference
from memviz.runner.output_check.layers import LayerRecorder, blocks_of, parts_of
from tests.runner.output_check.models import GEGLU, FeedForward, stack, tokens


def test_blocks_are_the_outermost_entries_of_lists():
    model = stack(count=2, residual=True)()
    assert blocks_of(model) == ["layers.0", "layers.1"]
    assert parts_of(model, "layers.0") == ["layers.0.ff"]


def test_entries_of_a_sequence_are_blocks_if_they_are_composed():
    model = nn.Sequential(FeedForward(GEGLU, 4, 8), FeedForward(GEGLU, 4, 8))
    assert blocks_of(model) == ["0", "1"]
    assert parts_of(model, "0") == []


def test_a_model_without_lists_has_its_children():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.second = nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)

    assert blocks_of(Model()) == ["first", "second"]


def only_in(layer: int, change: float):
    """Scales the last weight of one layer, in the changed model only."""

    def apply(model: nn.Module):
        with torch.no_grad():
            model.layers[layer].ff.net[2].weight.mul_(change)
        return lambda: None

    return apply


def test_a_layer_alone_shows_its_own_error_and_the_chain_carries_it_on():
    found = compare_outputs(stack(count=4, residual=True), tokens(), only_in(1, 1.5), training=False, claim="rounding")
    rows = {layer.path: layer for layer in found.layers}
    assert [path for path, each in rows.items() if not each.alone.bitwise] == ["layers.1", "layers.1.ff"]
    chained = [path for path, each in rows.items() if each.chained and not each.chained.bitwise]
    assert chained == ["layers.1", "layers.2", "layers.3"]
    assert [layer.block for layer in found.layers] == [True, False] * 4
    assert found.verdict.place == "layers.1.ff"


def test_alone_is_what_the_layer_gives_on_the_same_input():
    build, inputs = stack(count=2, residual=True), tokens()
    model, changed = build(), build()
    only_in(0, 1.5)(changed)
    with torch.no_grad():
        x = inputs["hidden_states"]
        by_hand = difference(model.layers[0].ff(x), changed.layers[0].ff(x))
    found = compare_outputs(build, inputs, only_in(0, 1.5), training=False, claim="rounding")
    assert next(layer for layer in found.layers if layer.path == "layers.0.ff").alone == by_hand


def test_recording_leaves_no_hook_behind():
    model = stack(count=2, residual=True)()
    recorder = LayerRecorder(model, torch.device("cpu"))
    with pytest.raises(ZeroDivisionError), recorder.recording():
        model(**tokens())
        raise ZeroDivisionError
    assert list(recorder.calls) == ["layers.0.ff", "layers.0", "layers.1.ff", "layers.1"]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_keyword_arguments_and_tuples_are_recorded():
    model = stack(count=1, residual=True)()
    recorder = LayerRecorder(model, torch.device("cpu"))
    with recorder.recording():
        model(**tokens())
    call = recorder.calls["layers.0"]
    assert call.arguments[1] == {"scale": 1.0}
    assert list(call.outputs) == ["0"]


class InPlace(nn.Module):
    """Writes over its input, as some blocks do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(self.linear(x))


def test_a_layer_that_works_in_place_is_fed_what_it_got():
    def build() -> nn.Module:
        model = stack(count=2, residual=True)()
        torch.manual_seed(0)
        model.layers[0] = InPlace()
        return model

    found = compare_outputs(build, tokens(), only_in(1, 1.5), training=False, claim="rounding")
    assert next(layer for layer in found.layers if layer.path == "layers.0").alone.bitwise


def test_a_layer_that_is_gone_is_noted():
    def apply(model: nn.Module):
        model.layers = nn.Sequential(nn.Sequential(*model.layers))
        return lambda: None

    found = compare_outputs(plain_stack, tokens(), apply, training=False, claim="rounding")
    assert found.outputs[0].difference.bitwise
    changed = compare_outputs(plain_stack, tokens(), wrapped_and_wrong, training=False, claim="rounding")
    assert "layers.1 is not in the changed model." in changed.notes
    assert changed.verdict.ok is False


def plain_stack() -> nn.Module:
    return stack(count=2, residual=False)()


def wrapped_and_wrong(model: nn.Module):
    with torch.no_grad():
        model.layers[1].net[2].bias.mul_(1.5)
    model.layers = nn.Sequential(nn.Sequential(*model.layers))
    return lambda: None


def test_a_layer_with_a_cache_is_not_fed_twice():
    transformers = pytest.importorskip("transformers")

    def build() -> nn.Module:
        torch.manual_seed(0)
        sizes = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8}
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, use_cache=True)
        )

    def apply(model: nn.Module):
        with torch.no_grad():
            model.transformer.h[1].mlp.c_proj.weight.mul_(1.5)
        return lambda: None

    ids = {"input_ids": torch.arange(8)[None]}
    found = compare_outputs(build, ids, apply, training=False, claim="rounding")
    rows = {layer.path: layer.alone.bitwise for layer in found.layers}
    assert rows["transformer.h.0"]
    assert rows["transformer.h.1.attn"]
    assert not rows["transformer.h.1"]
    assert found.verdict.place == "transformer.h.1.mlp"
