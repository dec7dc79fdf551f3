"""A measured run from its request to its Run, on a GPU that is not there: what each call that fails leaves behind."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from memviz.runner.jobs.worker import answer
from memviz.runner.measure import cuda_device
from memviz.runner.measure import measured_run as measured
from memviz.runner.outcome import Interrupted
from memviz.runner.plan import Plan, plan_of
from memviz.runner.record.memory_history import is_recording
from memviz.runner.request import Request
from memviz.runner.step import make_optimizer
from tests.runner.failing_gpu import LOST, FailingGpu
from tests.runner.fake_gpu import TorchsGpu
from tests.runner.measured_runs import KIB, OWN, WEIGHT, hooks, is_quiet, plan, run

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """All that a run that goes well asks of the card, in order."""
    before, cuda_device.FILLED_SECONDS = cuda_device.FILLED_SECONDS, 0.0
    gpu = FailingGpu()
    run(gpu, plan(tmp_path_factory.mktemp("calls")))
    cuda_device.FILLED_SECONDS = before
    return tuple(gpu.names)


@pytest.mark.slow
def test_the_history_is_on_from_before_the_weights_until_the_trace_is_read_and_never_while_seconds_are_measured(calls):
    switches = [at for at, name in enumerate(calls) if name == "_record_memory_history"]
    _cleared, on, off = switches
    read, first_event = calls.index("_snapshot"), calls.index("Event")
    assert on < read < off < first_event
    assert calls.index("init") == 0
    assert "Event.elapsed_time" not in calls[:off]


def each_call(calls: tuple[str, ...]) -> list[int]:
    """Of the many looks at the counters only some; of everything else all."""
    looks = [at for at, name in enumerate(calls) if name == "memory_stats_as_nested_dict"]
    return sorted({at for at in range(len(calls)) if at not in looks} | {*looks[:3], *looks[3:-3:6], *looks[-3:]})


def said(gpu: FailingGpu, plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """What the process of the run says of it."""
    found: list[dict[str, Any]] = []

    def send(kind: str, number: int, **rest: Any) -> None:
        found.append({"kind": kind, "number": number, **rest})

    with gpu.in_torch():
        answer(0, plan.request, folder, send)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "from then on"])
def test_whichever_call_fails_a_run_is_kept_or_refused_in_words_and_nothing_stays_on(calls, tmp_path, sticky):
    asked, before = plan(tmp_path), hooks()
    off = [at for at, name in enumerate(calls) if name == "_record_memory_history"][-1]
    for at in each_call(calls):
        gpu, where = FailingGpu(fails_at=at, sticky=sticky), (at, calls[at])
        *earlier, last = said(gpu, asked, tmp_path)
        if last["kind"] == "failed":
            assert at < off, where
            assert LOST in last["text"], where
        else:
            shown = next(each for each in earlier if each["kind"] == "figures")["run"]
            done = last["run"]
            assert (tmp_path / last["file"]).stat().st_size
            assert shown["peak_allocated_bytes"] == done["peak_allocated_bytes"] > WEIGHT
            assert done["seconds"] or LOST in done["notes"][-1] or at < off, where
        switch_failed = calls[at] == "_record_memory_history" or sticky
        assert not is_recording()
        assert switch_failed or is_quiet(gpu), where
        assert hooks() == before
        gc.collect()
        assert not gpu.gpu.adopted, where


@pytest.mark.slow
def test_a_measured_run_with_an_optimization_ends_in_its_verdict(tmp_path):
    small = {"sequence": "64", "dim": "64", "layers": "2", "mode": "training"}
    asked = plan_of(Request("feed_forward", small, (("checkpointing", {"every": "1"}),), on="cuda"))
    gpu = FailingGpu()
    happened = said(gpu, asked, tmp_path)
    assert [each["kind"] for each in happened if each["kind"] != "phase"] == ["figures", "figures", "done"]
    assert happened[-1]["run"]["numerics"]["verdict"]["ok"] is True
    assert happened[-1]["run"]["seconds"]["count"] >= 3
    assert is_quiet(gpu)


@pytest.mark.slow
def test_ctrl_c_in_whichever_call_ends_the_run_and_leaves_nothing_on(calls, tmp_path):
    asked, before = plan(tmp_path), hooks()
    for at in each_call(calls):
        gpu = FailingGpu(fails_at=at, raises=KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run(gpu, asked)
        assert is_quiet(gpu), (at, calls[at])
        assert hooks() == before
    asked.workload.forget()  # type: ignore[attr-defined]
    gc.collect()
    assert not gpu.gpu.adopted


class Watching:
    """Weak references to what the recorded run made, and what of it is alive when the timed run begins."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[weakref.ref[Any]] = []
        self.alive_then: list[Any] = []
        monkeypatch.setattr(measured, "_seconds", self._beginning(measured._seconds))
        monkeypatch.setattr("memviz.runner.step.make_optimizer", self._optimizer)

    def _optimizer(self, kind: Any, model: nn.Module) -> Any:
        made = make_optimizer(kind, model)
        self.made += [weakref.ref(each) for each in (model, *model.modules(), *model.parameters(), made)]
        model.register_forward_hook(self._output)
        return made

    def _output(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        self.made.append(weakref.ref(output))

    def _beginning(self, seconds: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*arguments: Any) -> Any:
            self.alive_then = [each() for each in self.made if each() is not None]
            return seconds(*arguments)

        return begin


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("keep_output", [False, True])
def test_nothing_of_the_recorded_run_is_alive_when_the_timed_run_begins(tmp_path, monkeypatch, optimizer, keep_output):
    watching = Watching(monkeypatch)
    asked = plan(tmp_path, optimizer=optimizer, keep_output=keep_output, warmup=1)
    done = run(FailingGpu(), asked)
    assert done.run.seconds is not None
    assert len(watching.made) > 6
    assert watching.alive_then == []


def test_a_run_that_barely_fits_is_timed_on_the_same_card(tmp_path):
    """AdamW keeps two copies of the weights: a second optimizer beside the first would not fit."""
    alone = run(FailingGpu(), plan(tmp_path, optimizer="adamw"))
    limit = alone.run.peak_allocated_bytes + WEIGHT // 2
    done = run(FailingGpu(TorchsGpu(limit=limit)), plan(tmp_path, optimizer="adamw"))
    assert done.run.seconds is not None
    assert done.run.peak_allocated_bytes == alone.run.peak_allocated_bytes


def test_what_a_model_keeps_elsewhere_is_said_beside_its_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "_REST_BYTES", 1 * KIB)
    kept = OWN + "\nimport builtins\nbuiltins.kept_by_test = []\n"
    kept = kept.replace(
        "return self.first(input)", "o = self.first(input); __import__('builtins').kept_by_test += [o]; return o"
    )
    done = run(FailingGpu(), plan(tmp_path, kept))
    assert done.run.seconds is not None
    assert any("stayed on the GPU while the seconds were measured" in note for note in done.run.notes)
    import builtins

    del builtins.kept_by_test  # type: ignore[attr-defined]


