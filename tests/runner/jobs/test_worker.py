"""The size of a run, from its knobs: exact counts, and refusal before anything is built."""

from typing import Any

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner.jobs.worker import RunTooLarge, refuse_if_reduced_model_is_too_large, refuse_if_too_large, size_of
from memviz.runner.plan import Plan, plan_of
from memviz.runner.request import Request
from memviz.runner.workloads import WORKLOADS
from memviz.runner.workloads.workload import FromConfiguration
from tests.marks import slow

GiB = 1 << 30

DEEP = [kind for kind in WORKLOADS if kind.depths]


def plan(name: str, **settings: object) -> Plan:
    return plan_of(Request(name, {key: str(value) for key, value in settings.items()}))


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORKLOADS, ids=lambda kind: kind.name)
def test_parameters_and_objects_are_those_of_the_model_itself(kind: Any) -> None:
    deep = plan(kind.name, **dict.fromkeys(kind.depths, 3))
    assert isinstance(deep.workload, FromConfiguration)
    with torch.device("meta"):
        model = deep.workload.build()
    weights, modules = list(model.parameters()), list(model.modules())
    found = size_of(deep, deep.workload)
    assert found.parameters == sum(weight.numel() for weight in weights)
    assert found.objects == len(weights) + len(modules)


@pytest.mark.parametrize("kind", DEEP[:1] + slow(*DEEP[1:]), ids=lambda kind: kind.name)
def test_ten_million_blocks_are_refused_before_they_are_built(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = kind.build

    def counted(self: Any) -> Any:
        model = build(self)
        built.append(sum(1 for _ in model.modules()))
        return model

    monkeypatch.setattr(kind, "build", counted)
    asked = plan(kind.name, **dict.fromkeys(kind.depths, 10_000_000))
    with pytest.raises(RunTooLarge, match="10,000,000 .*layers.* of host memory; .*MEMVIZ_MAX_RUN_BYTES"):
        refuse_if_too_large(asked, 64 * GiB)
    assert 0 < sum(built) < 10_000


def test_endless_micro_batches_are_refused() -> None:
    asked = plan("feed_forward", mode="training", micro_batches=10**9)
    with pytest.raises(RunTooLarge, match="2,000,000,000 passes"):
        refuse_if_too_large(asked, 64 * GiB)


def test_what_people_run_is_not_even_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FromConfiguration, "build", lambda self: pytest.fail("it was built"))
    for kind in WORKLOADS:
        refuse_if_too_large(plan(kind.name), 0)


def test_a_deep_model_that_fits_is_let_through() -> None:
    refuse_if_too_large(plan("feed_forward", layers=2_000, dim=64), GiB)


def test_a_twin_that_cannot_be_made_small_is_refused() -> None:
    """Widths are halved; an odd one stays as it is, and its twin has real numbers."""
    refuse_if_reduced_model_is_too_large(plan("feed_forward", dim=4096), GiB)
    with pytest.raises(UsageError, match="Its reduced model would take about"):
        refuse_if_reduced_model_is_too_large(plan("feed_forward", dim=1_000_003), GiB)
