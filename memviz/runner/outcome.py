"""Result of a run, predicted or measured: its figures as a Run, its trace, and what was live when it failed."""

from __future__ import annotations

import ast
import builtins
import platform
import re
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from string import Formatter
from typing import Any

import numpy as np
import torch
from torch import nn

from memviz.allocator.recorded_requests import AllocatorCalls
from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice
from memviz.predictor.group.ranks import Layout
from memviz.predictor.ledger import live_changes
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.plan import Plan
from memviz.runner.record.log import EventsByAddress
from memviz.runner.request import Optimizer, command_of
from memviz.runner.run import Run
from memviz.trace.model import Action, Category, Trace
from optimizations import OPTIMIZATIONS, Optimization
from optimizations.weight_offload import host_bytes
from optimizations.weight_quantization import Quantized

_LIBRARIES = ("torch", "diffusers", "transformers")
_WHOSE = {"implementation", "by", "onload_device"}
"""Knobs that say whose code runs and where, and not what it does."""
_MADE_WITH: dict[Optimizer, str] = {"adamw-fused": "fused=True", "adamw-for-loop": "foreach=False"}


@dataclass(frozen=True)
class Outcome:
    run: Run
    trace: Trace
    said: AllocatorCalls | None = None
    """Allocator calls of a prediction that its events do not show."""
    layout: Layout | None = None
    """Layout of one rank of many."""
    others: Mapping[int, Outcome] = field(default_factory=dict)
    """Among many ranks, one outcome for each other class, by rank."""


class Interrupted(Exception):
    """A run that ended early, with what was recorded until then. Its cause is what ended it."""

    def __init__(self, trace: Trace | None, live_bytes: int) -> None:
        self.trace = trace
        self.live_bytes = live_bytes
        super().__init__("The run ended early.")


@contextmanager
def keeping_what_was_recorded(device: PredictedDevice | CudaDevice) -> Iterator[None]:
    """Wrap a failure so that it carries the trace and the live bytes at that moment."""
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        live, trace = 0, None
        # What failed first is what people need to hear.
        with suppress(Exception):
            live = device.allocated_bytes
            trace = device.finish()
        raise Interrupted(trace, live) from error


def peaks_of(device: PredictedDevice | CudaDevice, loaded_bytes: int) -> dict[str, Any]:
    """`loaded_bytes` is the peak of loading, in allocated bytes."""
    return {
        "peak_while_loading": 0 < device.peak_allocated_bytes <= loaded_bytes,
        "peak_allocated_bytes": device.peak_allocated_bytes,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "peak_requested_bytes": device.peak_requested_bytes,
    }


def sizes_of(model: nn.Module) -> dict[str, int]:
    """Return the sizes of a model's weights; quantized codes count as the weights that they replace."""
    codes = [module for module in model.modules() if isinstance(module, Quantized)]
    return {
        "weights_bytes": own_bytes(model),
        "parameters": sum(weight.numel() for weight in model.parameters()) + sum(each.replaced for each in codes),
    }


def weights_at_peak(model: nn.Module, trace: Trace) -> int | None:
    """Return the bytes of weights on the card at the peak; None where no weight waits in host memory."""
    events, labels = trace.devices[0].events, trace.devices[0].event_labels
    if labels is None or not len(events) or not host_bytes(model):
        return None
    at = int(np.argmax(np.cumsum(live_changes(events.action, events.size))))
    weights = np.flatnonzero((events.action == Action.ALLOC) & (labels.category == Category.PARAMETER))
    live = weights[(weights <= at) & (EventsByAddress(events).next_free(weights) > at)]
    return int(events.size[live].sum())


def check(plan: Plan, model: nn.Module) -> None:
    """Let each optimization refuse the model, before a device holds any of it.

    One that trains other weights is applied temporarily, since later ones check the model that it returns.
    """
    with ExitStack() as undo:
        undo.enter_context(torch.random.fork_rng(devices=[]))
        for optimization in plan.optimizations:
            optimization.check(model, training=plan.workload.training)
            if getattr(optimization, "trains_others", False):
                undo.callback(optimization.apply(model))


