"""ZeroGPU: the whole run in one decorated function there, and the function itself everywhere else."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from memviz.runner.zero_gpu import on_gpu


def double(number: int) -> int:
    return 2 * number


def spaces(lent: list[Any]) -> ModuleType:
    def gpu(duration: Any) -> Any:
        def decorate(function: Any) -> Any:
            def lend(*arguments: Any) -> Any:
                lent.append(duration)
                return function(*arguments)

            return lend

        return decorate

    module = ModuleType("spaces")
    module.GPU = gpu  # type: ignore[attr-defined]
    return module


def test_on_such_a_space_the_gpu_is_lent_for_so_many_seconds(monkeypatch):
    lent: list[Any] = []
    monkeypatch.setitem(sys.modules, "spaces", spaces(lent))
    assert on_gpu(double, seconds=90, environment={"SPACES_ZERO_GPU": "true"})(4) == 8
    assert lent == [90]


def test_elsewhere_the_package_is_not_even_looked_for(monkeypatch):
    lent: list[Any] = []
    monkeypatch.setitem(sys.modules, "spaces", spaces(lent))
    assert on_gpu(double, environment={}) is double
    assert lent == []


def test_a_space_without_the_package_runs_the_function_itself(monkeypatch):
    monkeypatch.setitem(sys.modules, "spaces", None)
    assert on_gpu(double, environment={"SPACES_ZERO_GPU": "1"}) is double
