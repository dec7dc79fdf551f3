"""On a machine with a GPU a test is measured; here a fake GPU records as torch does."""

import pytest

from memviz.testing import gpu_memory
from memviz.testing.gpu_memory import GpuMemory, limit_of, over_limit
from tests.runner.fake_gpu import FakeGpu

MiB = 1 << 20


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    made = FakeGpu()
    monkeypatch.setattr(gpu_memory, "find_accelerator", lambda: made.accelerator)
    monkeypatch.setattr("memviz.runner.record.recording.find_accelerator", lambda: made.accelerator)
    return made


def test_what_was_there_before_is_not_the_tests(gpu: FakeGpu):
    earlier = gpu.malloc(30 * MiB)
    memory = GpuMemory("test_x", limit_of("5 MiB"), predicts=False)
    memory.start()
    assert not memory.is_predicted and memory.peak_bytes == 0
    for _ in range(2):
        gpu.free(gpu.malloc(6 * MiB))
    assert memory.peak_bytes == 6 * MiB
    memory.finish()
    gpu.malloc(50 * MiB)
    memory.finish()
    assert memory.trace is not None and memory.device is not None and memory.used is not None
    assert (memory.used.peak_bytes, memory.used.before_bytes, memory.peak_bytes) == (6 * MiB, 30 * MiB, 6 * MiB)
    assert (memory.trace.about.origin, memory.trace.about.source) == ("measured", "test_x")
    words = over_limit(memory.trace, memory.device, 5 * MiB)
    assert words.startswith(
        "The test held 6.00 MiB of GPU memory at its peak, 1.00 MiB more than its limit of 5.00 MiB"
    )
    assert over_limit(memory.trace, memory.device, 6 * MiB) == ""
    gpu.free(earlier)


def test_one_may_predict_all_the_same(gpu: FakeGpu):
    assert GpuMemory("test_x", limit_of(), predicts=True).is_predicted
