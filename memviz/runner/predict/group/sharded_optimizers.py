"""ZeroRedundancyOptimizer: it hands out whole weights, so ranks own different ones."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from memviz.runner.predict.group.layout import Layout
from memviz.runner.predict.torch_patches import Patches

_KIND = "ZeroRedundancyOptimizer"
"""By its name: to import it takes long and warns."""


def follow_sharded_optimizers(patches: Patches, layout: Layout) -> None:
    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if type(optimizer).__name__ != _KIND:
            return
        by_weights: dict[Any, list[int]] = {}
        for rank, groups in enumerate(optimizer._partition_parameters_cache):
            shapes = tuple(tuple(weight.shape) for group in groups for weight in group["params"])
            by_weights.setdefault(shapes, []).append(rank)
        layout.unlike = list(by_weights.values())

    patches.call_back(register_optimizer_step_post_hook(stepped).remove)
