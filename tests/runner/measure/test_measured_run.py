"""Measured runs on a GPU that is not there: figures, notes and failures."""

import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from memviz.errors import UsageError
from memviz.runner.execute import execute, predict
from memviz.runner.jobs.worker import answer
from memviz.runner.measure import cuda_device
from memviz.runner.measure import measured_run as measured
from memviz.runner.measure.measured_run import drawn_on
from memviz.runner.plan import Plan, plan_of
from memviz.runner.record.memory_history import is_recording
from memviz.runner.request import Request
from memviz.runner.step import Interrupted, Outcome, make_optimizer
from optimizations import weight_offload
from tests.facts import missing
from tests.runner.failing_gpu import LOST, FailingGpu
from tests.runner.fake_gpu import FakeGpu, TorchsGpu
from tests.runner.torch_storages import _Storages

pytestmark = pytest.mark.usefixtures("quick")

KIB = 1 << 10
OWN = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64, bias=False)

    def forward(self, input):
        return self.first(input)

def tiny():
    return Model(), {"input": torch.ones(8, 64)}
"""
WEIGHT = 4 * 64 * 64


def with_forward(body: str) -> str:
    """Return the model's file with another body of its forward pass."""
    return OWN.replace("        return self.first(input)", indent(dedent(body).strip(), " " * 8))


def plan(folder: Path, source: str = OWN, **more: Any) -> Plan:
    path = folder / "own.py"
    path.write_text(source)
    known = {"on": "cuda", "optimizer": "sgd", "warmup": 0, "numerics": False, **more}
    return plan_of(Request(f"{path}:tiny", {"mode": "training"}, **known))


def run(gpu: FailingGpu, plan: Plan, **more: Any) -> Outcome:
    with gpu.in_torch():
        return execute(plan, lambda _: None, **more)


def is_quiet(gpu: FailingGpu) -> bool:
    return not is_recording() and not gpu.gpu.is_recording and not gpu.gpu.history


def hooks() -> int:
    from torch.optim import optimizer

    return len(optimizer._global_optimizer_pre_hooks) + len(optimizer._global_optimizer_post_hooks)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """All GPU calls of a successful run, in order."""
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
    """Return the indices to fail at: every call, but only a sample of the many reads of memory statistics."""
    looks = [at for at, name in enumerate(calls) if name == "memory_stats_as_nested_dict"]
    return sorted({at for at in range(len(calls)) if at not in looks} | {*looks[:3], *looks[3:-3:6], *looks[-3:]})


def said(gpu: FailingGpu, plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Return the messages of the run's process."""
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


def test_weights_at_the_peak_of_an_offload_are_those_that_a_prediction_counts(monkeypatch):
    """The fake GPU counts torch's tensors of the processor as its own, except the copies that the offload keeps."""
    host, meet = {}, _Storages._meet

    def keep(tensor, **_):
        copied = tensor.numpy().copy()
        host[copied.ctypes.data] = copied
        return torch.from_numpy(copied)

    small = {"sequence": "1024", "dim": "64", "layers": "4", "mode": "inference"}
    request = Request("feed_forward", small, (("weight_offload", {}),), on="cuda", warmup=0, numerics=False)
    asked = plan_of(request)
    monkeypatch.setattr(weight_offload, "_on_host", keep)
    monkeypatch.setattr(_Storages, "_meet", lambda self, one: None if one.data_ptr() in host else meet(self, one))
    copying = tuple(replace(one, from_host=True) for one in asked.optimizations)
    there = run(FailingGpu(), replace(asked, optimizations=copying))
    predicted = predict(asked, lambda _: None).run
    assert 0 < there.run.weights_at_peak_bytes == predicted.weights_at_peak_bytes < predicted.weights_bytes // 2


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
    """Weak references to objects of the recorded run, and those alive when the timed run begins."""

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
    """AdamW keeps two copies of the weights: a second optimizer at the same time would not fit."""
    alone = run(FailingGpu(), plan(tmp_path, optimizer="adamw"))
    limit = alone.run.peak_allocated_bytes + WEIGHT // 2
    done = run(FailingGpu(TorchsGpu(limit=limit)), plan(tmp_path, optimizer="adamw"))
    assert done.run.seconds is not None
    assert done.run.peak_allocated_bytes == alone.run.peak_allocated_bytes


def test_what_a_model_keeps_elsewhere_is_said_beside_its_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "_REST_BYTES", 1 * KIB)
    monkeypatch.setattr("builtins.kept_by_test", [], raising=False)
    kept = with_forward("kept_by_test.append(self.first(input)); return kept_by_test[-1]")
    done = run(FailingGpu(), plan(tmp_path, kept))
    assert done.run.seconds is not None
    assert any("stayed on the GPU during timing" in note for note in done.run.notes)


