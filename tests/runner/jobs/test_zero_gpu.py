"""A run on ZeroGPU: all of it in one function of the Space, with notes on what is unavailable there."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from memviz.errors import UsageError
from memviz.runner.jobs import worker, zero_gpu
from memviz.runner.jobs.service import Scheduler
from memviz.runner.jobs.worker_process import RunEvent
from memviz.runner.jobs.zero_gpu import FEWEST_SECONDS, MOST_SECONDS, on_gpu, reserved_seconds
from memviz.runner.request import Request
from tests.runner.failing_gpu import LOST, FailingGpu
from tests.runner.processes import over

SMALL = {"sequence": "64", "dim": "64", "layers": "2"}


class Space:
    """Stand-in for `spaces.GPU`: it registers the function and lends a GPU while it runs."""

    def __init__(self) -> None:
        self.functions: list[str] = []
        self.calls: list[Any] = []
        self.refuses = ""
        self.durations: list[int] = []
        self.is_used_again = True

    def module(self) -> ModuleType:
        module = ModuleType("spaces")
        module.GPU = self.lend  # type: ignore[attr-defined]
        return module

    def lend(self, duration: Any) -> Any:
        def decorate(function: Any) -> Any:
            self.functions.append(function.__name__)

            def call(*arguments: Any) -> Any:
                self.calls.append(arguments)
                self.durations.append(duration(*arguments) if callable(duration) else duration)
                if self.refuses:
                    raise RuntimeError(self.refuses)
                try:
                    return function(*arguments)
                except Exception as error:
                    self.is_used_again = False
                    # Of an error only its class comes back.
                    raise RuntimeError(f"ZeroGPU worker error: {type(error).__name__}") from None

            return call

        return decorate


@pytest.fixture
def space(monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    made = Space()
    monkeypatch.setenv("SPACES_ZERO_GPU", "1")
    monkeypatch.setitem(sys.modules, "spaces", made.module())
    importlib.reload(zero_gpu)
    yield made
    monkeypatch.undo()
    importlib.reload(zero_gpu)


def measured(**more: Any) -> Request:
    return Request("feed_forward", SMALL, on="cuda", numerics=False, **more)


def test_the_whole_run_is_one_call_that_takes_and_gives_plain_values(space: Space, tmp_path: Path) -> None:
    """Without a GPU the call ends with an error that names it."""
    assert space.functions == ["_measured"]
    happened = list(zero_gpu.ZeroGpuWorker(tmp_path).run([measured()], first=3))
    assert [(each.kind, each.number) for each in happened] == [("phase", 3), ("failed", 3)]
    assert "GPU" in happened[-1].text
    assert space.calls == [(3, measured().as_json(), str(tmp_path))]
    assert space.durations == [reserved_seconds(3, measured().as_json(), "")]
    assert space.durations[0] < MOST_SECONDS


def test_its_answer_is_that_of_a_process_of_its_own(space: Space, tmp_path: Path) -> None:
    (_, done) = zero_gpu.ZeroGpuWorker(tmp_path).run([Request("feed_forward", SMALL, on="predict", numerics=False)])
    assert done.kind == "done" and done.run is not None and done.file is not None
    assert done.file.is_file()


def test_no_gpu_left_is_said_in_the_words_of_the_space(space: Space, tmp_path: Path) -> None:
    space.refuses = "You have exceeded your GPU quota."
    assert list(zero_gpu.ZeroGpuWorker(tmp_path).run([measured()]))[-1].text.endswith(
        "You have exceeded your GPU quota."
    )


def test_settings_that_must_precede_cuda_and_what_is_cancelled_before_are_not_begun(
    space: Space, tmp_path: Path
) -> None:
    request = measured(optimizations=(("allocator_settings", {"conf": "expandable_segments:True"}),))
    gpu = zero_gpu.ZeroGpuWorker(tmp_path)
    (only,) = gpu.run([request])
    assert only.what == "refused" and "already started CUDA" in only.text
    gpu.cancel()
    assert [each.what for each in gpu.run([measured(), measured()])] == ["cancelled", "cancelled"]
    assert space.calls == []


def test_the_scheduler_starts_no_process_for_it(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = Scheduler()
    monkeypatch.setattr("memviz.runner.jobs.service.ZeroGpuWorker", zero_gpu.ZeroGpuWorker)
    status = over(scheduler, scheduler.submit([measured()], ["a"]))
    assert len(space.calls) == 1
    assert (scheduler._spare, status.variants[0].what) == (None, "refused")
    scheduler.close()


OWN = """
import torch
def tiny():
    return torch.nn.Linear(64, 64, bias=False), {"input": torch.ones(8, 64)}
