"""Feed-forwards whose matrices lie apart, or in one with attention's, and those of GPT-2, ViT and BERT, in slices."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from memviz.runner.plan import plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from optimizations import apply_all, weight_offload
from optimizations.checkpointing import Checkpointing
from optimizations.layerwise_casting import LayerwiseCasting
from optimizations.split_feed_forward import SplitFeedForward, feed_forwards
from optimizations.weight_offload import WeightOffload
from tests.optimizations.tiny import bert, different, flux, gpt2, hunyuan_video, llama, one_step, vit

MODELS = [gpt2, vit, bert, flux, hunyuan_video]
FOUND = {
    gpt2: [f"transformer.h.{n}.mlp" for n in range(4)],
    vit: [f"vit.layers.{n}.mlp" for n in range(4)],
    bert: [f"bert.encoder.layer.{n}" for n in range(4)],
    flux: [
        *("transformer_blocks.0.ff", "transformer_blocks.0.ff_context"),
        *(f"single_transformer_blocks.{n}" for n in range(3)),
    ],
    hunyuan_video: [
        "context_embedder.token_refiner.refiner_blocks.0.ff",
        *("transformer_blocks.0.ff", "transformer_blocks.0.ff_context"),
        *(f"single_transformer_blocks.{n}" for n in range(3)),
    ],
}


@pytest.mark.parametrize("make", MODELS)
def test_loss_and_gradients_are_equal_up_to_rounding_and_undone_to_the_bit(make: Any) -> None:
    case = make()
    case.model.eval()
    assert [name for name, _ in feed_forwards(case.model)] == FOUND[make]
    whole = one_step(case.model, case.loss)
    undo = SplitFeedForward(splits=4).apply(case.model)
    split = one_step(case.model, case.loss)
    copied = one_step(copy.deepcopy(case.model), case.loss)
    undo()
    assert different(split, copied) == []
    assert len(different(whole, split)) > 1
    for name, gradient in whole.items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-4, atol=1e-6)
    assert different(whole, one_step(case.model, case.loss)) == []
    assert not any("forward" in vars(module) for module in case.model.modules())


@pytest.mark.parametrize("make", MODELS)
@pytest.mark.parametrize("granularity", ["leaf", "block"])
def test_weights_that_rest_elsewhere_or_smaller_are_there_when_their_slices_are_read(
    make: Any, granularity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights at rest have the other sign, or are cast; outputs are those of the same without slices."""
    monkeypatch.setattr(weight_offload, "_on_host", lambda tensor: -tensor)
    monkeypatch.setattr(weight_offload, "_on_device", lambda tensor, device: -tensor)
    for other in (WeightOffload(granularity=granularity), LayerwiseCasting(skip="norm", granularity=granularity)):
        case = make()
        case.model.eval()
        losses = []
        for chosen in ([other], [SplitFeedForward(4), other]):
            undo = apply_all(case.model, chosen)
            with torch.no_grad():
                losses.append(case.loss(case.model))
            undo()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("make", [flux, bert])
def test_blocks_that_are_computed_again_wait_again(make: Any) -> None:
    case = make()
    case.model.eval()
    undo = apply_all(case.model, [SplitFeedForward(4)])
    plain = one_step(case.model.train(), case.loss)
    undo()
    undo = apply_all(case.model, [SplitFeedForward(4), Checkpointing()])
    assert different(plain, one_step(case.model, case.loss)) == []
    undo()


def test_an_adapter_that_comes_after_the_split_is_not_passed_over() -> None:
    class Adapted(nn.Linear):
        pass

    case = flux()
    SplitFeedForward(4).apply(case.model)
    case.model.single_transformer_blocks[0].proj_mlp = Adapted(32, 128)  # type: ignore[index, union-attr]
    with pytest.raises(ValueError, match="has changed: it computes with Adapted"):
        case.loss(case.model)
    case = flux()
    SplitFeedForward(4).apply(case.model)
    with pytest.raises(ValueError, match="its forward is replaced already"):
        SplitFeedForward(2).check(case.model, training=False)


def test_what_bears_the_names_of_gpt2_or_vit_and_computes_otherwise_is_not_taken_for_it() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.act, self.fc2 = nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.fc2(self.act(self.fc1(x)))

    assert list(feed_forwards(Scaled())) == []
    assert [name for name, _ in feed_forwards(llama().model)] == [f"model.layers.{n}.mlp" for n in range(4)]


@pytest.mark.parametrize("make", [gpt2, vit, bert])
def test_the_wide_inner_tensor_of_a_layer_never_exists_whole(make: Any) -> None:
    """What its activation is given; the head of BERT has one of its own."""
    case = make()
    case.model.eval()
    largest = []
    for applied in (False, True):
        undo = SplitFeedForward(4).apply(case.model) if applied else lambda: None
        sizes: list[int] = []
        hooks = [
            module.register_forward_hook(lambda _module, _inputs, output, sizes=sizes: sizes.append(output.shape[-1]))
            for name, module in case.model.named_modules()
            if type(module).__name__ in ("GELUActivation", "NewGELUActivation") and not name.startswith("cls.")
        ]
        with torch.no_grad():
            case.loss(case.model)
        largest.append(max(sizes))
        for hook in hooks:
            hook.remove()
        undo()
    assert largest[0] == 4 * largest[1]


@pytest.mark.parametrize("name", ["flux", "hunyuan_video"])
def test_the_peak_of_a_model_of_single_stream_blocks_moves(name: str) -> None:
    """At the published widths, where only blocks are fewer."""
    settings = {"double_layers": "1", "single_layers": "2"}
    peaks = []
    for chosen in ((), (("split_feed_forward", {"splits": "4"}),)):
        run = predict(plan_of(Request(name, settings, chosen, numerics=False)), lambda _: None).run
        peaks.append(run.peak_allocated_bytes - run.weights_bytes)
    assert peaks[1] < 0.85 * peaks[0]
