"""The one fact about operators rather than the allocator: the memory they request needs no device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.allocator.driver import Driver


def asked_for(work: Callable[[Any, Any], Any]) -> list[int]:
    """Bytes of every storage that the operators make, on tensors without data."""
    from torch.utils._python_dispatch import TorchDispatchMode

    left, right = torch.empty(1, 32, 32, device="meta"), torch.empty(24, 32, 1, device="meta")
    made = {each.untyped_storage()._cdata: 0 for each in (left, right)}
    kept = []

    class Watch(TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = operator(*args, **(kwargs or {}))
            storage = result.untyped_storage()
            made.setdefault(storage._cdata, storage.nbytes())
            kept.append(result)
            return result

    with Watch():
        work(left, right)
    return [size for size in made.values() if size]


@pytest.mark.parametrize(
    "work",
    [
        lambda left, right: torch.matmul(left, right),
        lambda left, right: torch.matmul(left.expand(24, 32, 32), right),
        lambda left, right: torch.bmm(left.expand(24, 32, 32), right),
    ],
)
def test_fact_37_a_product_of_broadcast_batches_copies_nothing(work: Callable[[Any, Any], Any]) -> None:
    asked = asked_for(work)
    assert asked == [24 * 32 * 4]
    run = Driver()
    for size in asked:
        run.malloc(size)
    assert run.stat("allocated_bytes.all.peak") == 3072