def test_a_model_in_a_variable_of_its_own_file_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "_REST_BYTES", 1 * KIB)
    watching = Watching(monkeypatch)
    source = OWN.replace("    return Model(), {", "    global KEPT\n    KEPT = Model()\n    return KEPT, {")
    done = run(FailingGpu(), plan(tmp_path, source))
    assert watching.alive_then == []
    assert not any("stayed" in note for note in done.run.notes)
    assert "own" not in sys.modules


FAILS_LATER = """
import builtins
class Fails(Model):
    def forward(self, input):
        builtins.steps_of_test += 1
        if builtins.steps_of_test > 1:
            raise {error}
        return self.first(input)
def tiny():
    return Fails(), {{"input": torch.ones(8, 64)}}
"""


@pytest.mark.parametrize(
    "error", ["RuntimeError('no more')", "torch.OutOfMemoryError('no more')", "KeyError('no more')"]
)
def test_a_failure_of_the_timing_loses_no_peak_and_no_trace(tmp_path, monkeypatch, error):
    monkeypatch.setattr("builtins.steps_of_test", 0, raising=False)
    plain = run(FailingGpu(), plan(tmp_path))
    done = run(FailingGpu(), plan(tmp_path, OWN + FAILS_LATER.format(error=error)))
    assert done.run.seconds is None
    assert "Its seconds could not be measured: " in done.run.notes[-1]
    assert "no more" in done.run.notes[-1]
    assert done.run.peak_allocated_bytes == plain.run.peak_allocated_bytes
    assert done.trace.event_count == plain.trace.event_count


