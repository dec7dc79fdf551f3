"""What a rank holds of a model: parts of each matrix, shards of all weights, or a whole copy.

As training scripts do it: `parallelize_module` with parts of the sequence between the blocks, then FSDP2 block by
block and the rest together; only copies are held together by DistributedDataParallel.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
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
from memviz.runner.parallel.parallel import Parallel
from optimizations.checkpointing import blocks

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
        raise UsageError("tensor parts decoders of transformers that say how, as Llama and Qwen3; not this workload.")
    unknown = sorted({style for style in plan.values() if style not in (_COLUMNS, _ROWS, _WHOLE)})
    if unknown:
        raise UsageError(f"tensor cannot part this model: it has modules that are parted as {', '.join(unknown)}.")
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
        # Stages gather their weights once for all microbatches.
        again = parallel.pipeline == 1
        for block in blocks(model).values():
            fully_shard(block, mesh=mesh[axes], reshard_after_forward=again)
        fully_shard(model, mesh=mesh[axes], reshard_after_forward=again)
        return model
    if parallel.data > 1:
        group = mesh["data"].get_group()
        return DistributedDataParallel(model, device_ids=[card], process_group=group, gradient_as_bucket_view=True)
    return model
