"""The model as one rank holds it: tensor-parallel parts, shards or a whole copy, or one stage of a pipeline (1F1B).

It is changed, cut and sharded before it has memory, then placed on the card, as training scripts do.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from memviz.errors import UsageError
from memviz.predictor.device import PredictedDevice, RunDevice
from memviz.runner.plan import Plan
from memviz.runner.request import Parallel
from memviz.runner.step import MakePasses, Tell
from optimizations import apply_all
from optimizations.checkpointing import blocks
from optimizations.weight_quantization import Quantized

_COLUMNS, _ROWS, _WHOLE = "colwise", "rowwise", "replicated_with_grad_allreduce"
_LAYER = "layers.*."
_OF_SEQUENCE = Shard(1)


def decoder_of(model: nn.Module) -> Any:
    """The part of transformers' causal language model below its head; None of other models."""
    inner: Any = getattr(model, "model", None)
    parts = ("embed_tokens", "layers", "norm", "rotary_emb")
    return inner if hasattr(model, "lm_head") and all(hasattr(inner, part) for part in parts) else None


def check_tensor(model: nn.Module, size: int) -> None:
    """UsageError where this model's matrices cannot be parted so."""
    inner = decoder_of(model)
    plan = getattr(getattr(inner, "config", None), "base_model_tp_plan", None)
    if inner is None or not plan:
        raise UsageError("tensor parallelism needs a transformers decoder with a plan for it, such as Llama or Qwen3.")
    unknown = sorted({style for style in plan.values() if style not in (_COLUMNS, _ROWS, _WHOLE)})
    if unknown:
        raise UsageError(f"tensor cannot split this model: it has modules that are split as {', '.join(unknown)}.")
    config = inner.config
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if getattr(config, name) % size:
            raise UsageError(f"tensor is {size}, and this model's {name} are {getattr(config, name)}: it must divide.")


