"""Out of memory with any library's message, on any GPU; the state is saved before the error frees anything."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from memviz.runner.measure.accelerator import is_out_of_memory
from memviz.runner.measure.cuda_device import CudaDevice
from tests.runner.fake_gpu import FakeGpu, OutOfMemoryError, TorchsGpu, started
from tests.runner.torch_storages import watching_torch

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


@pytest.mark.parametrize("text", LIBRARIES)
def test_libraries_say_it_in_words_of_their_own(text):
    assert is_out_of_memory(RuntimeError(text))


@pytest.mark.parametrize("text", OTHERS)
def test_other_errors_and_the_hosts_own_memory_are_not_the_gpus(text):
    assert not is_out_of_memory(RuntimeError(text))


def test_torchs_own_class_counts_whatever_it_says_and_other_classes_do_not():
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
def test_what_a_library_ran_out_of_memory_with_is_live_at_the_end_of_the_trace():
    """The error that arrives is another one, raised after the first one's tensors were freed."""
    gpu = TorchsGpu()
    with watching_torch(gpu), CudaDevice(accelerator=gpu.accelerator) as device:
        model = device.place(Deep(LIBRARIES[0]))
        with pytest.raises(RuntimeError), device.phase("forward"):
            model(torch.ones(1024, 16))
        trace = device.finish()
    assert 1024 * 24 * 4 in trace.devices[0].blocks.requested.tolist()


def test_an_error_that_is_no_shortage_is_not_kept_as_one():
    gpu = TorchsGpu()
    with watching_torch(gpu), CudaDevice(accelerator=gpu.accelerator) as device:
        model = device.place(Deep(OTHERS[-1]))
        with pytest.raises(RuntimeError), device.phase("forward"):
            model(torch.ones(8, 16))
        assert device.history.at_out_of_memory is None


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


def test_the_gpu_that_ran_out_counts_and_not_that_of_the_thread():
    """The thread continues on GPU 0; GPU 1 has allocated since, so this is not the end."""
    gpu = FakeGpu()
    history = started(gpu)
    gpu.observers[-1](1, 5000, 0, 0)
    assert history.at_out_of_memory is not None
    assert history.ended_out_of_memory()
    gpu.counts_of[1] = (1, 0)
    assert not history.ended_out_of_memory()
    history.stop()


def test_a_shortage_on_another_gpu_is_over_when_any_gpu_gives_again():
    gpu = FakeGpu()
    history = started(gpu)
    gpu.observers[-1](1, 5000, 0, 0)
    gpu.malloc(1000)
    assert not history.ended_out_of_memory()
    history.stop()


def test_the_allocators_own_moment_is_not_replaced_by_a_later_one():
    gpu = FakeGpu(limit=10_000)
    history = started(gpu)
    held = gpu.malloc(8000)
    with pytest.raises(OutOfMemoryError) as caught:
        gpu.malloc(4000)
    first: Any = history.at_out_of_memory
    gpu.free(held)
    history.failed(caught.value)
    assert history.at_out_of_memory is first
    history.stop()


def test_a_fault_in_what_is_done_then_does_not_lose_the_moment():
    gpu = FakeGpu(limit=10_000)
    history = started(gpu)
    history.when_out_of_memory = lambda _: 1 // 0
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(40_000)
    assert history.at_out_of_memory is not None
    history.stop()