def own_bytes(model: nn.Module) -> int:
    """Return the bytes of the weights that a rank holds: of sharded ones only its shards."""
    own = [getattr(weight, "_local_tensor", weight) for weight in model.parameters()]
    own += [codes for module in model.modules() if isinstance(module, Quantized) for codes in module.buffers()]
    return sum(weight.numel() * weight.element_size() for weight in own)


def run_with(plan: Plan, mode: Any, device: str, values: dict[str, Any]) -> Run:
    return Run(
        request=plan.request,
        label=plan.label,
        describes=plan.describes,
        mode=mode,
        device=device,
        why="",
        window=plan.window,
        provenance=provenance(plan),
        command=command_of(plan.request),
        code=code_of_plan(plan),
        library_code=library_code_of(plan),
        claim=plan.claim,
        **values,
    )


def code_of_plan(plan: Plan) -> str:
    # An offload of a model in host memory names the device that computes.
    changes = [replace(one, onload_device="cuda") if one is plan.offload else one for one in plan.optimizations]
    return code_of(changes, plan.on_host, plan.request.optimizer)


def code_of(
    optimizations: Sequence[Optimization], on_host: Sequence[Optimization] = (), optimizer: Optimizer = "none"
) -> str:
    """Return Python that applies these in a script, with memviz installed, in its checkout, or with their files copied.

    Variables come before all imports of torch, the loop last. Of several each has its own undo. After those in host
    memory the model moves to the card, unless an offload moves it. An optimizer is made where its options are not
    torch's defaults, and after adapters, since one made before would not train them.
    """
    imports, first, then, loop = list[tuple[str, str]](), list[str](), list[str](), list[str]()
    brings_it = any(getattr(optimization, "onload_device", "") for optimization in optimizations)
    scripts = list(map(_script, optimizations))
    has_several = sum("undo = " in script for script in scripts) > 1
    for optimization, script in zip(optimizations, scripts, strict=True):
        body = script.replace("undo = ", f"undo_{optimization.name} = ") if has_several else script
        if not optimization.environment:
            imports.append((optimization.name, type(optimization).__name__))
        changes_loop = getattr(optimization, "changes_loop", False)
        (first if optimization.environment else loop if changes_loop else then).append(body)
        if on_host and optimization is on_host[-1] and not brings_it:
            then.append('model.to("cuda")')
    trains_others = any(getattr(optimization, "trains_others", False) for optimization in optimizations)
    if optimizer in _MADE_WITH or (trains_others and optimizer != "none"):
        kind = "SGD" if optimizer == "sgd" else "AdamW"
        arguments = ", ".join(["model.parameters()", *filter(None, [_MADE_WITH.get(optimizer)])])
        then.append(f"from torch.optim import {kind}\n\noptimizer = {kind}({arguments})")
    bodies = [*then, *loop]
    if names := _names_of_the_reader(bodies):
        bodies.insert(0, f"# Yours: {', '.join(names)}.")
    return "\n\n".join([*first, *_import_lines(imports), *bodies])


@cache
def _code_texts() -> Mapping[str, Any]:
    return tomllib.loads(files(Optimization.__module__).joinpath("code.toml").read_text(encoding="utf-8"))


def _script(change: Any) -> str:
    """Return the lines that apply it, with the knobs that differ from their defaults."""
    values = {knob: getattr(change, knob.name) for knob in fields(change) if knob.repr}
    texts = (
        f"{knob.name}={getattr(value, '__name__', repr(value))}"
        for knob, value in values.items()
        if value != knob.default or knob.metadata.get("always")
    )
    construction = f"{type(change).__name__}({', '.join(texts)})"
    script: str = _code_texts().get(change.name, {}).get("script", "undo = {self}.apply(model)")
    return script.strip().replace("{self}", construction).replace("{environment}", repr(dict(change.environment)))


