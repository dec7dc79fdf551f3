"""The command and the code shown for a run: the command repeats the request, and the code runs on a model."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest
import torch

from memviz.commands import run as command
from memviz.runner.outcome import code_of
from memviz.runner.plan import command_of, plan_of
from memviz.runner.request import Request
from memviz.runner.step import make_optimizer
from optimizations import OPTIMIZATIONS
from tests.optimizations.tiny import autoencoder, llama

CHANGED: dict[str, dict[str, str]] = {
    "checkpointing": {"every": "2"},
    "split_feed_forward": {"splits": "2"},
    "flat_gradients": {"how": "flat"},
    "attention_backend": {"backend": "math"},
}

FOR: dict[str, tuple[str, Any, dict[str, str]]] = {
    "vae_slicing": ("vae", autoencoder, {}),
    "vae_tiling": ("vae", autoencoder, {}),
    "kv_cache": ("llama", llama, {"cache": "true"}),
    "gradient_accumulation": ("llama", llama, {"batch": "2"}),
}
"""Workloads of optimizations that do not apply to every language model."""


def parsed(line: str) -> Request:
    parser = argparse.ArgumentParser()
    command.COMMANDS["run"].add_arguments(parser)
    python, dash, module, name, *arguments = shlex.split(line)
    assert (python, dash, module, name) == ("python", "-m", "memviz", "run")
    return command._request(parser.parse_args(arguments))


@pytest.mark.parametrize("optimizer", ["none", "adamw", "adamw-for-loop"])
@pytest.mark.parametrize("name", [each.name for each in OPTIMIZATIONS])
def test_the_shown_command_asks_for_the_same_run(name: str, optimizer: Any) -> None:
    request = Request(
        "transformer_block",
        {"batch": "2"},
        ((name, CHANGED.get(name, {})),),
        card="NVIDIA GeForce RTX 4090",
        optimizer=optimizer,
        warmup=2,
        steps=3,
        keep_output=True,
        numerics=False,
        torch="2.6",
    )
    line = command_of(request)
    assert f"--optimizer {optimizer}" in line
    assert parsed(line) == request


@pytest.mark.parametrize("knobs", [True, False])
@pytest.mark.parametrize("kind", OPTIMIZATIONS, ids=lambda kind: kind.name)
def test_the_shown_code_runs_on_a_model(kind: Any, knobs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, "")
    knobs_on = CHANGED.get(kind.name, {}) if knobs else {}
    training = kind.needs != "inference"
    workload, tiny, settings = FOR.get(kind.name, ("llama", llama, {}))
    settings = {"mode": "training" if training else "inference", **settings}
    optimizer: Any = "adamw" if training else "none"
    request = Request(workload, settings, ((kind.name, knobs_on),), optimizer=optimizer)
    code = code_of(plan_of(request).optimizations)
    model, tokens = tiny().model, torch.arange(8).reshape(2, 4)
    names: dict[str, Any] = {"model": model, "inputs": {"input_ids": tokens, "labels": tokens}}
    names["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    exec(compile(code, kind.name, "exec"), names)
    names.get("undo", lambda: None)()


def test_the_shown_code_of_several_names_what_is_its_readers_and_takes_its_step_last() -> None:
    names = ("allocator_settings", "gradient_accumulation", "optimizer_in_backward", "lora")
    request = Request("llama", {"batch": "4"}, tuple((name, {}) for name in names), optimizer="adamw-fused")
    code = code_of(plan_of(request).optimizations, optimizer=request.optimizer)
    inside = ("os.environ", "try:", "# Yours: model, inputs.", "Lora(", "OptimizerInBackward(", "AdamW(", "for piece")
    places = [code.index(text) for text in inside]
    assert places == sorted(places)
    code = code_of(plan_of(Request("llama", {"batch": "4"}, (("gradient_accumulation", {}),))).optimizations)
    assert "# Yours: model, inputs, optimizer." in code


def test_the_shown_code_of_several_can_be_undone_one_by_one() -> None:
    chosen = (("checkpointing", {}), ("split_feed_forward", {}), ("attention_backend", {"backend": "math"}))
    code = code_of(plan_of(Request("transformer_block", {}, chosen)).optimizations)
    case = llama()
    before = {name: module.__dict__.get("forward") for name, module in case.model.named_modules()}
    names: dict[str, Any] = {"model": case.model, "torch": torch}
    exec(compile(code, "several", "exec"), names)
    undone = [names[each] for each in names if each.startswith("undo")]
    assert len(undone) == 3
    for undo in reversed(undone):
        undo()
    assert {name: module.__dict__.get("forward") for name, module in case.model.named_modules()} == before


@pytest.mark.parametrize(("kind", "expected"), [("adamw-fused", (True, None)), ("adamw-for-loop", (None, False))])
def test_the_shown_code_makes_the_optimizer_that_was_predicted(kind: Any, expected: tuple[Any, Any]) -> None:
    """A search finds it: without its line the code would be of another way."""
    request = Request("transformer_block", {}, (("optimizer_in_backward", {}),), optimizer=kind)
    code = code_of(plan_of(request).optimizations, optimizer=request.optimizer)
    names: dict[str, Any] = {"model": llama().model}
    exec(compile(code, kind, "exec"), names)
    made = names["optimizer"].defaults
    assert (made["fused"], made["foreach"]) == expected
    model = torch.nn.Linear(2, 2)
    ours = make_optimizer(kind, model)
    assert ours is not None and (bool(ours.defaults["fused"]), bool(ours.defaults["foreach"])) == tuple(
        map(bool, expected)
    )
