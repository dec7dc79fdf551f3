"""ZeroGPU: the whole run in one decorated function there, and the function itself everywhere else."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.runner.jobs.zero_gpu import on_gpu


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


class Package(ModuleType):
    """Whatever its import or its use ends in."""

    def __init__(self, error: BaseException) -> None:
        super().__init__("spaces")
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("CUDA has been initialized"), AssertionError("URL"), SystemExit(1)])
def test_a_package_that_fails_in_any_way_leaves_the_page_and_is_said_to_who_asks_for_the_gpu(monkeypatch, error):
    monkeypatch.setitem(sys.modules, "spaces", Package(error))
    refuses = on_gpu(double, environment={"SPACES_ZERO_GPU": "1"})
    with pytest.raises(UsageError, match=rf"`spaces` could not be used \({type(error).__name__}: "):
        refuses(4)


def test_a_space_without_the_package_says_so_too(monkeypatch):
    monkeypatch.setitem(sys.modules, "spaces", None)
    with pytest.raises(UsageError, match=r"cannot lend a GPU.*ModuleNotFoundError"):
        on_gpu(double, environment={"SPACES_ZERO_GPU": "1"})(4)
