"""What a measured run says beside its figures: what failed, what was in effect, and who else was there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from memviz.errors import UsageError
from memviz.runner.outcome import Interrupted
from memviz.runner.plan import plan_of
from tests.runner.failing_gpu import FailingGpu
from tests.runner.measured_runs import OWN, WEIGHT, is_quiet, plan, run

pytestmark = pytest.mark.usefixtures("quick")


MISMATCH = "The NVIDIA driver on your system is too old (found version 11040)"


@pytest.mark.parametrize("call", ["init", "synchronize"])
def test_a_card_that_is_listed_but_cannot_start_is_predicted_with_the_reason(tmp_path, call):
    asked = plan(tmp_path, on="auto")
    number = 0 if call == "init" else 1
    gpu = FailingGpu(fails_at=number, raises=lambda: RuntimeError(MISMATCH), sticky=True)
    done = run(gpu, asked)
    assert gpu.names[-1] == call
    assert (done.run.mode, done.run.why) == ("predicted", "Predicted, because nothing can be measured here.")
    assert MISMATCH in done.run.notes[0]
    assert "nvidia-smi" in done.run.notes[0]
    with pytest.raises(UsageError, match="driver on your system is too old"):
        run(FailingGpu(fails_at=number, raises=lambda: RuntimeError(MISMATCH)), plan(tmp_path))


def test_a_card_that_others_have_filled_is_not_called_a_wrong_driver(tmp_path):
    gpu = FailingGpu(fails_at=0, raises=lambda: RuntimeError("CUDA error: out of memory"))
    with pytest.raises(UsageError, match=r"has no memory left to start on: CUDA error: out of memory\. .*who holds it"):
        run(gpu, plan(tmp_path))


@pytest.mark.parametrize("part", ["forward", "backward", "optimizer"])
def test_a_model_that_raises_is_interrupted_with_what_was_live(tmp_path, part):
    source = OWN + RAISING[part]
    with pytest.raises(Interrupted) as caught:
        run(FailingGpu(), plan(tmp_path, source))
    assert isinstance(caught.value.__cause__, ArithmeticError)
    assert caught.value.live_bytes >= WEIGHT
    assert caught.value.trace is not None


RAISING = {
    "forward": """
class Raises(Model):
    def forward(self, input):
        super().forward(input)
        raise ArithmeticError("mine")
def tiny():
    return Raises(), {"input": torch.ones(8, 64)}
""",
    "backward": """
class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("mine")
class Raises(Model):
    def forward(self, input):
        return Broken.apply(super().forward(input))
def tiny():
    return Raises(), {"input": torch.ones(8, 64)}
""",
    "optimizer": """
class Raises(Model):
    def forward(self, input):
        return super().forward(input)
def tiny():
    model = Raises()
    def raises(*_):
        raise ArithmeticError("mine")
    from torch.optim.optimizer import register_optimizer_step_pre_hook
    import builtins
    builtins.handle_of_test = register_optimizer_step_pre_hook(raises)
    return model, {"input": torch.ones(8, 64)}
""",
}


@pytest.fixture(autouse=True)
def no_hook_of_a_test_stays() -> Iterator[None]:
    yield
    import builtins

    handle = builtins.__dict__.pop("handle_of_test", None)
    if handle is not None:
        handle.remove()


def test_notes_of_the_environment_and_of_the_recording_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMVIZ_ALLOC_CONF_LEFT_OUT", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64")
    gpu = FailingGpu()
    plain = gpu.gpu._snapshot
    settings = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:20", "expandable_segments": False}
    gpu.gpu._snapshot = lambda: {**plain(), "allocator_settings": settings}  # type: ignore[method-assign]
    notes = run(gpu, plan(tmp_path)).run.notes
    assert any("max_split_size_mb:64, from the shell, was not in effect" in note for note in notes)
    assert any("settings max_split_size_mb:20, which this run did not choose" in note for note in notes)


@pytest.mark.parametrize(("recorded", "is_off"), [({"expandable_segments": False}, True), ({}, True)])
def test_expandable_segments_that_are_off_are_not_called_on(tmp_path, recorded, is_off):
    asked = plan(tmp_path)
    chosen = replace(asked.request, optimizations=(("allocator_settings", {}),))
    gpu = FailingGpu()
    plain = gpu.gpu._snapshot
    gpu.gpu._snapshot = lambda: {**plain(), "allocator_settings": recorded}  # type: ignore[method-assign]
    done = run(gpu, plan_of(chosen))
    assert done.run.label.endswith("(off on this platform)") is is_off
    assert any("were asked for and are off" in note for note in done.run.notes) is is_off


def test_expandable_segments_that_are_on_are_called_so(tmp_path):
    chosen = replace(plan(tmp_path).request, optimizations=(("allocator_settings", {}),))
    gpu = FailingGpu()
    plain = gpu.gpu._snapshot
    gpu.gpu._snapshot = lambda: {**plain(), "allocator_settings": {"expandable_segments": True}}  # type: ignore[method-assign]
    done = run(gpu, plan_of(chosen))
    assert "off" not in done.run.label
    assert not any("are off" in note for note in done.run.notes)


WARNS = """
import warnings
class Warns(Model):
    def forward(self, input):
        warnings.warn("expandable_segments not supported on this platform (Triggered internally at c10/cuda/x.h:40.)")
        warnings.warn("something of somebody else")
        return self.first(input)
def tiny():
    return Warns(), {"input": torch.ones(8, 64)}
"""


def test_torchs_warnings_are_kept_as_notes_and_other_peoples_are_not(tmp_path):
    notes = run(FailingGpu(), plan(tmp_path, OWN + WARNS)).run.notes
    assert notes.count("PyTorch warns: expandable_segments not supported on this platform") == 1
    assert not any("somebody else" in note for note in notes)


NO_KERNEL = """
import warnings
class Refused(Model):
    def forward(self, input):
        head = "Flash attention kernel not used because:"
        for text in ("an earlier one", head, "Expected head_dim to be at most 256."):
            warnings.warn(text + " (Triggered internally at aten/sdp_utils.cpp:551.)")
        raise RuntimeError("No available kernel. Aborting execution.")
def tiny():
    return Refused(), {"input": torch.ones(8, 64)}
"""


def test_a_refused_attention_kernel_says_torchs_own_reasons(tmp_path):
    with pytest.raises(Interrupted) as caught:
        run(FailingGpu(), plan(tmp_path, OWN + NO_KERNEL))
    assert caught.value.__notes__ == [
        "PyTorch's reasons: Flash attention kernel not used because: Expected head_dim to be at most 256."
    ]


SWITCHES = {
    "off": "torch_cuda._record_memory_history(None)",
    "on": "torch_cuda._record_memory_history('all')",
}


@pytest.mark.parametrize("way", SWITCHES)
def test_a_model_that_switches_the_history_itself_is_told_of_and_none_stays_on(tmp_path, monkeypatch, way):
    gpu = FailingGpu()
    monkeypatch.setattr("builtins.torch_cuda", gpu.gpu, raising=False)
    source = OWN.replace("return self.first(input)", f"{SWITCHES[way]}; return self.first(input)")
    done = run(gpu, plan(tmp_path, source))
    assert any(f"switched the recording {way} by itself" in note for note in done.run.notes)
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
    assert "Another process was on this card with 5,120 MiB when the run began (pid 4711)" in notes
    assert "1,755 of at most 1,980 MHz. It was held back by its power limit." in notes
    assert "CUDA_LAUNCH_BLOCKING is set" in notes
