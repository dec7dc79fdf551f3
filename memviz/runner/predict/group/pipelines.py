"""Stages of a pipeline: what their neighbours would tell them of shapes.

A stage that was given its inputs and outputs knows all. What a gradient that comes from the next stage is like
follows from this stage's outputs; what comes from the stage before is known to that one alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from memviz.runner.predict.prediction_errors import Stopped
from memviz.runner.predict.torch_patches import Patches

_MODULE = "torch.distributed.pipelining.stage"
_REMEDY = (
    "A stage that is made with PipelineStage(..., input_args=..., output_args=...) needs no message; "
    "give each rank its own, as tensors of one microbatch."
)


class MessageNeeded(Stopped):
    """Of another rank, which does not run."""


def no_message(object_list: list[Any], src: int | None = None, *args: Any, **named: Any) -> None:
    sender = named.get("group_src") if src is None else src
    whose = "another rank" if sender is None else f"rank {sender}"
    raise MessageNeeded(f"recv_object_list asks for what {whose} sends, and one rank alone runs. {_REMEDY}")


def follow_pipelines(patches: Patches) -> None:
    """Where the program has them; without a vote in this release of torch, static stages ask nobody."""
    module: Any = sys.modules.get(_MODULE)
    stage = getattr(module, "PipelineStage", None)
    if stage is None or not hasattr(stage, "_warmup_forward_vote"):
        return
    receive: Callable[[Any, int], Any] = stage._recv_meta

    def vote(self: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
        """The others vote as this stage does."""
        dynamic = module.InferenceMode.needs_dynamic(self._user_meta, has_backward)
        self._inference_mode = module.InferenceMode.DYNAMIC if dynamic else module.InferenceMode.STATIC
        return torch.tensor([0 if dynamic else 1], dtype=torch.int32, device=self.device)

    def result(self: Any, received_result: Any = None) -> torch.Tensor:
        static = self._inference_mode is module.InferenceMode.STATIC
        return torch.tensor([int(static)], dtype=torch.int32, device=self.device)

    def received(self: Any, src_stage: int) -> Any:
        if src_stage < self.stage_index or self._stage_meta.outputs is None:
            return receive(self, src_stage)
        return module._StageBackwardMeta(backward_metas=module._derive_grad_metas(self._stage_meta.outputs))

    patches.replace(stage, "_warmup_forward_vote", vote)
    patches.replace(stage, "_warmup_backward_result", result)
    patches.replace(stage, "_recv_meta", received)
