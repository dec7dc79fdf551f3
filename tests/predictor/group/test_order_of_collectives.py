"""Waits for memory that end because NCCL runs a group's collectives in order."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from tests.predictor.group.ranks import as_rank, layers

MiB = 1 << 20


def active() -> int:
    """Return active bytes, including frees that wait for a stream."""
    return torch.cuda.memory_stats()["active_bytes.all.current"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_same_group", [True, False])
def test_collectives_come_one_after_the_other_whichever_stream_asks(is_async: bool, is_same_group: bool) -> None:
    with as_rank(0, 8):
        side, one, other = torch.cuda.Stream(), torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
        group = None if is_same_group else dist.new_group(list(range(8)))
        before = active()
        held = torch.empty(4 * MiB, dtype=torch.uint8, device="cuda")
        held.record_stream(side)
        del held
        with torch.cuda.stream(side):
            first = dist.all_reduce(one, async_op=is_async)
        second = dist.all_reduce(other, group=group, async_op=is_async)
        if is_async:
            # The collective has not been waited for.
            torch.cuda.current_stream().synchronize()
            second.wait()
        torch.cuda.current_stream().synchronize()
        torch.empty(1, device="cuda")
        assert active() - before == (0 if is_same_group else 4 * MiB)
        del first


@pytest.mark.slow
def test_fsdp1_holds_gradients_of_few_blocks_while_they_are_reduced() -> None:
    """It waits for the free before last at every gathering, and that is behind the reducing before."""

    def peak(count: int) -> int:
        with as_rank(0, 8):
            blocks = [FullyShardedDataParallel(block, device_id=0) for block in layers(1024, count)]
            model = FullyShardedDataParallel(nn.Sequential(*blocks), device_id=0)
            model(torch.randn(2, 1024, device="cuda")).sum().backward()
            return torch.cuda.memory_stats()["active_bytes.all.peak"]

    # Of each more, the part of the weight and of its gradient that stays.
    assert peak(16) - peak(8) == 8 * 2 * 4 * MiB // 8
