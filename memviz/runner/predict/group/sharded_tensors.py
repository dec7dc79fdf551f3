"""DTensor: what torch only reckons with, to know shapes and placements, takes no memory and is no part of the run."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from memviz.runner.predict.torch_patches import Patches

_RECKONS = ("_propagate_tensor_meta_non_cached",)


def follow_sharded_tensors(patches: Patches) -> None:
    try:
        from torch.distributed.tensor._sharding_prop import ShardingPropagator
    except ImportError:
        return
    for name in _RECKONS:
        run = vars(ShardingPropagator).get(name)
        if run is not None:
            patches.replace(ShardingPropagator, name, _apart(run))


def _apart(run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def reckoned(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return run(*args, **kwargs)

    return reckoned