def part_matrices(model: Any, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallel. What a stage of a pipeline does not have is left out."""
    inner = decoder_of(model)
    for layer in inner.layers:
        parallelize_module(layer, mesh, _of_a_layer(inner.config.base_model_tp_plan))
    ends: dict[str, ParallelStyle] = {
        "model.embed_tokens": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=_OF_SEQUENCE, use_local_output=False
        ),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=_OF_SEQUENCE, output_layouts=Replicate()),
    }
    there = {path for path, module in model.named_modules() if next(module.parameters(), None) is not None}
    parallelize_module(model, mesh, {path: style for path, style in ends.items() if path in there})
    if inner.config.tie_word_embeddings and {"model.embed_tokens", "lm_head"} <= there:
        # Both are parted by words, and each became a weight of its own.
        model.lm_head.weight = inner.embed_tokens.weight


def _of_a_layer(plan: dict[str, str]) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {
        "input_layernorm": SequenceParallel(),
        "post_attention_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": _OF_SEQUENCE},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        "mlp": PrepareModuleInput(input_layouts=_OF_SEQUENCE, desired_input_layouts=Replicate()),
    }
    for path, style in plan.items():
        name = path.removeprefix(_LAYER)
        if style == _COLUMNS:
            styles[name] = ColwiseParallel()
        elif style == _ROWS:
            styles[name] = RowwiseParallel(output_layouts=_OF_SEQUENCE, use_local_output=False)
        else:
            # Norms of heads: each rank has heads of its own, and the weight is of all.
            styles[name] = SequenceParallel(sequence_dim=2, use_local_output=True)
    return styles


def hold_together(model: nn.Module, mesh: DeviceMesh, parallel: Parallel, card: int) -> nn.Module:
    """Over the axes data and shard."""
    if parallel.shard > 1:
        axes = ("data", "shard") if parallel.data > 1 else ("shard",)
        # FSDP leaves buffers whole on every rank, so codes and scales of quantized weights become parameters.
        for module in model.modules():
            if isinstance(module, Quantized):
                for name, buffer in list(module.named_buffers(recurse=False)):
                    delattr(module, name)
                    module.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
        # Stages gather their weights once for all microbatches.
        again = parallel.pipeline == 1
        policy = CPUOffloadPolicy() if parallel.offload else OffloadPolicy()
        for block in blocks(model).values():
            fully_shard(block, mesh=mesh[axes], reshard_after_forward=again, offload_policy=policy)
        fully_shard(model, mesh=mesh[axes], reshard_after_forward=again, offload_policy=policy)
        return model
    if parallel.data > 1:
        group = mesh["data"].get_group()
        return DistributedDataParallel(model, device_ids=[card], process_group=group, gradient_as_bucket_view=True)
    return model


class ModelStage(nn.Module):
    """Tokens become hidden states in the first one, and logits in the last."""

    def __init__(self, model: nn.Module, number: int, count: int) -> None:
        super().__init__()
        self.whole = model
        self.is_first, self.is_last = number == 0, number == count - 1
        self.tensor_mesh: DeviceMesh | None = None
        """Set where the sequence is sharded between blocks; stages pass on their own shards."""
        _keep_stage(model, number, count)

    def forward(self, inputs: Tensor) -> Tensor:
        inner, model = decoder_of(self.whole), self.whole
        if self.is_first:
            hidden = inner(input_ids=inputs, use_cache=False).last_hidden_state
        else:
            if self.tensor_mesh is not None:
                inputs = DTensor.from_local(inputs, self.tensor_mesh, [Shard(1)])
            hidden = inner(inputs_embeds=inputs, use_cache=False).last_hidden_state
        if self.is_last:
            logits: Tensor = model.lm_head(hidden)  # type: ignore[operator]
            return logits
        return hidden.to_local() if self.tensor_mesh is not None else hidden  # type: ignore[no-any-return]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        config: Any = self.whole.config
        loss: Tensor = self.whole.loss_function(logits=logits, labels=labels, vocab_size=config.vocab_size)  # type: ignore[operator]
        return loss


def _keep_stage(model: Any, number: int, count: int) -> None:
    """Keep the blocks of one stage: equally many in each, the remainder in the first stages."""
    inner = decoder_of(model)
    blocks = list(inner.layers)
    each, over = divmod(len(blocks), count)
    first = number * each + min(number, over)
    own = blocks[first : first + each + (number < over)]
    inner.layers = nn.ModuleList(own)
    inner.config = copy.copy(inner.config)
    inner.config.num_hidden_layers = len(own)
    if number > 0:
        inner.embed_tokens = None
    if number < count - 1:
        inner.norm, model.lm_head = nn.Identity(), None


class PipelineStep:
    """One step of a stage: all microbatches through it, then the optimizer."""

    def __init__(self, plan: Plan, device: RunDevice, model: nn.Module, stage: ModelStage, mesh: DeviceMesh) -> None:
        self._device = device
        self._stage = stage
        parallel = plan.parallel
        count, pieces = parallel.pipeline, plan.passes
        workload: Any = plan.workload
        group = mesh["pipeline"].get_group()
        pipeline_stage = PipelineStage(
            model, mesh["pipeline"].get_local_rank(), count, device.torch_device,
            input_args=(_stage_input(plan, stage),), output_args=(_stage_output(plan, stage),), group=group,
        )  # fmt: skip
        self._schedule = Schedule1F1B(pipeline_stage, pieces, loss_fn=stage.loss)
        self._inputs: dict[str, Any] = {}
        if stage.is_first or stage.is_last:
            tokens = device.inputs(replace(workload, batch=workload.batch * pieces))["input_ids"]
            self._inputs = {"args": (tokens,)} if stage.is_first else {"target": tokens}

    def __call__(self) -> None:
        with self._device.phase("microbatches"):
            inputs = self._inputs
            self._schedule.step(
                *inputs.get("args", ()),
                **({"target": inputs["target"]} if "target" in inputs else {}),
                return_outputs=False,
            )


def _stage_input(plan: Plan, stage: ModelStage) -> Tensor:
    workload: Any = plan.workload
    if stage.is_first:
        return torch.empty(workload.batch, workload.sequence, dtype=torch.long, device="meta")
    return _hidden(plan, stage)


def _stage_output(plan: Plan, stage: ModelStage) -> Tensor:
    if not stage.is_last:
        return _hidden(plan, stage)
    workload, config = plan.workload, decoder_of(stage.whole).config
    shape = (workload.batch, workload.sequence, config.vocab_size)  # type: ignore[attr-defined]
    return torch.empty(shape, dtype=_dtype(stage), device="meta", requires_grad=True)


def _hidden(plan: Plan, stage: ModelStage) -> Tensor:
    workload, config = plan.workload, decoder_of(stage.whole).config
    length = workload.sequence // plan.parallel.tensor  # type: ignore[attr-defined]
    shape = (workload.batch, length, config.hidden_size)  # type: ignore[attr-defined]
    return torch.empty(shape, dtype=_dtype(stage), device="meta", requires_grad=True)


def _dtype(stage: ModelStage) -> torch.dtype:
    return next(stage.parameters()).dtype


def prepare_rank(
    plan: Plan, device: PredictedDevice, model: nn.Module, tell: Tell
) -> tuple[nn.Module, MakePasses | None]:
    """A stage of a pipeline makes the passes of a step in an order of its own."""
    assert device.rank is not None
    parallel = plan.parallel
    if parallel.pipeline > 1:
        inner, count = decoder_of(model), plan.parallel.pipeline
        if inner is None:
            raise UsageError("pipeline parallelism needs a transformers decoder, such as Llama, Qwen3 or Mixtral.")
        if not plan.workload.training:
            raise UsageError("pipeline works in training only. Set mode=training.")
        if not getattr(plan.workload, "sequence", None):
            raise UsageError("pipeline sends tensors of one shape: set the number of tokens with sequence.")
        if len(inner.layers) < count:
            raise UsageError(f"pipeline has {count} stages, but this model has {len(inner.layers)} blocks.")
    if parallel.tensor > 1:
        check_tensor(model, parallel.tensor)
    tell(f"splitting the model for rank {device.rank.number} of {device.rank.world_size}")
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", tuple(parallel.used.values()), mesh_dim_names=tuple(parallel.used))
    changes = [change for change in plan.optimizations if not change.environment and change not in plan.on_host]
    apply_all(model, changes)
    stage = None
    if parallel.pipeline > 1:
        stage = ModelStage(model, mesh["pipeline"].get_local_rank(), parallel.pipeline)
        stage.tensor_mesh = mesh["tensor"] if parallel.tensor > 1 else None
    if parallel.tensor > 1:
        part_matrices(model, mesh["tensor"])
    with device.phase("load"):
        placed = _placed_model(plan, device, model if stage is None else stage, mesh)
    passes = None if stage is None else partial(PipelineStep, plan, device, stage=stage, mesh=mesh)
    return placed, passes


def _placed_model(plan: Plan, device: PredictedDevice, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Copies are made of a whole model; of one that is parted only the parts come to the card."""
    assert device.rank is not None
    parallel = plan.parallel
    if parallel.shard == parallel.tensor == 1:
        return hold_together(device.place(model), mesh, parallel, device.rank.card)
    sharded = hold_together(model, mesh, parallel, device.rank.card)
    device.recorder.position.name_modules(sharded)
    if not parallel.offload:
        return sharded.to_empty(device=device.torch_device)
    sharded.to_empty(device="cpu")
    for module in sharded.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module.register_buffer(name, buffer.to(device.torch_device), name not in module._non_persistent_buffers_set)
    return sharded
