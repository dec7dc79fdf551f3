"""A request, read and checked: everything that can be refused is refused here, before anything is built.

A plan can also be printed as Python: the code of these optimizations, or calls of libraries that have the same.
"""

from __future__ import annotations

import ast
import builtins
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Any, Literal, get_args

from memviz.errors import UsageError
from memviz.predictor.cards import KnownCard, card_named
from memviz.runner.request import (
    ALONE,
    Optimizer,
    Parallel,
    Request,
    as_text,
    knobs_of,
    label_of_value,
    parallel_of,
    with_knobs,
)
from memviz.runner.workloads import WORKLOADS, Workload
from memviz.runner.workloads.own import own_workload
from memviz.runner.workloads.transformers_model import configured_workload
from memviz.text import nearest
from optimizations import OPTIMIZATIONS, Optimization, check_together
from optimizations.gradient_accumulation import GradientAccumulation
from optimizations.weight_offload import WeightOffload

Claim = Literal["bitwise", "rounding", "training", "lossy"]
"""From the strongest to the weakest."""


_ALONG_ALL = ("data", "shard", "tensor", "pipeline")
_NO_STAGES = ("data", "shard", "tensor")
ACROSS_GPUS: Mapping[str, tuple[str, ...]] = {
    "allocator_settings": _ALONG_ALL,
    "attention_backend": _ALONG_ALL,
    "checkpointing": _ALONG_ALL,
    "chunked_feed_forward": _ALONG_ALL,
    "activation_offload": _NO_STAGES,
    "gradient_accumulation": _NO_STAGES,
    # It wants the head's whole matrix, and a stage computes its loss apart from it.
    "chunked_cross_entropy": ("data", "shard"),
    # Adapters are sharded with their layer's weights; no plan says how to split their matrices.
    "lora": ("data", "shard"),
    # Codes become parameters, which FSDP shards as it does weights.
    "weight_quantization": ("shard",),
}
"""Optimizations that apply to a model that is parted, and the axes that they go with; the others are refused."""


_OF_THE_CARD = ("allocator_settings", "attention_backend")
"""Optimizations that concern the card and no weights."""


