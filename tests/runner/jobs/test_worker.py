"""Runs in a worker process: if it dies, every request still ends, and the page stays; those too large are refused."""

import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from memviz.errors import UsageError
from memviz.runner.jobs.worker import RunTooLarge, refuse_if_reduced_model_is_too_large, refuse_if_too_large, size_of
from memviz.runner.jobs.worker_process import (
    LEFT_OUT,
    RunError,
    RunEvent,
    Worker,
    _environment,
    _output_of,
    environment_of,
)
from memviz.runner.plan import Plan, plan_of
from memviz.runner.request import Request, load_run
from memviz.runner.workloads import WORKLOADS
from memviz.runner.workloads.workload import FromConfiguration
from tests.marks import slow
from tests.runner.fake_worker import GROWS
from tests.runner.processes import PATIENCE_SECONDS, is_there, wait_until

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


def test_endless_micro_batches_are_refused_a_deep_model_that_fits_is_not_and_usual_ones_are_not_even_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(RunTooLarge, match="2,000,000,000 passes"):
        refuse_if_too_large(plan("feed_forward", mode="training", micro_batches=10**9), 64 * GiB)
    refuse_if_too_large(plan("feed_forward", layers=2_000, dim=64), GiB)
    monkeypatch.setattr(FromConfiguration, "build", lambda self: pytest.fail("it was built"))
    for kind in WORKLOADS:
        refuse_if_too_large(plan(kind.name), 0)


def test_a_twin_that_cannot_be_made_small_is_refused() -> None:
    """Widths are halved; an odd one stays as it is, and its twin has real numbers."""
    refuse_if_reduced_model_is_too_large(plan("feed_forward", dim=4096), GiB)
    with pytest.raises(UsageError, match="Its reduced model would take about"):
        refuse_if_reduced_model_is_too_large(plan("feed_forward", dim=1_000_003), GiB)