SPEECHLESS = """
import builtins
class Speechless(Exception):
    def __str__(self):
        raise KeyError("no words")
class Fails(Model):
    def forward(self, input):
        builtins.steps_of_test += 1
        if builtins.steps_of_test > 1:
            raise Speechless
        return self.first(input)
def tiny():
    return Fails(), {"input": torch.ones(8, 64)}
"""


def test_an_error_that_cannot_say_what_it_is_loses_no_measurement(tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.steps_of_test", 0, raising=False)
    done = run(FailingGpu(), plan(tmp_path, OWN + SPEECHLESS))
    assert done.run.notes[-1] == "Its seconds could not be measured: Speechless."


def test_a_model_that_exits_is_interrupted_with_what_was_live_and_costs_a_timed_run_its_seconds_alone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("builtins.steps_of_test", 1, raising=False)
    source = OWN + FAILS_LATER.format(error="SystemExit(3)")
    with pytest.raises(Interrupted) as caught:
        run(FailingGpu(), plan(tmp_path, source))
    assert isinstance(caught.value.__cause__, SystemExit)
    assert caught.value.trace is not None
    monkeypatch.setattr("builtins.steps_of_test", 0)
    assert run(FailingGpu(), plan(tmp_path, source)).run.notes[-1] == "Its seconds could not be measured: 3."


def test_a_model_that_resets_the_counters_and_empties_the_cache_is_measured(tmp_path, monkeypatch):
    gpu = FailingGpu()
    monkeypatch.setattr("builtins.gpu_of_test", gpu.gpu, raising=False)
    resets = "gpu_of_test.reset_peak_memory_stats(0); gpu_of_test.empty_cache(); gpu_of_test.allocs = 0; "
    resets += "gpu_of_test.frees = 0; return self.first(input)"
    for mode in ("inference", "training"):
        asked = plan(tmp_path, OWN.replace("return self.first(input)", resets), optimizer="none")
        done = run(gpu, plan_of(replace(asked.request, settings={"mode": mode})))
        assert done.run.peak_allocated_bytes > WEIGHT
        assert done.run.seconds is not None


def test_a_limited_run_is_not_timed_and_says_why(tmp_path):
    gpu = FailingGpu()
    gpu.gpu.get_per_process_memory_fraction = lambda _index: 0.5  # type: ignore[attr-defined]
    done = run(gpu, plan(tmp_path))
    assert done.run.seconds is None
    assert "limited to 50" in done.run.notes[-1]
    assert "Event" not in gpu.names


def test_time_that_is_up_costs_the_seconds_alone(tmp_path):
    done = run(FailingGpu(), plan(tmp_path), until=0.0)
    assert done.run.seconds is None
    assert "not enough for 3 of them" in done.run.notes[-1]


def test_seconds_have_their_quartiles_and_their_number(tmp_path):
    seconds = run(FailingGpu(), plan(tmp_path)).run.seconds
    assert seconds is not None
    assert seconds.count >= 3
    assert seconds.low <= seconds.median <= seconds.high
    assert seconds.spread == pytest.approx(seconds.high - seconds.low)
