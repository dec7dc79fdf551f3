"""The command and the code shown for a run: the command repeats the request, and the code runs on a model."""

import argparse
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from memviz.commands import run as command
from memviz.runner.plan import code_of, library_code_of, plan_of
from memviz.runner.request import Request, command_of
from memviz.runner.step import make_optimizer
from optimizations import OPTIMIZATIONS, check_together
from optimizations.kv_cache import KvCache
from tests import forked
from tests.house.repository import ROOT
from tests.optimizations.tiny import llama
from tests.second_process import OF_RUNS

CHANGED: dict[str, dict[str, str]] = {
    "checkpointing": {"every": "2"},
    "split_feed_forward": {"splits": "2"},
    "flat_gradients": {"how": "flat"},
    "attention_backend": {"backend": "math"},
}

PROGRAM = ROOT / "tests" / "house" / "printed_code.py"
KNOBS: dict[str, dict[str, str]] = {
    "activation_offload": {"least_mib": "0"},
    "attention_backend": {"backend": "math"},
    "chunked_cross_entropy": {"tokens": "4"},
    "chunked_feed_forward": {"tokens": "4"},
}
"""With an effect on a small model."""
NO_EFFECT_ON_A_VAE = {"split_feed_forward", "chunked_feed_forward", "weight_quantization"}
NEEDS = {"weight_offload": "accelerate", "gradient_accumulation": "accelerate", "from_pretrained": "bitsandbytes"}


def request_of(*names: str, workload: str = "", knobs: Mapping[str, Mapping[str, str]] = KNOBS) -> Request:
    """A request for these together, on a workload that they have an effect on."""
    kinds = [kind for kind in OPTIMIZATIONS if kind.name in names]
    training = all(kind.needs != "inference" for kind in kinds)
    settings = {"mode": "training" if training else "inference"}
    settings |= {"cache": "true"} if "kv_cache" in names else {}
    settings |= {"batch": "2"} if "gradient_accumulation" in names else {}
    workload = workload or ("vae" if any(name.startswith("vae") for name in names) else "llama")
    chosen = tuple((name, knobs.get(name, {})) for name in names)
    return Request(workload, settings, chosen, optimizer="adamw" if training else "none")


def code_for(*names: str) -> str:
    plan = plan_of(request_of(*names))
    return code_of(plan.optimizations, plan.on_host, plan.request.optimizer)


def pairs() -> Iterator[tuple[str, ...]]:
    """Yield what goes together. Weights that are cast are trained by adapters alone."""
    for one, other in combinations(OPTIMIZATIONS, 2):
        names = {one.name, other.name}
        needs = {one.needs, other.needs}
        try:
            check_together([one(), other()])
        except ValueError:
            continue
        of_vae = any(name.startswith("vae") for name in names)
        if needs == {"training", "inference"} or (of_vae and names & {"kv_cache", *NO_EFFECT_ON_A_VAE}):
            continue
        adapted = "layerwise_casting" in names and "training" in needs
        yield tuple(kind.name for kind in OPTIMIZATIONS if kind.name in names | ({"lora"} if adapted else set()))


def wrong(codes: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Run each code in a script outside of the checkout, and return what was wrong with its effect."""
    # There is no other device here.
    texts = {name: re.sub("(['\"])cuda\\1", "'cpu'", code) for name, code in codes.items()}
    given = folder / "codes.json"
    given.write_text(json.dumps(texts))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    with given.open() as file:
        done = forked.run([str(PROGRAM), str(folder)], of=OF_RUNS, stdin=file, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    assert results.keys() == codes.keys()
    is_module = re.compile(r"(memviz\.optimizations\.\w+ ?| )*").fullmatch
    return {name: result for name, result in results.items() if not is_module(result)}


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


@pytest.mark.slow
def test_the_shown_code_of_all_of_all_pairs_and_of_three_runs_in_a_fresh_script(tmp_path: Path) -> None:
    several = [*((kind.name,) for kind in OPTIMIZATIONS if kind.name != "layerwise_casting"), *pairs()]
    several.append(("lora", "weight_quantization", "checkpointing"))
    assert len(several) > 100
    assert wrong({"+".join(names): code_for(*names) for names in several}, tmp_path) == {}


def is_installed(name: str, code: str) -> bool:
    imported = re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)
    wanted = {*imported, *(NEEDS[key] for key in NEEDS if key in name + code)}
    return all(find_spec(module) is not None for module in wanted)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["llama", "ltx_video", "vae"])
def test_the_calls_of_libraries_run_in_a_fresh_script(workload: str, tmp_path: Path) -> None:
    more: tuple[tuple[str, dict[str, str]], ...] = (
        *(("weight_offload", {"granularity": "leaf"}), ("weight_quantization", {"codes": "float8"})),
        *(("kv_cache", {"kind": "static"}), ("weight_quantization", {"bits": "4"})),
    )
    several = [("lora", "weight_quantization", "checkpointing"), ("layerwise_casting", "weight_offload")]
    requests = {"+".join(names): request_of(*names, workload=workload) for names in several}
    requests |= {kind.name: request_of(kind.name, workload=workload) for kind in OPTIMIZATIONS if kind is not KvCache}
    if workload == "llama":
        requests |= {f"{name} with {knobs}": request_of(name, knobs={name: knobs}) for name, knobs in more}
    codes = {f"library of {workload}: {name}": library_code_of(plan_of(one)) for name, one in requests.items()}
    codes = {name: code for name, code in codes.items() if code and is_installed(name, code)}
    assert len(codes) >= 3
    assert wrong(codes, tmp_path) == {}


def test_calls_of_libraries_are_given_where_they_do_the_same() -> None:
    def calls(workload: str, *names: str, **knobs: str) -> str:
        return library_code_of(plan_of(request_of(*names, workload=workload, knobs={names[-1]: knobs})))

    assert "enable_model_cpu_offload()" in calls("flux_pipeline", "weight_offload", granularity="part")
    assert "every_n_layers=2" in calls("llama", "checkpointing", every="2")
    assert calls("flux", "checkpointing", every="2") == calls("llama", "checkpointing", keep="attention") == ""
    both = calls("llama", "lora", "chunked_feed_forward", tokens="4")
    assert both.startswith("# peft\n") and both.endswith("# No library has chunked_feed_forward: use memviz's code.")
    places = [calls("llama", "lora", "weight_quantization").index(name) for name in ("torchao", "peft")]
    assert places == sorted(places)


def test_the_shown_code_of_several_names_what_is_its_readers_and_takes_its_step_last() -> None:
    names = ("allocator_settings", "gradient_accumulation", "optimizer_in_backward", "lora")
    request = Request("llama", {"batch": "4"}, tuple((name, {}) for name in names), optimizer="adamw-fused")
    code = code_of(plan_of(request).optimizations, optimizer=request.optimizer)
    inside = ("os.environ", "from memviz", "# From your code", "Lora(", "OptimizerInBackward(", "AdamW(", "for piece")
    places = [code.index(text) for text in inside]
    assert places == sorted(places)
    code = code_of(plan_of(Request("llama", {"batch": "4"}, (("gradient_accumulation", {}),))).optimizations)
    assert "# From your code: model, inputs, optimizer." in code


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