SMALL = Request("feed_forward", {"sequence": "64", "dim": "64", "layers": "2"}, numerics=False)
OWN = """
import torch, time, os, signal

def small():
    return torch.nn.Linear(8, 8), {"input": torch.ones(2, 8)}

def endless():
    while True:
        time.sleep(0.1)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def aborts():
    os.abort()

def wrong():
    raise RuntimeError("the weights are <b>gone</b>")

def talks():
    print("hello from the model")
    os.write(1, b'{"kind": "done", "number": 0}\\n')
    return small()
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def last_of(worker: Worker, *requests: Request) -> list[RunEvent]:
    return [each for each in worker.run(requests) if each.kind in ("done", "failed")]


@pytest.mark.slow
def test_several_runs_share_a_process_and_each_leaves_its_trace(tmp_path: Path, real_workers: None) -> None:
    wider = Request("feed_forward", {"sequence": "64", "dim": "128", "layers": "2"}, numerics=False)
    with Worker(tmp_path) as worker:
        happened = list(worker.run([SMALL, wider]))
    answers = [each for each in happened if each.kind != "phase"]
    assert [each.kind for each in answers] == ["figures", "done"] * 2
    # Figures do not wait for the file of the trace.
    for early, done in zip(answers[::2], answers[1::2], strict=True):
        assert early.file is None and early.run == done.run
    assert [each.phase for each in happened if each.number == 0][:2] == ["starting", "building the model"]
    for each in happened[-1:]:
        assert each.file is not None and each.run is not None
        trace, run = load_run(each.file)
        assert run == each.run
        assert trace.about.origin == "predicted"
        assert run.peak_allocated_bytes >= run.weights_bytes


def test_what_is_refused_does_not_end_the_process(tmp_path: Path, own: Path) -> None:
    unknown, broken = Request("no_such_model"), Request(f"{own}:wrong", numerics=False)
    with Worker(tmp_path) as worker:
        first, second, third = last_of(worker, unknown, broken, SMALL)
    assert (first.what, second.what, third.kind) == ("refused", "refused", "done")
    assert "no_such_model" in first.text
    assert "the weights are <b>gone</b>" in second.text
    assert "own.py" in second.text + second.where


@pytest.mark.slow
def test_memory_of_this_machine_that_is_not_there_is_no_matter_of_the_card_and_no_frames_are_said(
    tmp_path: Path, real_workers: None
) -> None:
    huge = Request("gpt2", {"batch": f"{10**9}", "layers": "1"}, numerics=False)
    beyond = Request("gpt2", {"batch": f"{10**12}", "sequence": "1024", "layers": "1"}, numerics=False)
    with Worker(tmp_path) as worker:
        full, overflow = last_of(worker, huge, beyond)
    assert full.what == "host memory" and "requested" in full.text and "smaller" in full.text
    assert overflow.text and "frame #" not in overflow.text and "enforce fail" not in overflow.text


@pytest.mark.parametrize(("function", "words"), [("killed", "SIGKILL"), ("aborts", "SIGABRT")])
def test_a_process_that_dies_says_how(tmp_path: Path, own: Path, function: str, words: str) -> None:
    with Worker(tmp_path) as worker:
        first, second = last_of(worker, Request(f"{own}:{function}"), SMALL)
    assert first.what == "killed"
    assert words in first.text
    assert second.what == "not begun"


def test_a_full_disk_costs_the_trace_and_not_the_figures(tmp_path: Path) -> None:
    with Worker(tmp_path) as worker:
        # No file of this process may grow beyond 4 KB.
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (4096, 4096))
        (only,) = last_of(worker, SMALL)
    assert (only.kind, only.file) == ("done", None)
    assert only.run is not None and only.run.peak_allocated_bytes > only.run.weights_bytes
    assert "File too large" in only.text
    assert list(tmp_path.iterdir()) == []


def test_a_table_comes_row_by_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each waits until the one before it has been heard."""
    (tmp_path / "slow.py").write_text(
        "import time\nfrom pathlib import Path\n"
        f"for number in range(3):\n    while number and not Path({str(tmp_path)!r}, str(number)).exists():\n"
        "        time.sleep(0.01)\n    print(number, flush=True)\n"
    )
    (tmp_path / "broken.py").write_text("print(1)\nraise SystemExit('no more')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = _output_of("slow")
    assert next(lines) == "0\n"
    for number in (1, 2):
        (tmp_path / str(number)).touch()
        assert next(lines) == f"{number}\n"
    assert list(lines) == []
    with pytest.raises(RunError, match="broken ended with status 1. no more"):
        list(_output_of("broken"))


def test_who_stops_listening_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    (tmp_path / "long.py").write_text(
        f"import time\nprint(1, flush=True)\nwhile True:\n    open({str(alive)!r}, 'w').close()\n    time.sleep(0.02)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = _output_of("long")
    next(lines)
    lines.close()  # type: ignore[attr-defined]
    alive.unlink(missing_ok=True)
    time.sleep(0.2)
    assert not alive.exists()


class FakeWorker(Worker):
    """A worker without PyTorch that starts instantly; its requests select its behaviour."""

    module = "tests.runner.fake_worker"


def test_a_run_that_takes_too_long_is_stopped_as_is_one_that_is_cancelled(tmp_path: Path) -> None:
    with FakeWorker(tmp_path, timeout=1) as worker:
        (only,) = last_of(worker, Request("endless"))
        assert only.what == "timeout"
        assert not worker.is_alive
    assert "1 seconds" in only.text and "MEMVIZ_MAX_RUN_SECONDS" in only.text
    with FakeWorker(tmp_path) as worker:
        heard = worker.run([Request("endless")])
        assert next(heard).phase == "running a step"
        worker.cancel()
        assert [each.what for each in heard] == ["cancelled"]
        assert not worker.is_alive


@pytest.mark.parametrize("act", ["grows", "child-grows"])
def test_a_run_that_takes_too_much_memory_is_ended_with_all_it_started(tmp_path: Path, act: str) -> None:
    with FakeWorker(tmp_path, memory=300 << 20) as worker:
        first, second = last_of(worker, Request(f"{act}:{tmp_path / 'child'}"), Request("done"))
        assert not worker.is_alive
        # A process that was killed holds its memory for a moment yet.
        wait_until(lambda: worker.resident_bytes == 0)
    assert (first.what, second.what) == ("host memory", "not begun")
    assert "300 MiB" in first.text and "MEMVIZ_MAX_RUN_BYTES" in first.text
    if act == "child-grows":
        child = int((tmp_path / "child").read_text())
        wait_until(lambda: not is_there(child))


def test_a_process_that_dies_leaves_no_child_behind_and_a_kill_from_outside_is_noticed(tmp_path: Path) -> None:
    with FakeWorker(tmp_path) as worker:
        (only,) = last_of(worker, Request(f"leaves-a-child:{tmp_path / 'child'}"))
    assert only.what == "killed"
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: not is_there(child))
    with FakeWorker(tmp_path) as worker:
        heard = worker.run([Request("endless")])
        assert next(heard).phase == "running a step"
        os.kill(worker.pid, signal.SIGKILL)
        (only,) = heard
    assert (only.what, "SIGKILL" in only.text) == ("killed", True)


def test_what_was_done_before_the_end_still_counts(tmp_path: Path) -> None:
    """The answer is already in the pipe when the process is killed or the run is cancelled."""
    with FakeWorker(tmp_path) as worker:
        told = last_of(worker, Request("done-then-dies"), Request("done"))
    assert [(each.kind, each.what) for each in told] == [("done", ""), ("failed", "killed")]
    with FakeWorker(tmp_path) as worker:
        happened = worker.run([Request("done"), Request("endless")])
        next(happened)
        wait_until(lambda: worker._lines.qsize() >= 2)
        worker.cancel()
        rest = [(each.kind, each.what) for each in happened if each.kind != "phase"]
    assert rest == [("done", ""), ("failed", "cancelled")]


def test_a_model_too_large_for_this_machine_is_refused_before_it_is_built(tmp_path: Path) -> None:
    deep = Request("feed_forward", {"layers": "10000000"}, numerics=False)
    with Worker(tmp_path, memory=2 << 30) as worker:
        heard = list(worker.run([deep]))
        held = worker.resident_bytes
    assert [each.phase for each in heard if each.phase] == ["starting"]
    assert (heard[-1].what, "10,000,000 layers" in heard[-1].text) == ("refused", True)
    assert held < 1 << 30


@pytest.mark.slow
def test_a_table_beyond_the_bounds_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "grows.py").write_text(GROWS)
    (tmp_path / "stays.py").write_text("import time\nprint(1, flush=True)\ntime.sleep(3600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("MEMVIZ_MAX_RUN_BYTES", "300MiB")
    with pytest.raises(RunError, match="300 MiB .*MEMVIZ_MAX_RUN_BYTES"):
        list(_output_of("grows"))
    monkeypatch.setenv("MEMVIZ_MAX_RUN_SECONDS", "1")
    with pytest.raises(RunError, match="timed out after 1 seconds"):
        list(_output_of("stays"))


def test_what_a_model_prints_is_no_answer_and_the_process_ends_with_whoever_started_it(
    tmp_path: Path, own: Path
) -> None:
    with Worker(tmp_path) as worker:
        (only,) = last_of(worker, Request(f"{own}:talks", numerics=False))
        assert only.kind == "done" and only.run is not None
        process = worker._process
        assert process.poll() is None and process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=PATIENCE_SECONDS) == 0


