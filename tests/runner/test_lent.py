"""A run on a lent GPU: all of it in one function of the Space, and what cannot be had there is said."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memviz.runner import lent
from memviz.runner.desk import Desk
from memviz.runner.request import Request

SMALL = {"sequence": "64", "dim": "64", "layers": "2"}


class Space:
    """What `spaces.GPU` does: it takes note of the function, and lends a GPU while it runs."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.calls: list[Any] = []
        self.refuses = ""

    def module(self) -> ModuleType:
        module = ModuleType("spaces")
        module.GPU = self.lend  # type: ignore[attr-defined]
        return module

    def lend(self, duration: Any) -> Any:
        def decorate(function: Any) -> Any:
            self.functions.append(function.__name__)

            def call(*arguments: Any) -> Any:
                self.calls.append(arguments)
                if self.refuses:
                    raise RuntimeError(self.refuses)
                return function(*arguments)

            return call

        return decorate


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    made = Space()
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    monkeypatch.setitem(sys.modules, "spaces", made.module())
    importlib.reload(lent)
    yield made
    monkeypatch.undo()
    importlib.reload(lent)


def measured(**more: Any) -> Request:
    return Request("feed_forward", SMALL, on="cuda", numerics=False, **more)


def test_the_function_is_there_before_anybody_asks(space: Space) -> None:
    assert space.functions == ["_measured"]


def test_the_whole_run_is_one_call_that_takes_and_gives_plain_values(space: Space, tmp_path: Path) -> None:
    """Without a GPU behind it the call ends in the words that say so."""
    happened = list(lent.LentGpu(tmp_path).run([measured()], first=3))
    assert [(each.kind, each.number) for each in happened] == [("phase", 3), ("failed", 3)]
    assert "GPU" in happened[-1].text
    assert space.calls == [(3, measured().as_json(), str(tmp_path))]


def test_its_answer_is_that_of_a_process_of_its_own(space: Space, tmp_path: Path) -> None:
    (_, done) = lent.LentGpu(tmp_path).run([Request("feed_forward", SMALL, on="predict", numerics=False)])
    assert done.kind == "done" and done.run is not None and done.file is not None
    assert done.file.is_file()


def test_no_gpu_left_is_said_in_the_words_of_the_space(space: Space, tmp_path: Path) -> None:
    space.refuses = "You have exceeded your GPU quota."
    assert list(lent.LentGpu(tmp_path).run([measured()]))[-1].text.endswith("You have exceeded your GPU quota.")


def test_settings_that_must_precede_cuda_are_refused_without_a_call(space: Space, tmp_path: Path) -> None:
    request = measured(optimizations=(("allocator_settings", {"conf": "expandable_segments:True"}),))
    (only,) = lent.LentGpu(tmp_path).run([request])
    assert (only.what, space.calls) == ("refused", [])
    assert "before" in only.text


def test_what_waits_behind_a_cancelled_run_is_not_begun(space: Space, tmp_path: Path) -> None:
    gpu = lent.LentGpu(tmp_path)
    gpu.cancel()
    assert [each.what for each in gpu.run([measured(), measured()])] == ["cancelled", "cancelled"]
    assert space.calls == []


def test_the_desk_starts_no_process_for_it(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    monkeypatch.setattr("memviz.runner.desk.LentGpu", lent.LentGpu)
    standing = desk.order([measured()], ["a"])
    while not standing.is_over:
        found = desk.standing(standing.id, newer_than=standing.version, wait=1)
        assert found is not None
        standing = found
    assert len(space.calls) == 1
    assert (desk._spare, standing.variants[0].what) == (None, "refused")
    desk.close()