def test_a_model_in_a_variable_of_its_own_file_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "_REST_BYTES", 1 * KIB)
    watching = Watching(monkeypatch)
    source = OWN.replace("    return Model(), {", "    global KEPT\n    KEPT = Model()\n    return KEPT, {")
    done = run(FailingGpu(), plan(tmp_path, source))
    assert watching.alive_then == []
    assert not any("stayed" in note for note in done.run.notes)
    assert "own" not in sys.modules


SPEECHLESS = """
import builtins
class Speechless(Exception):
    def __str__(self):
        raise KeyError("no words")
"""


def failing_later(error: str) -> str:
    later = "builtins.steps_of_test += 1\nif builtins.steps_of_test > 1:\n    raise {}\nreturn self.first(input)"
    return SPEECHLESS + with_forward(later.format(error))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        *((f"{kind}('no more')", "no more") for kind in ("RuntimeError", "torch.OutOfMemoryError", "KeyError")),
        # An error that cannot say what it is.
        ("Speechless", "Speechless."),
    ],
)
def test_a_failure_of_the_timing_loses_no_peak_and_no_trace(tmp_path, monkeypatch, error, words):
    monkeypatch.setattr("builtins.steps_of_test", 0, raising=False)
    plain = run(FailingGpu(), plan(tmp_path))
    done = run(FailingGpu(), plan(tmp_path, failing_later(error)))
    assert done.run.seconds is None
    assert missing(done.run.notes[-1], "seconds", "measured") == []
    assert words in done.run.notes[-1]
    assert done.run.peak_allocated_bytes == plain.run.peak_allocated_bytes
    assert done.trace.event_count == plain.trace.event_count


def test_a_model_that_exits_is_interrupted_with_what_was_live_and_costs_a_timed_run_its_seconds_alone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("builtins.steps_of_test", 1, raising=False)
    source = failing_later("SystemExit(3)")
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
        asked = plan(tmp_path, with_forward(resets), optimizer="none")
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
    assert "3 of" in done.run.notes[-1]


MISMATCH = "The NVIDIA driver on your system is too old (found version 11040)"


@pytest.mark.parametrize("call", ["init", "synchronize"])
def test_a_card_that_is_listed_but_cannot_start_is_predicted_with_the_reason(tmp_path, call):
    asked = plan(tmp_path, on="auto")
    number = 0 if call == "init" else 1
    gpu = FailingGpu(fails_at=number, raises=lambda: RuntimeError(MISMATCH), sticky=True)
    done = run(gpu, asked)
    assert gpu.names[-1] == call
    assert done.run.mode == "predicted" and "no GPU" in done.run.why
    assert MISMATCH in done.run.notes[0]
    assert "nvidia-smi" in done.run.notes[0]
    with pytest.raises(UsageError, match="driver on your system is too old"):
        run(FailingGpu(fails_at=number, raises=lambda: RuntimeError(MISMATCH)), plan(tmp_path))


def test_a_card_that_others_have_filled_is_not_called_a_wrong_driver(tmp_path):
    gpu = FailingGpu(fails_at=0, raises=lambda: RuntimeError("CUDA error: out of memory"))
    with pytest.raises(UsageError, match=r"has no free memory: CUDA error: out of memory\. .*which processes use it"):
        run(gpu, plan(tmp_path))


@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
def test_a_model_that_raises_is_interrupted_with_what_was_live(tmp_path, monkeypatch, part):
    handles = []

    def hook_raising() -> None:
        def raises(*_: Any) -> None:
            raise ArithmeticError("mine")

        handles.append(register_optimizer_step_pre_hook(raises))

    monkeypatch.setattr("builtins.hook_raising", hook_raising, raising=False)
    with pytest.raises(Interrupted) as caught:
        run(FailingGpu(), plan(tmp_path, RAISING[part]))
    for handle in handles:
        handle.remove()
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert caught.value.live_bytes >= WEIGHT
    assert caught.value.trace is not None


RAISING = {
    "forward": with_forward('self.first(input)\nraise ArithmeticError("mine")'),
    "backward": with_forward("return Broken.apply(self.first(input))")
    + """
class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("mine")
""",
    "optimizer": OWN.replace("    return Model(), {", "    hook_raising()\n    return Model(), {"),
}


def test_notes_of_the_environment_and_of_the_recording_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMVIZ_ALLOC_CONF_LEFT_OUT", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64")
    gpu = FailingGpu()
    plain = gpu.gpu._snapshot
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:20", "expandable_segments": False}
    gpu.gpu._snapshot = lambda: {**plain(), "allocator_settings": settings}  # type: ignore[method-assign]
    notes = run(gpu, plan(tmp_path)).run.notes
    assert any("max_split_size_mb:64" in note for note in notes)
    assert any("max_split_size_mb:20" in note for note in notes)


