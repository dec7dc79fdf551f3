"""The four published tables on this GPU: peaks in each table's own order of steps, seconds, and outputs compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from memviz.runner import published as tables
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.difference import differences
from memviz.runner.output_check.model_runs import cloned, flatten
from memviz.runner.output_check.verdict import to_plain
from memviz.runner.plan import Plan, fitted, plan_of
from memviz.runner.published import SEEDS
from memviz.runner.request import Request
from memviz.runner.step import RunStep
from optimizations import apply_all
from tests.gpu.building import all_drawn_on
from tests.gpu.case import Case
from tests.gpu.on_the_card import on_the_card

_STEPS, _WARMUP = 5, 2
Knobs = Mapping[str, str]


@dataclass(frozen=True)
class Way:
    name: str
    optimizations: tuple[tuple[str, Knobs], ...] = ()
    published_seconds: float | None = None


@dataclass(frozen=True)
class Table:
    """Of one published table: its models, each timed in all ways, the first being what the others are held against."""

    seed: str
    workload: str
    ways: Mapping[str, tuple[Way, ...]]
    """By what is set of the workload, as 'activation=gelu'."""
    gib: float
    seconds: tuple[float, float]
    """About how long peaks and seconds take."""
    seconds_predicted: float = 40


def _split(whole: float, split: float) -> tuple[Way, ...]:
    how = (("split_feed_forward", {"as_published": "true"}),)
    return Way("whole", published_seconds=whole), Way("split", how, split)


def _checkpointed(name: str, every: str, per_second: float) -> Way:
    return Way(name, (("checkpointing", {"every": every}),), 1 / per_second)


def _joined(how: str) -> Way:
    return Way(how, (("flat_gradients", {"how": how}),))


TABLES = (
    Table(
        "split-feed-forward",
        "feed_forward",
        {
            "activation=gelu": _split(1.29, 1.40),
            "activation=gelu-approximate": _split(1.29, 1.28),
            "activation=geglu": _split(1.92, 1.92),
            "activation=geglu-approximate": _split(1.30, 1.70),
            "activation=swiglu": _split(1.92, 1.92),
            "activation=linear-silu": _split(1.29, 1.29),
        },
        10,
        (40, 80),
    ),
    Table(
        "checkpointing",
        "ltx_video",
        {
            "mode=training": (
                Way("none", published_seconds=1 / 1.680),
                _checkpointed("every block", "1", 1.358),
                _checkpointed("every 2nd block", "2", 1.539),
                _checkpointed("every 4th block", "4", 1.658),
            )
        },
        29,
        (40, 40),
        150,
    ),
    Table(
        "flat-gradients",
        "transformer_block",
        {
            "seed=0": tuple(
                Way(each, (("flat_gradients", {"how": each}),)) for each in ("plain", "list_then_cat", "flat")
            )
        },
        13,
        (20, 25),
    ),
    Table(
        "layerwise-casting",
        "flux",
        {
            "mode=inference": (
                Way("bf16"),
                Way("fp8, by default", (("layerwise_casting", {}),)),
                Way("fp8, nothing skipped", (("layerwise_casting", {"skip": ""}),)),
            )
        },
        27,
        (110, 60),
    ),
)


def _cases(table: Table) -> Iterator[Case]:
    libraries = ("diffusers",) if table.workload != "transformer_block" else ()
    for what, seconds in zip(("peaks", "seconds"), table.seconds, strict=True):
        small = what == "peaks" and table.gib < 20
        more = {"seed": table.seed, "what": what}
        yield Case("seeds", f"{table.seed}-{what}", more, seconds, table.gib, libraries=libraries, small=small)


CASES = tuple(case for table in TABLES for case in _cases(table))


def run(case: Case, _out: Path) -> dict[str, Any]:
    table = next(each for each in TABLES if each.seed == case.arguments["seed"])
    accelerator = find_accelerator()
    with all_drawn_on(accelerator):
        if case.arguments["what"] == "peaks":
            return {"rows": rows_of(table.seed, PredictedDevice=on_the_card(accelerator))}
        rows = (each for settings in table.ways for each in timed(table, settings, accelerator))
        return {"ways": [{**row, "twin": twin(plan, accelerator.kind)} for plan, row in rows]}


def rows_of(seed: str, **instead: Any) -> list[dict[str, Any]]:
    """The published table computed anew, with other things in the place of its device, its card or its release."""
    table = next(each for each in SEEDS if each.name == seed)
    with _replaced(tables, instead):
        return [table.as_json(row) for row in table.rows(lambda case: None)]


@contextmanager
def _replaced(module: ModuleType, instead: Mapping[str, Any]) -> Iterator[None]:
    kept = {name: getattr(module, name) for name in instead}
    vars(module).update(instead)
    try:
        yield
    finally:
        vars(module).update(kept)


def timed(table: Table, settings: str, accelerator: Accelerator) -> Iterator[tuple[Plan, dict[str, Any]]]:
    """One model in all ways: seconds, and the outputs beside those of the first way, which runs twice for the noise."""
    ways = [(way, _plan(table.workload, settings, way)) for way in table.ways[settings]]
    workload = ways[0][1].workload
    model, reference = workload.build(), None
    with CudaDevice(accelerator=accelerator, record=False) as device:
        model = device.place(model)
        inputs = device.inputs(workload)
        for way, plan in ways:
            undo = apply_all(model, plan.optimizations)
            step = RunStep(workload, device, model, inputs, None)
            timing = device.seconds(step, steps=_STEPS, warmup=_WARMUP)
            output = cloned(flatten(step()))
            noise = None if reference is not None else _apart(output, flatten(step()))
            reference = output if reference is None else reference
            undo()
            row = {
                "settings": settings,
                "way": way.name,
                "published_seconds": way.published_seconds,
                "seconds": timing.median,
                "spread": timing.spread,
                "steps": timing.count,
                "noise": noise,
                "apart": _apart(reference, output),
            }
            yield plan, row


def _apart(reference: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """In the dtype of the run: what differs most of all outputs."""
    found = differences(reference, ours)
    plain: dict[str, Any] = to_plain(max(found.values(), key=lambda each: each.relative_l2))
    return plain


def _plan(workload: str, settings: str, way: Way) -> Plan:
    knobs = dict(each.split("=") for each in settings.split(","))
    return plan_of(Request(workload, knobs, way.optimizations, on="cuda"))


def small_of(plan: Plan) -> Any:
    """Twins are in fp32 otherwise, where rounding hides nothing; here rounding is what is asked about."""
    return replace(plan.workload.small(), dtype=plan.workload.dtype)


def twin(plan: Plan, kind: str) -> dict[str, Any] | None:
    """The verdict on a small twin that computes in the dtype of the run, where its kernels are."""
    if not plan.optimizations:
        return None
    small = small_of(plan)
    place = torch.device(kind)
    changes = tuple(fitted(optimization, {}, small.micro_batches) for optimization in plan.optimizations)

    def build() -> nn.Module:
        torch.manual_seed(small.seed)
        return small.build().to(place)

    inputs = [small.inputs(place, number) for number in range(small.micro_batches)]
    found = compare_outputs(
        build,
        inputs,
        lambda model: apply_all(model, changes),
        loss=small.loss,
        training=small.training,
        claim=plan.claim,
    )
    worst = max(found.outputs, key=lambda output: output.difference.relative_l2, default=None)
    return {
        "on": small.describe(),
        "verdict": asdict(found.verdict),
        "relative_l2": None if worst is None else worst.difference.relative_l2,
        "noise_relative_l2": None if worst is None else worst.noise.relative_l2,
    }
