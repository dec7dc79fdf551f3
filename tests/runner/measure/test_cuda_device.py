"""The measured device, on a GPU that is not there: which GPU, its books, its seconds, and memory that runs out."""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memviz.analysis.annotations import annotated
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.phases import label_of_rows
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.predictor.device import RunDevice
from memviz.runner.measure.accelerator import find_accelerator, is_out_of_memory
from memviz.runner.measure.cuda_device import (
    FEWEST_STEPS,
    FILLED_SECONDS,
    MOST_STEPS,
    CudaDevice,
    reconcile,
    seconds_of,
    time_steps,
)
from memviz.runner.plan import plan_of
from memviz.runner.record.memory_history import is_recording
from memviz.runner.request import Request, Seconds
from memviz.runner.step import convert_on_host, prepare
from memviz.trace.model import Category, Trace
from optimizations.weight_offload import host_bytes
from tests.real import FOLDER, read_once, requires_real
from tests.runner.fake_gpu import FakeGpu, OutOfMemoryError, TorchsGpu, started
from tests.runner.torch_storages import watching_torch

MiB = 1 << 20


class Workload:
    def inputs(self, device: torch.device) -> dict[str, Any]:
        return {"input": torch.ones(48, 32, device=device)}


def on(gpu: FakeGpu, **more: Any) -> CudaDevice:
    return CudaDevice(accelerator=gpu.accelerator, **more)


def one_step(device: RunDevice, model: nn.Module) -> Tensor:
    with device.phase("warm-up"):
        with device.phase("forward"):
            output = model(**device.inputs(Workload()))
        with device.phase("backward"):
            output.mean().backward()
    return output


def categories(trace: Trace, size: int) -> set[str]:
    device = trace.devices[0]
    found = label_of_rows(device, "category")[lifetimes(device).size == size]
    return {Category(each).label for each in found}


def test_a_step_is_recorded_with_phases_modules_and_categories():
    gpu = FakeGpu()
    with watching_torch(gpu), on(gpu) as device:
        model = device.place(nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 8)))
        one_step(device, model)
        trace = device.finish()
    intervals = annotated(trace.devices[0])
    assert [trace.strings[each] for each in intervals.name] == ["warm-up", "forward", "backward"]
    assert (trace.about.origin, trace.about.on) == ("measured", "Fake GPU")
    assert categories(trace, 4 * 48 * 32) == {"input"}
    assert categories(trace, 4 * 48 * 64) <= {"activation", "temporary"}
    module = label_of_rows(trace.devices[0], "module")
    assert {trace.strings[each] for each in module} == {"", "0", "1"}


