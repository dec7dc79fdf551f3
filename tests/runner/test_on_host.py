"""Weights cast, quantized or offloaded on the host: the GPU never holds the originals, and computes the same bits; a
run's peak is the same in every view."""

import copy
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from memviz.allocator.context import context_on
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.predictor.accuracy import fit_on
from memviz.predictor.assumptions import NoSuchKernel
from memviz.predictor.estimate import Estimate
from memviz.runner.execute import predict
from memviz.runner.plan import Plan, code_of, plan_of
from memviz.runner.predicted_script import ScriptOrder, parse_optimizations, predict_script
from memviz.runner.record.script import load_script
from memviz.runner.request import Request, run_json
from memviz.runner.step import Outcome, convert_on_host
from memviz.runner.workloads import WORKLOADS
from memviz.trace.model import Action, Phase
from optimizations import OPTIMIZATIONS, apply_all
from tests.facts import missing
from tests.marks import slow
from tests.optimizations.tiny import llama
from tests.runner.runs import GIB

_FLUX = {"double_layers": "1", "single_layers": "2"}
_CAST = ("layerwise_casting", {"skip": ""})
SHRINKING: tuple[tuple[str, dict[str, str]], ...] = (
    _CAST,
    ("weight_quantization", {}),
    ("weight_quantization", {"bits": "4"}),
    ("weight_quantization", {"codes": "float8", "keep": "false"}),
)


def planned(load: Any, *chosen: tuple[str, dict[str, str]]) -> Plan:
    return plan_of(Request("flux", _FLUX, chosen, warmup=0, numerics=False, load=load))


def predicted(load: Any, *chosen: tuple[str, dict[str, str]]) -> Outcome:
    return predict(planned(load, *chosen), lambda _: None)


def most_before_forward(done: Outcome) -> int:
    """Live bytes at the highest, until the model first computes."""
    device = done.trace.devices[0]
    events, labels = device.events, device.event_labels
    assert labels is not None
    first = int(np.argmax(labels.phase == Phase.FORWARD))
    signs = np.select([events.action == Action.ALLOC, events.action == Action.FREE_COMPLETED], [1, -1], 0)
    return int(np.cumsum(signs * events.size)[:first].max())


@pytest.mark.slow
@pytest.mark.parametrize("shrinking", SHRINKING[:2], ids=lambda each: each[0])
def test_the_card_never_holds_more_than_the_small_weights_until_it_computes(shrinking):
    on_device, on_host = predicted("device", shrinking), predicted("host", shrinking)
    wide = predicted("device").run.weights_bytes
    at_rest = on_host.run.weights_bytes
    assert on_device.run.weights_bytes == at_rest
    # In addition to the weights: the inputs, and the scales of the codes.
    assert at_rest <= most_before_forward(on_host) < at_rest + wide // 16
    assert on_device.run.peak_allocated_bytes >= most_before_forward(on_device) >= wide
    assert on_device.run.peak_while_loading and not on_host.run.peak_while_loading
    assert on_host.run.peak_allocated_bytes < on_device.run.peak_allocated_bytes
    assert (on_host.run.flops, on_host.run.bytes_moved) == (on_device.run.flops, on_device.run.bytes_moved)


@pytest.mark.slow
def test_where_little_is_on_the_card_at_once_the_load_decides_what_it_must_hold():
    chosen = (_CAST, ("weight_offload", {"granularity": "leaf"}))
    on_device, on_host = (predicted(load, *chosen) for load in ("device", "host"))
    at_rest = on_host.run.weights_bytes
    assert on_device.run.peak_reserved_bytes - on_host.run.peak_reserved_bytes > at_rest // 3
    assert most_before_forward(on_device) > 1.9 * at_rest and most_before_forward(on_host) < at_rest // 8


def moved(model: nn.Module) -> nn.Module:
    """Move the model as `.to(device)` does: new memory, the same values."""
    return model._apply(lambda tensor: tensor.clone())


@pytest.mark.parametrize("shrinking", SHRINKING, ids=str)
@torch.no_grad()
def test_outputs_and_what_undo_brings_back_are_those_of_converting_on_the_card(shrinking):
    chosen = (("split_feed_forward", {"splits": "2"}),) if shrinking is _CAST else ()
    plan, case = planned("host", *chosen, shrinking), llama()
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
    plan = planned("host", *chosen)
    assert [change.name for change in plan.on_host] == ["split_feed_forward", "layerwise_casting"]
    code = code_of(plan.optimizations[:-1], plan.on_host)
    places = [code.index(text) for text in ("SplitFeedForward(", "LayerwiseCasting(", 'model.to("cuda")')]
    assert places == sorted(places)
    assert planned("device", *chosen).on_host == planned("host", ("weight_offload", {})).on_host == ()
    with torch.device("meta"):
        model = plan.workload.build()
    convert_on_host(plan, model)
    assert {weight.dtype for weight in model.parameters() if weight.dim() > 1} >= {torch.float8_e4m3fn}
    assert not any(
        "WeightOffload" in str(hook) for module in model.modules() for hook in module._forward_hooks.values()
    )


