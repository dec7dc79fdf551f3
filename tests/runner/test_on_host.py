"""Weights that get small before they come to the card: it never holds the wide ones, and computes the same bits."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from memviz.runner.outcome import Outcome, code_of
from memviz.runner.plan import Plan, plan_of
from memviz.runner.predict.predicted_run import predict
from memviz.runner.request import Request
from memviz.runner.step import convert_on_host
from memviz.trace.model import Action, Phase
from optimizations import apply_all
from tests.optimizations.tiny import llama

_FLUX = {"double_layers": "1", "single_layers": "2"}
_CAST = ("layerwise_casting", {"skip": ""})
SHRINKING: tuple[tuple[str, dict[str, str]], ...] = (
    _CAST,
    ("weight_quantization", {}),
    ("weight_quantization", {"bits": "4"}),
    ("weight_quantization", {"codes": "float8", "keep": "false"}),
)


def planned(conversion: Any, *chosen: tuple[str, dict[str, str]]) -> Plan:
    return plan_of(Request("flux", _FLUX, chosen, warmup=0, numerics=False, conversion=conversion))


def predicted(conversion: Any, *chosen: tuple[str, dict[str, str]]) -> Outcome:
    return predict(planned(conversion, *chosen), lambda _: None)


def most_before_forward(done: Outcome) -> int:
    """Live bytes at the highest, until the model first computes."""
    device = done.trace.devices[0]
    events, labels = device.events, device.event_labels
    assert labels is not None
    first = int(np.argmax(labels.phase == Phase.FORWARD))
    signs = np.select([events.action == Action.ALLOC, events.action == Action.FREE_COMPLETED], [1, -1], 0)
    return int(np.cumsum(signs * events.size)[:first].max())


@pytest.mark.parametrize("shrinking", SHRINKING[:2], ids=lambda each: each[0])
def test_the_card_never_holds_more_than_the_small_weights_until_it_computes(shrinking):
    usual, on_host = predicted("before", shrinking), predicted("on-host", shrinking)
    wide = predicted("before").run.weights_bytes
    at_rest = on_host.run.weights_bytes
    assert usual.run.weights_bytes == at_rest
    assert most_before_forward(usual) >= wide
    # Beside the weights there are the inputs, and what codes are scaled by.
    assert at_rest <= most_before_forward(on_host) < at_rest + wide // 16
    assert on_host.run.peak_allocated_bytes == pytest.approx(usual.run.peak_allocated_bytes, rel=0.01)
    assert (on_host.run.flops, on_host.run.bytes_moved) == (usual.run.flops, usual.run.bytes_moved)


def test_where_little_is_on_the_card_at_once_the_load_decides_what_it_must_hold():
    chosen = (_CAST, ("weight_offload", {"granularity": "leaf"}))
    usual, on_host = (predicted(conversion, *chosen) for conversion in ("before", "on-host"))
    assert usual.run.fit is not None and on_host.run.fit is not None
    at_rest = on_host.run.weights_bytes
    assert usual.run.fit.peak_reserved_bytes - on_host.run.fit.peak_reserved_bytes > at_rest // 3
    assert most_before_forward(usual) > 1.9 * at_rest and most_before_forward(on_host) < 1.1 * at_rest
    assert on_host.run.window.endswith("loading counts")


def moved(model: nn.Module) -> nn.Module:
    """As `.to` another device moves it: other memory, the same values."""
    return model._apply(lambda tensor: tensor.clone())


@pytest.mark.parametrize("shrinking", SHRINKING, ids=str)
@torch.no_grad()
def test_outputs_and_what_undo_brings_back_are_those_of_converting_on_the_card(shrinking):
    chosen = (("split_feed_forward", {"splits": "2"}),) if shrinking is _CAST else ()
    plan, case = planned("on-host", *chosen, shrinking), llama()
    case.model.eval()
    plain = case.loss(case.model)
    losses: list[Tensor] = []
    weights: list[dict[str, Tensor]] = []
    for on_host in (True, False):
        model = copy.deepcopy(case.model)
        if on_host:
            undo = apply_all(model, plan.on_host)
            moved(model)
        else:
            undo = apply_all(moved(model), plan.optimizations)
        losses += [case.loss(model), case.loss(model)]
        undo()
        weights.append({name: each.clone() for name, each in model.named_parameters()})
    assert losses[0] != plain
    assert all(torch.equal(loss, losses[0]) for loss in losses)
    assert weights[0].keys() == weights[1].keys() == dict(case.model.named_parameters()).keys()
    assert all(torch.equal(each, weights[1][name]) for name, each in weights[0].items())


def test_all_up_to_what_shrinks_is_applied_before_and_the_rest_on_the_card():
    chosen = [(name, {}) for name in ("weight_offload", "layerwise_casting", "split_feed_forward", "attention_backend")]
    plan = planned("on-host", *chosen)
    assert [change.name for change in plan.on_host] == ["split_feed_forward", "layerwise_casting"]
    code = code_of(plan.optimizations, plan.on_host)
    places = [code.index(text) for text in ("LayerwiseCasting(", 'model.to("cuda")', "WeightOffload(")]
    assert places == sorted(places)
    assert planned("before", *chosen).on_host == planned("on-host", ("weight_offload", {})).on_host == ()
    with torch.device("meta"):
        model = plan.workload.build()
    convert_on_host(plan, model)
    assert {weight.dtype for weight in model.parameters() if weight.dim() > 1} >= {torch.float8_e4m3fn}
    assert not any(
        "WeightOffload" in str(hook) for module in model.modules() for hook in module._forward_hooks.values()
    )
