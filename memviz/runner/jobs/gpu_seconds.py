"""For how many seconds a lent GPU is asked for: by the size of the run, since a visitor's quota pays for what is asked.

A guess from above, made without the GPU. What does not end in that time is ended by the Space, so seconds are only
measured while enough is left.
"""

from __future__ import annotations

import math
from typing import Any

FEWEST_SECONDS = 30
MOST_SECONDS = 120
_START_SECONDS = 20.0
"""Imports, the driver, the first kernels."""
_TIMED_SECONDS = 5.0
_OUTPUTS_SECONDS = 25.0
"""The small twin with and without what is compared."""
_BYTES_A_SECOND = 1 << 30
"""Weights are drawn twice, copied to the GPU and back: slowly, where half a machine is lent."""
_FLOPS_A_SECOND = 10e12
_TIMED_STEPS = 4


def reserved_seconds(_number: int, request: dict[str, Any], _folder: str) -> int:
    """Takes what the lent function takes. Of what cannot be told before it runs it asks for the most."""
    try:
        return guessed(request)
    except Exception:
        return MOST_SECONDS


def guessed(request: dict[str, Any]) -> int:
    import torch

    from memviz.runner.plan import plan_of
    from memviz.runner.request import Request
    from memviz.runner.workloads.model import FromConfiguration

    plan = plan_of(Request.from_json(request))
    workload = plan.workload
    if not isinstance(workload, FromConfiguration):
        return MOST_SECONDS
    with torch.device("meta"):
        weights = list(workload.build().parameters())
        inputs = workload.inputs(torch.device("meta"))
    rows = max((_rows(each) for each in inputs.values() if isinstance(each, torch.Tensor)), default=1)
    step = 2 * sum(each.numel() for each in weights) * rows * workload.micro_batches * (3 if workload.training else 1)
    steps = 2 * plan.request.warmup + plan.request.steps + _TIMED_STEPS
    seconds = _START_SECONDS + _TIMED_SECONDS
    seconds += 4 * sum(each.numel() * each.element_size() for each in weights) / _BYTES_A_SECOND
    seconds += steps * step / _FLOPS_A_SECOND
    seconds += _OUTPUTS_SECONDS if plan.optimizations and plan.request.numerics else 0
    return max(FEWEST_SECONDS, min(MOST_SECONDS, math.ceil(seconds)))


def _rows(tensor: Any) -> int:
    """Tokens, or whatever else each weight is used once for: channels come last where there are any."""
    return int(
        tensor.numel() // tensor.shape[-1] if tensor.is_floating_point() and tensor.dim() > 1 else tensor.numel()
    )
