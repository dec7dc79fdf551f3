"""The parts that a workload declares are those that optimizations find in it."""

import pytest
import torch

from memviz.runner.workloads import WORKLOADS, Workload
from optimizations import OPTIMIZATIONS

PARTICULAR = [kind for kind in OPTIMIZATIONS if getattr(kind, "only_on", "")]


@pytest.mark.parametrize("kind", WORKLOADS, ids=lambda kind: kind.name)
def test_an_optimization_of_one_kind_of_model_finds_it_where_it_is_said_to_be(kind: type[Workload]) -> None:
    with torch.device("meta"):
        model = kind().small().build()
    assert PARTICULAR
    for optimization in PARTICULAR:
        try:
            optimization().check(model, training=False)
        except ValueError:
            found = False
        else:
            found = True
        assert found == (optimization.only_on in kind.holds), optimization.name
