"""The measured device, on a GPU that is not there: the same protocol, and books that agree."""

from dataclasses import replace
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
from memviz.runner.measure.cuda_device import CudaDevice, reconcile
from memviz.runner.plan import plan_of
from memviz.runner.record.memory_history import is_recording
from memviz.runner.request import Request
from memviz.runner.step import convert_on_host, prepare
from memviz.trace.model import Category, Trace
from optimizations.weight_offload import host_bytes
from tests.real import FOLDER, read_once, requires_real
from tests.runner.fake_gpu import FakeGpu, OutOfMemoryError
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
    intervals = annotated(trace.devices[0]).intervals
    assert [trace.strings[each] for each in intervals.name] == ["warm-up", "forward", "backward"]
    assert (trace.about.origin, trace.about.on) == ("measured", "Fake GPU")
    assert categories(trace, 4 * 48 * 32) == {"input"}
    assert categories(trace, 4 * 48 * 64) <= {"activation", "temporary"}
    module = label_of_rows(trace.devices[0], "module")
    assert {trace.strings[each] for each in module} == {"", "0", "1"}


def test_a_module_put_in_by_an_optimization_is_known_too():
    gpu = FakeGpu()
    with watching_torch(gpu), on(gpu) as device:
        model = device.place(nn.Sequential(nn.Linear(32, 64)))
        model[0] = nn.Sequential(nn.Linear(32, 64))
        one_step(device, model)
        trace = device.finish()
    module = label_of_rows(trace.devices[0], "module")
    assert "0.0" in {trace.strings[each] for each in module}
    assert not model._forward_hooks


def test_an_optimizer_is_known_without_being_named():
    gpu = FakeGpu()
    with watching_torch(gpu), on(gpu) as device:
        model = device.place(nn.Linear(32, 64, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        one_step(device, model)
        with device.phase("optimizer step"):
            optimizer.step()
        trace = device.finish()
    assert "optimizer state" in categories(trace, 4 * 32 * 64)
    assert "gradient" in categories(trace, 4 * 32 * 64)


def test_the_history_is_off_after_an_error_too():
    gpu = FakeGpu()
    with pytest.raises(KeyError), on(gpu):
        raise KeyError
    assert (is_recording(), gpu.is_recording, gpu.history) == (False, False, [])


def test_nothing_is_recorded_or_hooked_where_seconds_are_wanted():
    gpu = FakeGpu()
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


def test_what_was_there_before_the_recording_counts_too():
    gpu = FakeGpu()
    workspace = gpu.malloc(8_519_680)
    with on(gpu) as device:
        gpu.free(gpu.malloc(5 * MiB))
        device.finish()
    gpu.free(workspace)
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


@pytest.mark.usefixtures("no_search_for_holders")
def test_out_of_memory_is_read_as_it_was():
    gpu = FakeGpu(limit=50 * MiB)
    with on(gpu) as device:
        held = gpu.malloc(40 * MiB)
        with pytest.raises(OutOfMemoryError):
            gpu.malloc(20 * MiB)
        gpu.free(held)
        trace = device.finish()
    assert trace.devices[0].blocks.requested.sum() == 40 * MiB


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