@pytest.mark.parametrize("conversion, load", [("before", "host"), ("on-host", "host"), ("measured", "device")])
def test_the_older_spelling_of_where_weights_are_is_read(conversion, load):
    assert Request.from_json({"workload": "flux", "conversion": conversion}).load == load
    assert Request.from_json(Request("flux", load=load).as_json()).load == load


@pytest.mark.parametrize("granularity", ["block", *slow("leaf", "model")])
def test_weights_at_the_peak_are_those_that_are_on_the_card_then(granularity):
    """All of them where the model comes as a whole, and little where each layer comes by itself."""
    run = predicted("host", ("weight_offload", {"granularity": granularity})).run
    assert run.weights_at_peak_bytes is not None
    share = run.weights_at_peak_bytes / run.weights_bytes
    assert share > 0.99 if granularity == "model" else share < (0.25 if granularity == "leaf" else 0.9)


_SCRIPT = """
import torch
from torch import nn

with torch.device("{made_on}"):
    model = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(8)])
model.eval().requires_grad_(False){move}
with torch.no_grad():
    model(torch.ones(8, 1024, device="cuda"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("change", ["weight_offload", "layerwise_casting:skip=", "weight_quantization"])
def test_a_scripts_model_is_converted_before_it_moves_or_its_peak_says_that_it_was_whole(change, tmp_path):
    whole = 8 * 4 * 1024 * 1025

    def predicted_script(move: str, made_on: str = "cpu") -> Estimate:
        path = tmp_path / "infer.py"
        path.write_text(_SCRIPT.format(move=move, made_on=made_on))
        order = ScriptOrder(optimizations=parse_optimizations([change], []))
        done = predict_script(load_script(str(path), []), order)
        assert (done.exit_status, done.applied) == (0, {change.partition(":")[0]: ["Sequential"]})
        return done.estimate

    for move in (".cuda()", '.to("cuda")', ".to(torch.ones(1, device='cuda'))"):
        loaded = predicted_script(move)
        assert loaded.peak_allocated < whole and "moves Sequential" not in str(loaded.notes)
    there = predicted_script("", made_on="cuda")
    assert there.peak_allocated >= whole
    assert missing(str(there.notes), "script", "Sequential") == []


# -- one peak


CONVERTING = ("layerwise_casting", "weight_quantization", "weight_offload")
"""Optimizations of weights, which determine how a model is loaded."""
LARGE = ("sdxl", "sdxl_pipeline", "wan_pipeline")
"""Workloads whose predictions take seconds: they come as they are."""


def combinations(workload: str) -> Iterator[Plan]:
    """The workload at reduced size as it is and with a sixth of the optimizations, loaded both ways where that differs.

    Each optimization comes with a sixth of the workloads; those of autoencoders with the autoencoder.
    """
    kinds = OPTIMIZATIONS[[kind.name for kind in WORKLOADS].index(workload) % 6 :: 6]
    if workload in ("vae", *LARGE):
        kinds = [kind for kind in OPTIMIZATIONS if workload == "vae" and kind.name.startswith("vae_")]
    for name, needs in (("", "any"), *((kind.name, kind.needs) for kind in kinds)):
        mode = {} if workload == "transformer_block" else {"mode": needs.replace("any", "inference")}
        for load in ("host", "device") if name in CONVERTING else ("host",):
            chosen = ((name, {}),) if name else ()
            with suppress(UsageError):
                plan = plan_of(Request(workload, mode, chosen, warmup=0, numerics=False, load=load))
                yield replace(plan, workload=plan.workload.small())


@pytest.mark.slow
@pytest.mark.parametrize("workload", [kind.name for kind in WORKLOADS])
def test_what_fits_shows_no_figure_above_the_cards_and_what_does_not_fit_shows_one(workload):
    for plan in combinations(workload):
        try:
            done = predict(plan, lambda _: None, figures_only=True)
        except (ValueError, NoSuchKernel):
            continue  # not for this model
        run, context = done.run, context_on(plan.card.name)
        assert timeline(done.trace.devices[0]).peak_bytes == run.peak_requested_bytes
        for share in (0.5, 0.9, 1, 1.1):
            usable = int(run.peak_reserved_bytes * share)
            card = replace(plan.card, memory_gib=(usable + context.most_bytes) / GIB)
            fit = fit_on(done.trace, card, run.peak_reserved_bytes, run.expected_error)
            json = run_json(replace(run, fit=fit))
            shown = {name: json[f"peak_{name}_bytes"] for name in ("allocated", "reserved", "reserved_on_card")}
            if json["fits"] or json["fit"] == "yes":
                assert max(shown["allocated"], shown["reserved_on_card"]) <= usable, (run.label, run.mode)
            if not json["fits"] or json["fit"] == "no":
                assert shown["reserved"] == usable + fit.too_much_bytes > usable, (run.label, run.mode)