def test_a_module_put_in_by_an_optimization_and_an_optimizer_are_known_without_being_named():
    gpu = FakeGpu()
    with watching_torch(gpu), on(gpu) as device:
        model = device.place(nn.Sequential(nn.Linear(32, 64, bias=False)))
        model[0] = nn.Sequential(nn.Linear(32, 64, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        one_step(device, model)
        with device.phase("optimizer step"):
            optimizer.step()
        trace = device.finish()
    module = label_of_rows(trace.devices[0], "module")
    assert "0.0" in {trace.strings[each] for each in module}
    assert {"optimizer state", "gradient"} <= categories(trace, 4 * 32 * 64)
    assert not model._forward_hooks


def test_the_history_is_off_after_an_error_and_nothing_is_recorded_or_hooked_where_seconds_are_wanted():
    gpu = FakeGpu()
    with pytest.raises(KeyError), on(gpu):
        raise KeyError
    assert (is_recording(), gpu.is_recording, gpu.history) == (False, False, [])
    with watching_torch(gpu), on(gpu, record=False) as device:
        model = device.place(nn.Linear(32, 64))
        one_step(device, model)
        assert not model._forward_hooks
        assert gpu.history == []
        with pytest.raises(UsageError, match="has no recording"):
            device.finish()


def test_peaks_count_from_the_last_reset_and_agree_with_the_trace():
    gpu = FakeGpu()
    with on(gpu) as device:
        first = gpu.malloc(40 * MiB)
        gpu.free(first)
        kept = gpu.malloc(3 * MiB)
        device.reset_peak()
        second = gpu.malloc(11 * MiB)
        assert device.allocated_bytes == 14 * MiB
        gpu.free(second)
        gpu.free(kept)
        device.finish()
        assert (device.peak_allocated_bytes, device.peak_reserved_bytes) == (14 * MiB, 40 * MiB)
        assert device.peak_requested_bytes == 14 * MiB
    assert device.peaks is not None
    assert not (device.peaks.allocated.difference or device.peaks.reserved.difference)
    assert (device.peaks.allocated.from_trace, device.peaks.reserved.from_trace) == (14 * MiB, 40 * MiB)
    # What was there before the recording counts too.
    gpu = FakeGpu()
    gpu.malloc(8_519_680)
    with on(gpu) as device:
        gpu.free(gpu.malloc(5 * MiB))
        device.finish()
    assert device.peaks is not None
    assert not (device.peaks.allocated.difference or device.peaks.reserved.difference)
    assert device.peaks.allocated.from_trace == 8_519_680 + 5 * MiB


def test_a_full_ring_is_given_as_the_reason():
    gpu = FakeGpu()
    device = on(gpu)
    device.history.max_entries = 3
    with device:
        gpu.free(gpu.malloc(50 * MiB))
        gpu.free(gpu.malloc(MiB))
        device.finish()
    assert device.peaks is not None
    assert device.peaks.allocated.difference == 49 * MiB
    assert device.peaks.allocated.reason.startswith("The history was full")
    assert "full" in device.peaks.allocated.text


def test_a_device_on_which_nothing_was_allocated_is_refused_in_words():
    with pytest.raises(UsageError, match="Nothing was allocated"), on(FakeGpu()) as device:
        device.finish()


@requires_real
@pytest.mark.parametrize("name", ["small-complete", "forward-bf16", "train-mixed-precision"])
def test_real_recordings_agree_from_wherever_the_peak_counts(name):
    trace = read_once(FOLDER / f"{name}.pickle")
    device = trace.devices[0]
    line, count = timeline(device), len(device.events)
    for since in (0, count // 3, count // 2, count - 1):
        reserved = int(line.reserved[since:].max())
        # What only waits for another stream is given back already in the allocator's own figure.
        live = int((line.live - line.waiting)[since:].max())
        peaks = reconcile(trace, device, live, reserved, since=since, lost_events=False)
        assert peaks.reserved.difference == 0
        assert live <= peaks.allocated.from_trace <= reserved


def test_weights_that_stay_on_the_host_are_never_on_the_gpu(monkeypatch):
    """torch's meta device stands for the GPU, to distinguish it from the host; tensors moved there are recorded."""
    gpu, arrived = FakeGpu(), set[int]()
    move = Tensor.to

    def noting(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        arrived.add(tensor.numel())
        return move(tensor, *args, **kwargs)

    chosen = (("layerwise_casting", {"skip": ""}), ("weight_offload", {}))
    plan = plan_of(Request("feed_forward", {"dim": "64", "layers": "2", "mode": "inference"}, chosen))
    model = plan.workload.build()
    convert_on_host(plan, model)
    monkeypatch.setattr(Tensor, "to", noting)
    device = CudaDevice(accelerator=replace(gpu.accelerator, kind="meta"), record=False)
    model = prepare(plan, device, model, lambda _: None)
    offload = plan.offload
    assert offload is not None
    waits = {name: each for name, each in model.named_parameters() if each.device.type == "cpu"}
    assert sum(each.nbytes for each in waits.values()) == host_bytes(model) > 0
    assert {each.dtype for each in waits.values() if each.dim() > 1} == {torch.float8_e4m3fn}
    assert arrived.isdisjoint(each.numel() for each in waits.values())
    assert {each.device.type for each in (*model.parameters(), *model.buffers())} == {"cpu", "meta"}


class Steps:
    """Steps of these lengths, the last one repeated, on a simulated clock."""

    def __init__(self, *lengths: float) -> None:
        self.lengths = list(lengths)
        self.now = 0.0
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        self.now += self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]

    def measured(self, **more: Any) -> Seconds:
        return time_steps(self, FakeEvents(self), clock=lambda: self.now, **more)


class FakeEvents:
    """`torch.cuda` with a GPU that is behind: an event's moment is known only after waiting for it."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.is_done = False

    def synchronize(self) -> None:
        self.is_done = True

    def Event(self, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, gpu: FakeEvents) -> None:
        self.gpu = gpu
        self.at = -1.0

    def record(self) -> None:
        self.at = self.gpu.steps.now

    def elapsed_time(self, other: FakeEvent) -> float:
        assert self.gpu.is_done
        return (other.at - self.at) * 1000


def test_seconds_without_a_warm_up_or_while_recording_are_refused():
    with pytest.raises(UsageError, match="warm-up"):
        Steps(1).measured(warmup=0)
    history = started(FakeGpu())
    with pytest.raises(UsageError, match="recording off"):
        Steps(1).measured()
    history.stop()
    with pytest.raises(UsageError, match="turned on recording itself"):
        Steps(1.0).measured(is_recording=iter([False, True]).__next__)


@pytest.mark.parametrize(
    ("length", "count"), [(FILLED_SECONDS / 20, 20), (100.0, FEWEST_STEPS), (FILLED_SECONDS / 1e9, MOST_STEPS)]
)
def test_short_steps_are_repeated_until_some_seconds_are_full_and_long_ones_three_times(length, count):
    steps = Steps(length)
    assert steps.measured().count == count
    assert steps.count == count + 2


def test_what_time_is_left_is_not_exceeded_and_where_it_is_too_short_for_a_median_it_says_so():
    steps = Steps(0.25)
    assert steps.measured(left_seconds=2.0).count == 6
    assert steps.now <= 2.0
    steps = Steps(10.0)
    with pytest.raises(UsageError, match=r"takes 10\.0 s, and 20 s of the time limit are left: not enough for 3"):
        steps.measured(left_seconds=40.0)
    assert steps.now == 20.0


def test_the_first_backward_and_a_step_that_is_waited_for_do_not_count_and_the_spread_is_between_the_quartiles():
    assert Steps(30, 1, 2, 3, 4).measured() == Seconds(3, 1, 3, "GPU events", 2.5, 3.5)
    found = Steps(30, 7, 1.5).measured()
    assert (found.low, found.median, found.high) == (1.5, 1.5, 1.5)
    assert seconds_of((1.0, 2.0, 3.0, 4.0, 9.0)) == Seconds(3, 2, 5, "GPU events", 2, 4)
    assert seconds_of((2.0,)) == Seconds(2, 0, 1, "GPU events", 2, 2)


MEMORY = SimpleNamespace(_record_memory_history=None, _snapshot=None)


def driver_started() -> bool:
    raise AssertionError("the driver was started")


def torch_with(monkeypatch: pytest.MonkeyPatch, *, version: dict[str, Any] | None = None, **devices: Any) -> None:
    """Torch with these devices, in place of the real one."""
    found = {"cuda": None, "hip": None, **(version or {})}
    absent = SimpleNamespace(is_available=lambda: False, memory=SimpleNamespace())
    torch = SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(**found),
        _C=SimpleNamespace(_cuda_attach_out_of_memory_observer=print),
        **{"cuda": absent, "xpu": absent, **devices},
    )
    monkeypatch.setattr(importlib, "import_module", {"torch": torch}.__getitem__)


def test_a_card_that_the_driver_lists_is_taken_without_starting_it(monkeypatch):
    cuda = SimpleNamespace(_device_count_nvml=lambda: 2, is_available=driver_started, memory=MEMORY)
    torch_with(monkeypatch, version={"cuda": "13.0"}, cuda=cuda)
    found = find_accelerator()
    assert (found.kind, found.api, found.attach_observer) == ("cuda", cuda, print)
    assert found.versions == (("torch", "2.13.0"), ("cuda", "13.0"))
    # Where nothing lists cards torch is asked.
    cuda = SimpleNamespace(_device_count_nvml=lambda: -1, is_available=lambda: True, memory=MEMORY)
    torch_with(monkeypatch, version={"cuda": "13.0"}, cuda=cuda)
    assert find_accelerator().kind == "cuda"


def test_an_intel_gpu_is_taken_where_torch_records_it(monkeypatch):
    torch_with(monkeypatch, xpu=SimpleNamespace(is_available=lambda: True, memory=MEMORY))
    assert (find_accelerator().kind, find_accelerator().attach_observer) == ("xpu", None)
    torch_with(monkeypatch, xpu=SimpleNamespace(is_available=lambda: True, memory=SimpleNamespace()))
    with pytest.raises(UsageError, match="built without CUDA"):
        find_accelerator()


def test_no_card_says_where_to_look_and_without_torch_the_remedy_is_another_python(monkeypatch):
    cuda = SimpleNamespace(_device_count_nvml=lambda: 0, is_available=driver_started, memory=MEMORY)
    torch_with(monkeypatch, version={"cuda": "13.0"}, cuda=cuda)
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES.*`python -m memviz run` predicts"):
        find_accelerator()

    def absent(name: str) -> Any:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UsageError, match="Run memviz with the Python of your script"):
        find_accelerator()


LIBRARIES = [
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES",
    "NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error\nLast error:\nFailed to CUDA calloc async 608",
    "NCCL WARN Cuda failure 2 'out of memory'",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "HIP out of memory. Tried to allocate 2.00 GiB",
    "HIPBLAS_STATUS_ALLOC_FAILED",
    "miopenStatusAllocFailed",
    "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
]
OTHERS = [
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
    "DefaultCPUAllocator: not enough memory: out of memory",
    "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED",
    "mat1 and mat2 shapes cannot be multiplied",
]


def test_libraries_say_it_in_words_of_their_own_and_the_hosts_memory_is_not_the_gpus():
    assert [text for text in LIBRARIES if not is_out_of_memory(RuntimeError(text))] == []
    assert [text for text in OTHERS if is_out_of_memory(RuntimeError(text))] == []
    assert is_out_of_memory(torch.OutOfMemoryError("?"))
    assert not is_out_of_memory(ValueError("we are out of memory"))


def test_what_a_program_makes_of_it_is_still_out_of_memory():
    try:
        try:
            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB")
        except RuntimeError as error:
            raise ValueError("the batch is too large") from error
    except ValueError as dressed:
        assert is_out_of_memory(dressed)


class Deep(nn.Module):
    """Fails in a nested module, whose tensors are freed as soon as the error leaves it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.inner = Inner(text)

    def forward(self, x: Tensor) -> Tensor:
        try:
            return self.inner(x)
        except RuntimeError as error:
            text = str(error)
        raise RuntimeError(text)


class Inner(nn.Module):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.weight = nn.Parameter(torch.ones(16, 24))

    def forward(self, x: Tensor) -> Tensor:
        held = x @ self.weight
        if held.numel():
            raise RuntimeError(self.text)
        return held


@pytest.mark.usefixtures("no_search_for_holders")
@pytest.mark.parametrize(("text", "is_kept"), [(LIBRARIES[0], True), (OTHERS[-1], False)])
def test_what_a_library_ran_out_of_memory_with_is_live_at_the_end_of_the_trace(text, is_kept):
    """The error that arrives is another one, raised after the first one's tensors were freed."""
    gpu = TorchsGpu()
    with watching_torch(gpu), CudaDevice(accelerator=gpu.accelerator) as device:
        model = device.place(Deep(text))
        with pytest.raises(RuntimeError), device.phase("forward"):
            model(torch.ones(1024, 16))
        assert (device.history.at_out_of_memory is not None) is is_kept
        trace = device.finish()
    assert (1024 * 24 * 4 in trace.devices[0].blocks.requested.tolist()) is is_kept


def test_a_model_that_goes_on_within_its_own_handler_is_not_dumped_again_and_again():
    class Retries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                raise RuntimeError(LIBRARIES[0])
            except RuntimeError:
                return self.inner(x)

    gpu, taken = TorchsGpu(), []
    with watching_torch(gpu), CudaDevice(accelerator=gpu.accelerator) as device:
        plain = gpu._snapshot
        gpu._snapshot = lambda: taken.append(1) or plain()  # type: ignore[func-returns-value, method-assign]
        model = device.place(Retries())
        with device.phase("forward"):
            model(torch.ones(8, 4))
        assert taken == []


@pytest.mark.parametrize("gives_again", [lambda gpu: gpu.counts_of.update({1: (1, 0)}), lambda gpu: gpu.malloc(1000)])
def test_a_shortage_on_another_gpu_than_the_threads_is_over_when_any_gpu_gives_again(gives_again):
    gpu = FakeGpu()
    history = started(gpu)
    gpu.observers[-1](1, 5000, 0, 0)
    assert history.at_out_of_memory is not None
    assert history.ended_out_of_memory()
    gives_again(gpu)
    assert not history.ended_out_of_memory()
    history.stop()


def test_neither_a_later_moment_nor_a_fault_in_what_is_done_then_replaces_the_allocators_own():
    gpu = FakeGpu(limit=10_000)
    history = started(gpu)
    history.when_out_of_memory = lambda _: 1 // 0
    held = gpu.malloc(8000)
    with pytest.raises(OutOfMemoryError) as caught:
        gpu.malloc(4000)
    first = history.at_out_of_memory
    gpu.free(held)
    history.failed(caught.value)
    assert history.at_out_of_memory is first is not None
    history.stop()
