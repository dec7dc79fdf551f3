"""A step that two processes share: `parallel_step.py WAY`, where WAY is data, sharded or tensor.

On the host, where numbers are computed, each process also takes the step alone and says how far the shared one is off.
"""

from __future__ import annotations

import copy
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WIDTH, ROWS = 64, 16


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def shared(model: nn.Sequential, way: str, device: torch.device) -> nn.Module:
    if way == "data":
        return DistributedDataParallel(model)
    mesh = dist.init_device_mesh(device.type, (dist.get_world_size(),))
    if way == "tensor":
        return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(way: str) -> None:
    on_card = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_card else torch.device("cpu")
    meet_at = os.environ.get("MEET_AT", "env://")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("nccl" if on_card else "gloo", init_method=meet_at, rank=rank, world_size=world_size)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)).to(device)
    alone = copy.deepcopy(model)
    batch = torch.randn(ROWS, WIDTH, device=device)
    own = batch if way == "tensor" else batch.chunk(dist.get_world_size())[dist.get_rank()]
    parallel = shared(model, way, device)
    out = parallel(own)
    out.square().mean().backward()
    if on_card:
        return
    expected = alone(batch)
    expected.square().mean().backward()
    near = expected if way == "tensor" else expected.chunk(dist.get_world_size())[dist.get_rank()]
    off = [(whole(out) - near).abs().max()]
    for one, other in zip(model.parameters(), alone.parameters(), strict=True):
        off.append((whole(one.grad) - other.grad).abs().max())
    print(max(float(difference) for difference in off))


train(sys.argv[1])
