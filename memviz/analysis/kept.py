"""Results that need the texts or stacks of a trace are kept on it, under what else they depend on.

What `remember.remembered` is for functions of one device: no cache outlives its trace or mixes visitors.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from memviz.trace.model import Trace

Result = TypeVar("Result")


def kept(trace: Trace, key: Hashable, make: Callable[[], Result]) -> Result:
    results = trace.__dict__.setdefault("_kept", {})
    if key not in results:
        results[key] = make()
    result: Result = results[key]
    return result