@pytest.mark.parametrize(
    ("recorded", "is_off"), [({"expandable_segments": False}, True), ({}, True), ({"expandable_segments": True}, False)]
)
def test_expandable_segments_are_called_off_where_they_are(tmp_path, recorded, is_off):
    asked = plan(tmp_path)
    chosen = replace(asked.request, optimizations=(("allocator_settings", {}),))
    gpu = FailingGpu()
    plain = gpu.gpu._snapshot
    gpu.gpu._snapshot = lambda: {**plain(), "allocator_settings": recorded}  # type: ignore[method-assign]
    done = run(gpu, plan_of(chosen))
    assert done.run.label.endswith("(off on this platform)") is ("off" in done.run.label) is is_off
    assert any("were requested but are off" in note for note in done.run.notes) is is_off


def test_torchs_warnings_are_kept_as_notes_and_other_peoples_are_not(tmp_path):
    warns = with_forward("""
        import warnings
        warnings.warn("expandable_segments not supported on this platform (Triggered internally at c10/cuda/x.h:40.)")
        warnings.warn("something of somebody else")
        return self.first(input)
    """)
    notes = run(FailingGpu(), plan(tmp_path, warns)).run.notes
    assert notes.count("PyTorch warns: expandable_segments not supported on this platform") == 1
    assert not any("somebody else" in note for note in notes)


def test_a_refused_attention_kernel_says_torchs_own_reasons(tmp_path):
    no_kernel = with_forward("""
        import warnings
        head = "Flash attention kernel not used because:"
        for text in ("an earlier one", head, "Expected head_dim to be at most 256."):
            warnings.warn(text + " (Triggered internally at aten/sdp_utils.cpp:551.)")
        raise RuntimeError("No available kernel. Aborting execution.")
    """)
    with pytest.raises(Interrupted) as caught:
        run(FailingGpu(), plan(tmp_path, no_kernel))
    (note,) = caught.value.__notes__
    assert missing(note, "Flash attention kernel", "head_dim to be at most 256.") == []


@pytest.mark.parametrize(("way", "enabled"), [("off", None), ("on", "all")])
def test_a_model_that_switches_the_history_itself_is_told_of_and_none_stays_on(tmp_path, monkeypatch, way, enabled):
    gpu = FailingGpu()
    monkeypatch.setattr("builtins.torch_cuda", gpu.gpu, raising=False)
    source = with_forward(f"torch_cuda._record_memory_history({enabled!r})\nreturn self.first(input)")
    done = run(gpu, plan(tmp_path, source))
    assert any(f"turned {way}" in note for note in done.run.notes)
    assert (done.run.seconds is None) is (way == "on")
    assert done.run.peak_allocated_bytes > WEIGHT
    assert is_quiet(gpu)


def test_others_on_the_card_its_clock_and_waiting_kernels_are_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    gpu = FailingGpu()
    gpu.smi = {
        "query-compute-apps": "GPU-abc, 4711, 5120\nGPU-other, 9, 5\n",
        "clocks.sm": "1755, 1980\n",
        "clocks_event_reasons": "0x0000000000000004\n",
    }
    monkeypatch.setattr(FailingGpu, "get_device_properties", lambda *_: type("P", (), {"uuid": "abc"}), raising=False)
    notes = " ".join(run(gpu, plan(tmp_path)).run.notes)
    assert missing(notes, "5,120 MiB", "pid 4711") == []
    assert missing(notes, "1,755", "1,980 MHz") == []
    assert "CUDA_LAUNCH_BLOCKING is set" in notes


def places_of(model: nn.Module) -> set[str]:
    return {str(parameter.device) for parameter in model.parameters()}


def test_a_model_built_there_comes_back_in_host_memory():
    gpu, built = FakeGpu(), []

    def build() -> nn.Module:
        kept = gpu.malloc(3 << 20)
        built.append(nn.Linear(4, 4).weight.device.type)
        gpu.free(kept)
        return nn.Linear(4, 4)

    with torch.device("meta"):
        model = drawn_on(gpu.accelerator, build)
        assert places_of(nn.Linear(4, 4)) == {"meta"}
    assert (built, places_of(model)) == (["cpu"], {"cpu"})
    assert gpu.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"] == 0


def test_what_has_no_room_there_is_drawn_here():
    gpu, tried = FakeGpu(), []

    def build() -> nn.Module:
        model = nn.Linear(4, 4)
        tried.append(model.weight.device.type)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("Tried to allocate 40.00 GiB.")
        return model

    assert places_of(drawn_on(replace(gpu.accelerator, kind="meta"), build)) == {"cpu"}
    assert tried == ["meta", "cpu"]


def test_another_failure_is_told():
    with pytest.raises(ValueError, match="no such shape"):
        drawn_on(FakeGpu().accelerator, lambda: (_ for _ in ()).throw(ValueError("no such shape")))