"""


def on_a_card(gpu: FailingGpu, folder: Path) -> RunEvent:
    """Run a request on this GPU as the Space does, and return the last event."""
    (folder / "own.py").write_text(OWN)
    request = Request(f"{folder}/own.py:tiny", {"mode": "training"}, on="cuda", numerics=False, warmup=0)
    with gpu.in_torch(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("memviz.runner.measure.accelerator.find_accelerator", lambda: gpu.accelerator)
        return list(zero_gpu.ZeroGpuWorker(folder).run([request]))[-1]


def test_a_whole_measured_run_on_a_lent_card(space: Space, quick: None, tmp_path: Path) -> None:
    gpu = FailingGpu()
    last = on_a_card(gpu, tmp_path)
    assert last.kind == "done" and last.run is not None and last.file is not None
    assert (last.run.mode, last.run.seconds is not None, last.file.is_file()) == ("measured", True, True)
    assert (space.is_used_again, gpu.gpu.is_recording) == (True, False)
    assert not list(tmp_path.glob("*.said"))


def test_an_error_that_a_card_does_not_recover_from_is_not_answered_as_success_and_only_that_costs_the_process(
    space: Space, quick: None, tmp_path: Path
) -> None:
    """Its message arrives, and the process serves no other run."""
    whole = FailingGpu()
    on_a_card(whole, tmp_path)
    for at in (whole.names.index("_snapshot"), whole.names.index("Event.elapsed_time")):
        last = on_a_card(FailingGpu(fails_at=at, sticky=True), tmp_path)
        said = last.text if last.kind == "failed" else " ".join(last.run.notes if last.run else ())
        assert LOST in said
        assert not space.is_used_again
        space.is_used_again = True
    recovered = on_a_card(FailingGpu(fails_at=whole.names.index("_snapshot")), tmp_path)
    assert (recovered.kind, space.is_used_again) == ("failed", True)


@pytest.mark.parametrize(("phase", "is_kept"), [("step 1 of 1", False), ("timing with the recording off", True)])
def test_the_limit_of_time_is_called_that_and_what_was_measured_by_then_is_kept(
    space: Space, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, is_kept: bool
) -> None:
    plain = worker.answer

    def ended(number: int, request: Request, folder: Path, send: Any, **more: Any) -> None:
        def until(kind: str, number: int, **rest: Any) -> None:
            send(kind, number, **rest)
            if rest.get("phase") == phase:
                raise KeyboardInterrupt

        plain(number, request, folder, until, **more)

    def lends(_number: int, asked: dict[str, Any], folder: str) -> Any:
        with pytest.raises(KeyboardInterrupt):
            zero_gpu._measured(0, asked, folder)
        raise RuntimeError("GPU task aborted")

    monkeypatch.setattr(worker, "answer", ended)
    monkeypatch.setattr(zero_gpu, "measured", lends)
    last = on_a_card(FailingGpu(), tmp_path)
    assert (last.kind == "done", last.run is not None) == (is_kept, is_kept)
    assert f"The Space ended the run (GPU task aborted) while {phase}." in last.text
    assert "for 120 seconds" in last.text
    assert "No GPU was available" not in last.text


def seconds_of(**settings: str) -> int:
    return reserved_seconds(0, Request("feed_forward", settings, on="cuda").as_json(), "")


def test_a_larger_run_reserves_more_seconds_and_none_beyond_the_most(space: Space) -> None:
    small = seconds_of(**SMALL)
    large = seconds_of(sequence="4096", dim="4096", layers="16")
    largest = seconds_of(sequence="4096", dim="8192", layers="64")
    assert FEWEST_SECONDS <= small < large < largest == MOST_SECONDS
    # What cannot be read is refused by the run itself.
    assert reserved_seconds(0, Request("no_such_model", on="cuda").as_json(), "") == MOST_SECONDS


def double(number: int) -> int:
    return 2 * number


def test_on_such_a_space_the_gpu_is_lent_for_so_many_seconds_and_elsewhere_its_package_is_not_looked_for(monkeypatch):
    made = Space()
    monkeypatch.setitem(sys.modules, "spaces", made.module())
    assert on_gpu(double, seconds=90, environment={"SPACES_ZERO_GPU": "true"})(4) == 8
    assert made.durations == [90]
    monkeypatch.setitem(sys.modules, "spaces", Package(AssertionError("it was looked for")))
    assert on_gpu(double, environment={}) is double


class Package(ModuleType):
    """A module whose import or use raises `error`."""

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
    monkeypatch.setitem(sys.modules, "spaces", None)
    with pytest.raises(UsageError, match=r"cannot lend a GPU.*ModuleNotFoundError"):
        on_gpu(double, environment={"SPACES_ZERO_GPU": "1"})(4)
