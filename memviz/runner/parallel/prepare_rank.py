"""A model as one rank of many has it: changed, cut, parted and sharded before it has memory, then put on the card."""

from __future__ import annotations

from functools import partial

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from memviz.runner.parallel.sharded_model import check_tensor, hold_together, part_matrices
from memviz.runner.parallel.stages import PipelineStep, Stage, check_pipeline
from memviz.runner.plan import Plan
from memviz.runner.predict.predicted_device import PredictedDevice
from memviz.runner.step import MakePasses, Tell
from optimizations import apply_all


def prepare_rank(
    plan: Plan, device: PredictedDevice, model: nn.Module, tell: Tell
) -> tuple[nn.Module, MakePasses | None]:
    """A stage of a pipeline makes the passes of a step in an order of its own."""
    assert device.rank is not None
    parallel = plan.parallel
    if parallel.pipeline > 1:
        check_pipeline(plan, model)
    if parallel.tensor > 1:
        check_tensor(model, parallel.tensor)
    tell(f"parting the model as rank {device.rank.number} of {device.rank.world_size}")
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", tuple(parallel.used.values()), mesh_dim_names=tuple(parallel.used))
    changes = [change for change in plan.optimizations if not change.environment]
    apply_all(model, changes)
    stage = _stage(plan, device, model, mesh)
    if parallel.tensor > 1:
        part_matrices(model, mesh["tensor"])
    with device.phase("load"):
        held = _placed(plan, device, model if stage is None else stage, mesh)
    passes = None if stage is None else partial(PipelineStep, plan, device, stage=stage, mesh=mesh)
    return held, passes


def _stage(plan: Plan, device: PredictedDevice, model: nn.Module, mesh: DeviceMesh) -> Stage | None:
    parallel = plan.parallel
    if parallel.pipeline == 1:
        return None
    stage = Stage(model, mesh["pipeline"].get_local_rank(), parallel.pipeline)
    stage.tensor_mesh = mesh["tensor"] if parallel.tensor > 1 else None
    return stage


def _placed(plan: Plan, device: PredictedDevice, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Copies are made of a whole model; of one that is parted only the parts come to the card."""
    assert device.rank is not None
    parallel = plan.parallel
    if parallel.shard == parallel.tensor == 1:
        return hold_together(device.place(model), mesh, parallel, device.rank.card)
    held = hold_together(model, mesh, parallel, device.rank.card)
    device.recorder.position.name_modules(held)
    return held.to_empty(device=device.torch_device)
