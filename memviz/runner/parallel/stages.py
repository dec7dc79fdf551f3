"""A pipeline of a decoder: one stage's blocks, and its steps by 1F1B."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Shard

from memviz.errors import UsageError
from memviz.runner.parallel.sharded_model import decoder_of
from memviz.runner.plan import Plan
from memviz.runner.run_device import RunDevice


class Stage(nn.Module):
    """Tokens become hidden states in the first one, and logits in the last."""

    def __init__(self, model: nn.Module, number: int, count: int) -> None:
        super().__init__()
        self.whole = model
        self.is_first, self.is_last = number == 0, number == count - 1
        self.tensor_mesh: DeviceMesh | None = None
        """Where the sequence is parted between blocks; stages pass on what they hold of it."""
        _cut(model, number, count)

    def forward(self, given: Tensor) -> Tensor:
        inner, model = decoder_of(self.whole), self.whole
        if self.is_first:
            hidden = inner(input_ids=given, use_cache=False).last_hidden_state
        else:
            if self.tensor_mesh is not None:
                given = DTensor.from_local(given, self.tensor_mesh, [Shard(1)])
            hidden = inner(inputs_embeds=given, use_cache=False).last_hidden_state
        if self.is_last:
            logits: Tensor = model.lm_head(hidden)  # type: ignore[operator]
            return logits
        return hidden.to_local() if self.tensor_mesh is not None else hidden  # type: ignore[no-any-return]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        config: Any = self.whole.config
        made: Tensor = self.whole.loss_function(logits=logits, labels=labels, vocab_size=config.vocab_size)  # type: ignore[operator]
        return made


def check_pipeline(plan: Plan, model: nn.Module) -> None:
    inner, count = decoder_of(model), plan.parallel.pipeline
    if inner is None:
        raise UsageError("pipeline cuts decoders of transformers, as Llama, Qwen3 and Mixtral; not this workload.")
    if not plan.workload.training:
        raise UsageError("pipeline is of a training step here. Set mode=training.")
    if not getattr(plan.workload, "sequence", None):
        raise UsageError("pipeline hands on tensors of one shape: say how many tokens there are with sequence.")
    if len(inner.layers) < count:
        raise UsageError(f"pipeline has {count} stages, and this model has {len(inner.layers)} blocks.")


def _cut(model: Any, number: int, count: int) -> None:
    """As many blocks in each, those that are left over in the first ones."""
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

    def __init__(self, plan: Plan, device: RunDevice, model: nn.Module, stage: Stage, mesh: DeviceMesh) -> None:
        self._device = device
        self._stage = stage
        parallel = plan.parallel
        count, pieces = parallel.pipeline, plan.passes
        workload: Any = plan.workload
        group = mesh["pipeline"].get_group()
        made = PipelineStage(
            model, mesh["pipeline"].get_local_rank(), count, device.torch_device,
            input_args=(_given(plan, stage),), output_args=(_made(plan, stage),), group=group,
        )  # fmt: skip
        self._schedule = Schedule1F1B(made, pieces, loss_fn=stage.loss)
        self._inputs: dict[str, Any] = {}
        if stage.is_first or stage.is_last:
            tokens = device.inputs(replace(workload, batch=workload.batch * pieces))["input_ids"]
            self._inputs = {"args": (tokens,)} if stage.is_first else {"target": tokens}

    def __call__(self) -> None:
        with self._device.phase("microbatches"):
            given = self._inputs
            self._schedule.step(
                *given.get("args", ()),
                **({"target": given["target"]} if "target" in given else {}),
                return_outputs=False,
            )


def _given(plan: Plan, stage: Stage) -> Tensor:
    workload: Any = plan.workload
    if stage.is_first:
        return torch.empty(workload.batch, workload.sequence, dtype=torch.long, device="meta")
    return _hidden(plan, stage)


def _made(plan: Plan, stage: Stage) -> Tensor:
    if not stage.is_last:
        return _hidden(plan, stage)
    workload, config = plan.workload, decoder_of(stage.whole).config
    shape = (workload.batch, workload.sequence, config.vocab_size)  # type: ignore[attr-defined]
    return torch.empty(shape, dtype=_dtype(stage), device="meta", requires_grad=True)


def _hidden(plan: Plan, stage: Stage) -> Tensor:
    workload, config = plan.workload, decoder_of(stage.whole).config
    length = workload.sequence // plan.parallel.tensor  # type: ignore[attr-defined]
    shape = (workload.batch, length, config.hidden_size)  # type: ignore[attr-defined]
    return torch.empty(shape, dtype=_dtype(stage), device="meta", requires_grad=True)


def _dtype(stage: Stage) -> torch.dtype:
    return next(stage.parameters()).dtype