@dataclass(frozen=True)
class Plan:
    request: Request
    workload: Workload
    optimizations: tuple[Optimization, ...]
    """In the order in which they are applied."""
    card: KnownCard
    parallel: Parallel = ALONE

    @property
    def label(self) -> str:
        return self.request.label or label_of(self.optimizations)

    @property
    def offload(self) -> WeightOffload | None:
        """The optimization that keeps weights in host memory, where the model is loaded there."""
        there = [change for change in self.optimizations if isinstance(change, WeightOffload)]
        return there[0] if there and self.request.load == "host" else None

    @property
    def on_host(self) -> tuple[Optimization, ...]:
        """Optimizations applied before the weights come to the device."""
        return changes_on_host(self.optimizations) if self.request.load == "host" else ()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that must be set before CUDA starts."""
        return {key: text for optimization in self.optimizations for key, text in optimization.environment.items()}

    @property
    def claim(self) -> Claim:
        """The weakest of all claims about the outputs."""
        return weakest(optimization.claim for optimization in self.optimizations)

    @property
    def passes(self) -> int:
        """Forward passes in a step."""
        return passes_of(self.workload, self.optimizations)

    @property
    def describes(self) -> str:
        description = self.workload.describe()
        return f"{description}, on {self.parallel.words}" if self.parallel.gpus > 1 else description

    @property
    def unit(self) -> str:
        """Unit that costs are stated in: "step" or "forward pass"."""
        return "step" if self.workload.training else "forward pass"

    @property
    def window(self) -> str:
        """Sentence about what the peaks include."""
        request = self.request
        ending = "" if request.steps == 1 else "s" if self.workload.training else "es"
        steps = f"{request.steps} {self.unit}{ending}"
        after = f" after {request.warmup} warm-up, which counts too" if request.warmup else ""
        parts = [f"{steps}{after}"]
        if any(map(converts, self.optimizations)):
            where = "on the host" if request.load == "host" else "on the device, after full weights are loaded there"
            parts.append(f"loading counts, and weights are converted {where}")
        parts.append("the warm-up's output stays alive" if request.keep_output and request.warmup else "")
        return "; ".join(filter(None, parts))


def weakest(claims: Iterable[Claim]) -> Claim:
    return max(claims, key=get_args(Claim).index, default="bitwise")


def changes_on_host(changes: Sequence[Optimization]) -> tuple[Optimization, ...]:
    """Return those up to the last that makes weights smaller, or up to the offload, which itself needs the device."""
    last = max((at for at, change in enumerate(changes) if converts(change)), default=-1)
    before = changes[: last + 1]
    return tuple(one for one in before if one.name not in _OF_THE_CARD and not isinstance(one, WeightOffload))


def converts(change: Optimization) -> bool:
    """Return whether it casts, quantizes or offloads weights, which people do before they load them on the card."""
    return isinstance(change, WeightOffload) or getattr(change, "shrinks_weights", False)


def plan_of(request: Request) -> Plan:
    parallel = parallel_of(request.parallel)
    if request.config:
        workload: Workload = configured_workload(request.workload, request.settings, request.config)
    else:
        workload = make_workload(request.workload, request.settings)
    if workload.training and workload.micro_batches < parallel.pipeline:
        # As many microbatches as the pipeline has stages, so that all of them have work.
        workload = replace(workload, micro_batches=parallel.pipeline)
    chosen = {name: optimization_of(name, knobs) for name, knobs in request.optimizations}
    if len(chosen) != len(request.optimizations):
        raise UsageError(
            "An optimization is given twice. Give its knobs together, such as checkpointing:every=2,offload=true."
        )
    knobs_by_name = dict(request.optimizations)
    in_order = [chosen[kind.name] for kind in OPTIMIZATIONS if kind.name in chosen]
    passes = passes_of(workload, in_order)
    ordered = tuple(fitted(optimization, knobs_by_name[optimization.name], passes) for optimization in in_order)
    for optimization in ordered:
        _check_workload(optimization, workload)
    try:
        check_together(ordered)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if request.optimizer != "none" and not workload.training:
        raise UsageError(f"An optimizer needs training, but {workload.name} runs inference. Set mode=training.")
    for optimization in ordered:
        if getattr(optimization, "needs_optimizer", False) and request.optimizer == "none":
            raise UsageError(f"{optimization.name} needs an optimizer. Add one, such as --optimizer adamw.")
    _check_parallel(request, parallel, ordered)
    return Plan(request, workload, ordered, card_named(request.card), parallel)


def make_workload(name: str, settings: Mapping[str, str] | None = None) -> Workload:
    """Return a preset with these knobs, or the workload of a user's file. Nothing is built, no file is executed."""
    if name.partition(":")[0].endswith(".py"):
        return own_workload(name, settings or {})
    by_name = {kind.name: kind for kind in WORKLOADS}
    if name not in by_name:
        raise UsageError(
            f"There is no workload {name}.{nearest(name, by_name)} "
            "For your own model use a config.json or FILE.py:function."
        )
    return with_knobs(by_name[name], settings or {})


def optimization_of(name: str, knobs: object) -> Optimization:
    by_name = {kind.name: kind for kind in OPTIMIZATIONS}
    if name not in by_name:
        raise UsageError(f"There is no optimization {name}.{nearest(name, by_name)}")
    optimization: Optimization = with_knobs(by_name[name], knobs)  # type: ignore[arg-type]
    return optimization


def pieces_of(optimizations: Iterable[Optimization]) -> GradientAccumulation | None:
    """Return the gradient accumulation among these, if any."""
    return next((change for change in optimizations if isinstance(change, GradientAccumulation)), None)


def passes_of(workload: Workload, optimizations: Iterable[Optimization]) -> int:
    """Forward passes in a step, and in training as many backward."""
    pieces = pieces_of(optimizations)
    return workload.micro_batches * (1 if pieces is None else pieces.pieces)


def fitted(optimization: Optimization, knobs: Mapping[str, str], passes: int) -> Optimization:
    """Set the knob `micro_batches` to the backward passes of a step, which follow from the workload and its pieces."""
    if "micro_batches" not in {attribute.name for attribute in fields(optimization)}:  # type: ignore[arg-type]
        return optimization
    if knobs.get("micro_batches", str(passes)) != str(passes):
        raise UsageError(
            f"{optimization.name} has micro_batches={knobs['micro_batches']}, but a step has {passes} backward "
            "passes. Set it on the workload only."
        )
    return replace(optimization, micro_batches=passes)  # type: ignore[type-var]


