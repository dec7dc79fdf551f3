"""The published tables on this GPU: peaks in each table's own order of steps, seconds, and outputs compared."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from memviz.runner import published
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.runner.measure.cuda_device import CudaDevice
from memviz.runner.measure.measured_run import drawn_on
from memviz.runner.output_check.comparison import compare_outputs
from memviz.runner.output_check.difference import differences
from memviz.runner.output_check.model_runs import cloned, flatten
from memviz.runner.output_check.verdict import Numerics, to_plain
from memviz.runner.plan import Plan, fitted, plan_of
from memviz.runner.published import SEEDS
from memviz.runner.request import Request
from memviz.runner.step import RunStep
from memviz.runner.workloads.workload import FromConfiguration, draw_weights
from optimizations import apply_all
from tests.gpu.conftest import Gpu
from tests.gpu.test_runs import show

_WARMUP = 2
_LARGEST_ERROR = 0.05
Knobs = Mapping[str, str]


@dataclass(frozen=True)
class Way:
    name: str
    optimizations: tuple[tuple[str, Knobs], ...] = ()
    published_seconds: float | None = None


@dataclass(frozen=True)
class Table:
    """A published table: its models, each timed in all ways; the first way is the reference of the others."""

    seed: str
    workload: str
    ways: Mapping[str, tuple[Way, ...]]
    """Measurements by workload settings, such as 'activation=gelu'."""


def _split(whole: float, split: float) -> tuple[Way, ...]:
    how = (("split_feed_forward", {"as_published": "true"}),)
    return Way("whole", published_seconds=whole), Way("split", how, split)


def _checkpointed(name: str, every: int | None) -> Way:
    changes = (("checkpointing", {"every": str(every)}),) if every else ()
    return Way(name, changes, 1 / published._PER_SECOND[name][0])


def _joined(how: str) -> Way:
    return Way(how, (("flat_gradients", {"how": how}),))


TABLES = (
    Table(
        "split-feed-forward",
        "feed_forward",
        {f"activation={name}": _split(*seconds) for name, seconds in published._SPLIT_SECONDS.items()},
    ),
    Table(
        "checkpointing",
        "ltx_video",
        {"mode=training": tuple(_checkpointed(name, every) for name, every, _ in published._CHECKPOINTING_CASES)},
    ),
    Table(
        "flat-gradients", "transformer_block", {"seed=0": (_joined("plain"), _joined("list_then_cat"), _joined("flat"))}
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
    ),
)


@pytest.fixture
def accelerator(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Accelerator:
    """The GPU, on which the tables' models are drawn, as a measured run draws its own."""
    found, build = find_accelerator(), FromConfiguration.build
    monkeypatch.setattr(FromConfiguration, "build", lambda workload: drawn_on(found, partial(build, workload)))
    return found


def rows_of(seed: str) -> list[dict[str, Any]]:
    table = next(table for table in SEEDS if table.name == seed)
    return [table.as_json(row) for row in table.rows(lambda case: None)]


@pytest.mark.gpu
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.seed)
def test_measured_peaks_of_a_table_are_the_predicted_ones(
    table: Table, gpu: Gpu, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(published, "card_named", lambda name: gpu.card)
    monkeypatch.setattr(published, "RELEASE", gpu.release)
    predicted = rows_of(table.seed)
    monkeypatch.setattr(published, "PredictedDevice", partial(MeasuredDevice, accelerator))
    measured = rows_of(table.seed)
    show(table.seed, predicted=predicted, measured=measured)
    assert [row["ours"] for row in predicted] == pytest.approx([row["ours"] for row in measured], rel=_LARGEST_ERROR)


class MeasuredDevice(CudaDevice):
    """A real card in place of the predicted one, for programs written for that."""

    def __init__(self, accelerator: Accelerator, _card: object, *, release: object = None) -> None:
        super().__init__(accelerator=accelerator, record=False)

    def place(self, model: nn.Module) -> nn.Module:
        give_values(model)
        return super().place(model)


@torch.no_grad()
def give_values(model: nn.Module) -> None:
    """Give modules on the meta device values in host memory."""
    for module in model.modules():
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            module.to_empty(device="cpu", recurse=False)
            for parameter in module.parameters(recurse=False):
                parameter.zero_()
            draw_weights(module)


@pytest.mark.gpu
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.seed)
def test_seconds_and_outputs_of_a_table(table: Table, accelerator: Accelerator):
    for settings in table.ways:
        for plan, row in timed(table, settings, accelerator):
            checked = check_reduced_model(plan, accelerator.kind)
            show(table.seed, **row, verdict=None if checked is None else asdict(checked.verdict))
            assert checked is None or checked.verdict.ok is not False


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_repeated_step_is_equal_to_the_bit(dtype: str, gpu: Gpu):
    """Otherwise no optimization that claims equal bits can be judged on this card."""
    settings = {"sequence": "512", "dim": "512", "layers": "4", "mode": "training", "dtype": dtype}
    plan = plan_of(Request("feed_forward", settings, (("checkpointing", {}),), on="cuda"))
    checked = check_reduced_model(plan, "cuda")
    assert checked is not None
    assert [output.noise.relative_l2 for output in checked.outputs] == [0.0] * len(checked.outputs)
    assert checked.verdict.ok


def timed(table: Table, settings: str, accelerator: Accelerator) -> Iterator[tuple[Plan, dict[str, Any]]]:
    """Time one model in all ways and compare outputs to the first way, which runs twice to measure noise."""
    ways = [(way, _plan(table.workload, settings, way)) for way in table.ways[settings]]
    workload = ways[0][1].workload
    model, reference = workload.build(), None
    with CudaDevice(accelerator=accelerator, record=False) as device:
        model = device.place(model)
        inputs = device.inputs(workload)
        for way, plan in ways:
            undo = apply_all(model, plan.optimizations)
            step = RunStep(workload, device, model, inputs, None)
            timing = device.seconds(step, warmup=_WARMUP)
            output = cloned(flatten(step()))
            noise = None if reference is not None else worst_difference(output, flatten(step()))
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
                "apart": worst_difference(reference, output),
            }
            yield plan, row


def worst_difference(reference: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    found = differences(reference, ours)
    plain: dict[str, Any] = to_plain(max(found.values(), key=lambda each: each.relative_l2))
    return plain


def _plan(workload: str, settings: str, way: Way) -> Plan:
    knobs = dict(each.split("=") for each in settings.split(","))
    return plan_of(Request(workload, knobs, way.optimizations, on="cuda"))


def check_reduced_model(plan: Plan, kind: str) -> Numerics | None:
    """Compare outputs of the reduced model in the dtype of the run, because its rounding is tested."""
    if not plan.optimizations:
        return None
    workload: Any = plan.workload
    small = replace(workload.small(), dtype=workload.dtype)
    place = torch.device(kind)
    changes = tuple(fitted(optimization, {}, small.micro_batches) for optimization in plan.optimizations)

    def build() -> nn.Module:
        torch.manual_seed(small.seed)
        model: nn.Module = small.build()
        return model.to(place)

    return compare_outputs(
        build,
        [small.inputs(place, number) for number in range(small.micro_batches)],
        lambda model: apply_all(model, changes),
        loss=small.loss,
        training=small.training,
        claim=plan.claim,
    )


def test_every_published_table_is_measured():
    assert [table.seed for table in TABLES] == [table.name for table in SEEDS]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.seed)
def test_every_way_is_one_that_the_command_line_accepts(table: Table):
    for settings, ways in table.ways.items():
        assert len({_plan(table.workload, settings, way).label for way in ways}) == len(ways)