def library_code_of(plan: Plan) -> str:
    """Return the calls of libraries that do the same, in the order in which people make them; empty without any."""
    texts, missing = list[tuple[int, str]](), list[str]()
    for change in plan.optimizations:
        call = _library_call(change, plan)
        if call is None:
            missing.append(change.name)
        else:
            texts.append((call.get("place", 0), f"# {call['name']}\n{call['code']}"))
    if missing and texts:
        texts.append((2, f"# No library has {', '.join(missing)}: take memviz's code."))
    return "\n\n".join(text for _, text in sorted(texts, key=lambda one: one[0]))


def _library_call(change: Any, plan: Plan) -> Mapping[str, Any] | None:
    """Return the first call of `code.toml` for such a model that does what these knobs do."""
    library = getattr(plan.workload, "library", "")
    values = {knob.name: getattr(change, knob.name) for knob in fields(change)}
    changed = {knob.name for knob in fields(change) if values[knob.name] != knob.default} - _WHOSE
    values |= {"workload": plan.workload.name, "optimizer": plan.request.optimizer}
    for call in _code_texts().get(change.name, {}).get("library", ()):
        when: Mapping[str, Any] = call.get("when", {})
        named = {name for _, name, _, _ in Formatter().parse(call["code"]) if name}
        is_expressed = changed <= {*when, *named, *call.get("ignores", ())}
        is_wanted = all(values[name] in (one if isinstance(one, list) else [one]) for name, one in when.items())
        if is_expressed and is_wanted and library in call.get("of", [library]):
            return {**call, "code": call["code"].strip().format(**values)}
    return None


def _import_lines(imports: Sequence[tuple[str, str]]) -> Iterator[str]:
    if not imports:
        return
    files = ", ".join(f"{module}.py" for module, _ in imports)
    yield "\n".join(
        (
            '# Install memviz ("pip install ." in its checkout), or copy from its optimizations next to this file:',
            f"# {files}",
            "try:",
            *(f"    from memviz.optimizations.{module} import {name}" for module, name in imports),
            "except ModuleNotFoundError:",
            *(f"    from {module} import {name}" for module, name in imports),
        )
    )


def _names_of_the_reader(bodies: Sequence[str]) -> list[str]:
    """Return the names that the code reads and does not bind."""
    names = [node for node in ast.walk(ast.parse("\n\n".join(bodies))) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(vars(builtins))
    bound |= {kind.__name__ for kind in OPTIMIZATIONS} | {"AdamW"}
    return sorted({node.id for node in names} - bound, key=lambda name: (name != "model", name))


def provenance(plan: Plan) -> dict[str, str]:
    versions = {"python": platform.python_version(), "seed": str(plan.workload.seed)}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


_MOST_WARNINGS = 16
_MOST_WARNING_CHARACTERS = 400
_FROM_CPP = "Triggered internally"
_WHERE = re.compile(rf"\s*\({_FROM_CPP} at .*\)\s*$", re.DOTALL)
_REFUSED = "not used because"
_NO_KERNEL = "no available kernel"


class TorchWarnings:
    """Warnings of PyTorch, each sentence once, in order."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def add(self, message: Warning | str, category: type[Warning], filename: str, *_: Any, **__: Any) -> None:
        """Replace `warnings.showwarning`."""
        text = str(message)
        if _FROM_CPP not in text and "/torch/" not in filename.replace("\\", "/"):
            return
        line = " ".join(_WHERE.sub("", text).split())
        if line and line not in self.words and len(self.words) < _MOST_WARNINGS:
            is_long = len(line) > _MOST_WARNING_CHARACTERS
            self.words.append(f"{line[:_MOST_WARNING_CHARACTERS]} …" if is_long else line)

    def notes(self) -> tuple[str, ...]:
        return tuple(f"PyTorch warns: {sentence}" for sentence in self.words)

    def about(self, error: BaseException) -> str:
        """Return torch's warnings on why it rejected each attention kernel, where none was left."""
        first = next((at for at, sentence in enumerate(self.words) if _REFUSED in sentence), None)
        if _NO_KERNEL not in str(error).lower() or first is None:
            return ""
        return f"PyTorch's reasons: {' '.join(self.words[first:])}"


@contextmanager
def torch_warnings() -> Iterator[TorchWarnings]:
    """Collect PyTorch's warnings, even those that filters would hide."""
    warned = TorchWarnings()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = warned.add
        yield warned
