"""A predicted rank of a group, as a context manager for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from memviz.predictor.device import PredictedDevice
from memviz.predictor.group.ranks import GroupRank
from tests.predictor.rows import A100


@contextmanager
def as_rank(number: int, world_size: int, *, begun: bool = True, **options: Any) -> Iterator[PredictedDevice]:
    with PredictedDevice(A100, rank=GroupRank(number, world_size), **options) as device:
        if begun:
            dist.init_process_group("nccl")
        yield device


def held() -> int:
    """Return the requested bytes of live tensors, without cuBLAS's workspaces."""
    clear: Any = torch._C._cuda_clearCublasWorkspaces  # type: ignore[attr-defined]
    clear()
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def layers(width: int, count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))
