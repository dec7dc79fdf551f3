"""Memory functions of `torch.cuda`, under all their names."""

import pytest
import torch
from torch import nn

from memviz.predictor.device import PredictedDevice
from tests.predictor.rows import A100, WORKSPACE

MiB = 1 << 20


def test_every_name_says_the_same_bytes() -> None:
    with PredictedDevice(A100):
        held, gone = torch.zeros(1000, device="cuda"), torch.zeros(3 * MiB, device="cuda")
        del gone
        # 4,000 bytes in blocks of 512; 2 MiB segments for small ones, and steps of 2 MiB for requests over 10 MiB.
        now, most, reserved = 4096, 4096 + 12 * MiB, 2 * MiB + 12 * MiB
        assert torch.cuda.memory_allocated() == torch.cuda.memory.memory_allocated("cuda:0") == now
        assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated(0) == now
        assert torch.cuda.max_memory_allocated() == torch.accelerator.max_memory_allocated() == most
        assert torch.cuda.memory_reserved() == torch.accelerator.memory_reserved() == reserved
        assert torch.cuda.max_memory_reserved() == torch.accelerator.max_memory_reserved() == reserved
        flat, nested = torch.cuda.memory_stats(), torch.cuda.memory_stats_as_nested_dict()
        assert flat["requested_bytes.all.current"] == nested["requested_bytes"]["all"]["current"] == 4000
        assert flat["allocated_bytes.large_pool.freed"] == 12 * MiB and flat["num_ooms"] == 0
        assert flat == torch.accelerator.memory_stats() and list(flat) == sorted(flat)
        assert "oversize_allocations.allocated" in flat and flat["max_split_size"] == -1
        del held


def test_peaks_and_sums_are_reset_apart() -> None:
    with PredictedDevice(A100) as device:
        torch.zeros(MiB, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == 1
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
        with pytest.warns(FutureWarning, match="reset_max_memory_allocated"):
            torch.cuda.reset_max_memory_allocated()
        with pytest.warns(FutureWarning, match="memory_cached"):
            assert torch.cuda.memory_cached() == 20 * MiB
        torch.accelerator.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        assert device.highest_bytes().reserved == 20 * MiB


def test_the_summary_is_torchs_own() -> None:
    with PredictedDevice(A100):
        held = torch.zeros(MiB, device="cuda")
        whole, short = torch.cuda.memory_summary(), torch.cuda.memory_summary(abbreviated=True)
        assert "Allocated memory" in whole and "4096 KiB" in whole and len(short) < len(whole)
        del held


def test_what_is_free_is_what_a_process_gets_less_what_is_reserved() -> None:
    with PredictedDevice(A100):
        free, total = torch.cuda.mem_get_info()
        # On an A100 up to 1,792 MiB were observed outside PyTorch's allocator.
        assert (free, total) == (A100.memory_bytes - 1792 * MiB, A100.memory_bytes)
        held = torch.zeros(MiB, device="cuda")
        assert torch.cuda.mem_get_info("cuda:0")[0] == free - 20 * MiB
        assert torch.accelerator.get_memory_info() == torch.cuda.cudart().cudaMemGetInfo(0) == torch.cuda.mem_get_info()
        del held


def test_memory_taken_by_hand() -> None:
    with PredictedDevice(A100) as device:
        one = torch.cuda.caching_allocator_alloc(1000)
        side = torch.cuda.Stream()
        other = torch.cuda.caching_allocator_alloc(1000, stream=side)
        assert device.allocated_bytes == 2048 and device.reserved_bytes == 4 * MiB and one != other
        torch.cuda.caching_allocator_delete(one)
        torch.cuda.caching_allocator_delete(other)
        assert device.allocated_bytes == 0
        with pytest.raises(RuntimeError, match="invalid device pointer"):
            torch.cuda.caching_allocator_delete(one)
        assert torch.cuda.get_allocator_backend() == "native"


def test_workspaces_go_when_the_program_says_so_and_come_again() -> None:
    with PredictedDevice(A100) as device:
        model, x = nn.Linear(64, 64, device="cuda"), torch.zeros(2, 64, device="cuda")
        held = device.allocated_bytes
        for _ in range(2):
            model(x)
            assert device.allocated_bytes == held + WORKSPACE
            torch._C._cuda_clearCublasWorkspaces()  # type: ignore[attr-defined]
            assert device.allocated_bytes == held


def test_pools_of_ones_own() -> None:
    with PredictedDevice(A100) as device:
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            held = torch.zeros(1000, device="cuda")
        other = torch.zeros(1000, device="cuda")
        assert device.reserved_bytes == 4 * MiB
        assert [segment["segment_pool_id"] for segment in pool.snapshot()] == [pool.id]
        del held, pool
        torch.cuda.empty_cache()
        assert device.reserved_bytes == 2 * MiB
        del other