def test_allocator_settings_reach_the_environment_and_a_prediction(tmp_path: Path) -> None:
    from optimizations.allocator_settings import AllocatorSettings

    asked = replace(SMALL, optimizations=(("allocator_settings", {}),))
    assert environment_of(asked).items() >= AllocatorSettings().environment.items()
    with Worker(tmp_path) as worker:
        (only,) = last_of(worker, asked)
    assert only.kind == "done" and only.file is not None
    assert load_run(only.file)[0].settings["expandable_segments"] is True


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"])
def test_a_baseline_does_not_inherit_the_allocator_settings_of_the_shell(name, monkeypatch):
    monkeypatch.setenv(name, "max_split_size_mb:64")
    given = _environment(environment_of(SMALL))
    assert "max_split_size_mb:64" not in [text for each, text in given.items() if each != LEFT_OUT]
    assert given[LEFT_OUT] == f"{name}=max_split_size_mb:64"
    chosen = replace(SMALL, optimizations=(("allocator_settings", {"conf": "max_split_size_mb:20"}),))
    assert _environment(environment_of(chosen))[name] == "max_split_size_mb:20"


DIES_LATER = """
import os, signal
from pathlib import Path
from memviz.runner import execute
from memviz.runner.jobs import worker
from memviz.runner.step import Outcome

plain = execute.execute

def dies_while_it_times(plan, tell, *, until, recorded):
    recorded(plain(plan, tell))
    os.kill(os.getpid(), signal.SIGKILL)

execute.execute = dies_while_it_times
worker.main()
"""


class DiesLater(Worker):
    module = "memviz_dies_later"


def test_figures_that_were_there_are_kept_where_the_process_dies_later(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "memviz_dies_later.py").write_text(DIES_LATER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with DiesLater(tmp_path) as worker:
        first, second = last_of(worker, SMALL, SMALL)
    assert first.kind == "done" and first.run is not None and first.file is not None
    assert load_run(first.file)[1] == first.run
    assert first.text.startswith("The rest of the run is missing. Its process was ended by SIGKILL.")
    assert second.what == "not begun"