def _check_workload(change: Optimization, workload: Workload) -> None:
    mode, name, needed = "training" if workload.training else "inference", change.name, change.needs
    if needed not in ("any", mode):
        raise UsageError(f"{name} works in {needed} only, but this run is {mode}. Set mode={needed}.")
    batch = getattr(workload, "batch", None)
    if isinstance(change, GradientAccumulation) and isinstance(batch, int) and batch < change.pieces:
        raise UsageError(
            f"{name} needs a batch of at least {change.pieces}, but it is {batch}. Set batch={change.pieces} or more."
        )
    if getattr(change, "needs_cache", False) and not getattr(workload, "cache", True):
        raise UsageError(f"{name} needs a KV cache. Set cache=true.")


def _check_parallel(request: Request, parallel: Parallel, chosen: tuple[Optimization, ...]) -> None:
    if parallel.gpus == 1:
        return
    if request.on == "cuda":
        raise UsageError(f"{parallel.words} can be predicted but not measured. Use --on predict, or one GPU.")
    for optimization in chosen:
        if optimization.name not in ACROSS_GPUS:
            raise UsageError(f"{optimization.name} is supported on one GPU only: drop it, or use one GPU.")
        cut = [axis for axis in parallel.used if axis not in ACROSS_GPUS[optimization.name]]
        if cut:
            settings = " and ".join(f"{axis}=1" for axis in cut)
            raise UsageError(
                f"{optimization.name} does not support {' and '.join(cut)} parallelism: drop it, or set {settings}."
            )
    if parallel.data > 1 and parallel.shard == 1 and parallel.tensor > 1:
        raise UsageError("data with tensor needs sharding here: set shard to 2 or more.")


def label_of(optimizations: tuple[Optimization, ...]) -> str:
    """Return "checkpointing every=2 + split_feed_forward", or "baseline"."""
    names = [
        " ".join([change.name, *(f"{key}={text}" for key, text in as_text(change).items())]) for change in optimizations
    ]
    return " + ".join(names) or "baseline"


def title_of(optimizations: tuple[Optimization, ...]) -> str:
    """Return titles as on the page: "Gradient checkpointing, every 2nd block + Flat gradients", or "Baseline"."""
    titles = []
    for change in optimizations:
        changed, texts = as_text(change), as_text(change, everything=True)
        visible = [knob for knob in knobs_of(change) if knob.always or knob.name in changed]
        knobs = [label_of_value(knob.name, texts[knob.name], knob.says) for knob in visible]
        titles.append(", ".join([change.title, *knobs]))
    return " + ".join(titles) or "Baseline"


# -- the same as Python

_WHOSE = {"implementation", "by", "onload_device"}
"""Knobs that say whose code runs and where, and not what it does."""
_MADE_WITH: dict[Optimizer, str] = {"adamw-fused": "fused=True", "adamw-for-loop": "foreach=False"}


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
    scripts = list(map(_apply_code, optimizations))
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
        bodies.insert(0, f"# From your code: {', '.join(names)}.")
    if imports:
        where = '# "pip install ." in memviz\'s checkout, or copy these files here and drop "memviz.optimizations."'
        lines = (f"from memviz.optimizations.{module} import {name}" for module, name in imports)
        first.append("\n".join((where, *lines)))
    return "\n\n".join([*first, *bodies])


@cache
def _code_texts() -> Mapping[str, Any]:
    return tomllib.loads(files(Optimization.__module__).joinpath("code.toml").read_text(encoding="utf-8"))


def _apply_code(change: Any) -> str:
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
        texts.append((2, f"# No library has {', '.join(missing)}: use memviz's code."))
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


def _names_of_the_reader(bodies: Sequence[str]) -> list[str]:
    """Return the names that the code reads and does not bind."""
    names = [node for node in ast.walk(ast.parse("\n\n".join(bodies))) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(vars(builtins))
    bound |= {kind.__name__ for kind in OPTIMIZATIONS} | {"AdamW"}
    return sorted({node.id for node in names} - bound, key=lambda name: (name != "model", name))
