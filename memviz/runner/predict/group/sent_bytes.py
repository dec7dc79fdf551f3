"""What one rank sends to others in a collective, along a ring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from memviz.runner.predict.operator_treatments import Instead, Operator, OperatorTotals, tensors_in

_RECEIVES = ("recv_", "recv_any_source_")
_FUNCTIONS = (
    *("all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_reduce", "all_reduce_"),
    *("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced", "all_to_all_single", "broadcast"),
)
"""As DTensor has them."""


def sent_bytes(func: Operator, args: Any, written: Any, count: int) -> int:
    """Of what `count` ranks share all but its own part; of what is summed for all, twice that."""
    name = func._schema.name.partition("::")[2]
    if name in _RECEIVES:
        return 0
    if name == "send":
        return _bytes(args)
    whole = max(_bytes(value) for value in (written, *args))
    return (2 if name.startswith("allreduce") else 1) * whole * (count - 1) // count


def counting_functions(totals: OperatorTotals) -> dict[Operator, Instead]:
    """They run as they are; what they send is added."""
    there: Any = torch.ops._c10d_functional
    return {getattr(there, name).default: _counting(totals, name) for name in _FUNCTIONS if hasattr(there, name)}


def _counting(totals: OperatorTotals, name: str) -> Callable[[Operator, Any, Any], Any]:
    def count(func: Operator, args: Any, kwargs: Any) -> Any:
        group: Any = [value for value in (*args, *kwargs.values()) if isinstance(value, str)][-1]
        ranks = c10d._resolve_process_group(group).size()
        times = {"all_gather": ranks, "all_reduce": 2}.get(name[:10], 1)
        if any(tensor.is_meta for tensor in tensors_in(args[0])):
            totals.link_bytes += times * _bytes(args[0]) * (ranks - 1) // ranks
        return NotImplemented

    return count


def _bytes(value: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors_in(value))
