"""A run written by hand, for tests that keep, send or show one."""

from typing import Any

from memviz.predictor.expected_error import Fit
from memviz.runner.request import Request, Run, Seconds

GIB = 1 << 30


def run(**changes: Any) -> Run:
    known: dict[str, Any] = {
        "request": Request("feed_forward", {"batch": "2"}, (("checkpointing", {"every": "2"}),)),
        "label": "checkpointing every=2",
        "describes": "Feed-forward stack, 1.3 B parameters",
        "mode": "predicted",
        "device": "RTX 4090",
        "why": "",
        "window": "1 step",
        "peak_allocated_bytes": 3 * GIB,
        "peak_reserved_bytes": 4 * GIB,
        "peak_requested_bytes": 3 * GIB - 5,
        "weights_bytes": GIB,
        "parameters": GIB // 4,
        "flops": 10**12,
        "bytes_moved": 7 * GIB,
        "seconds": Seconds(0.5, 0.01, 20, "cuda events"),
        "took_seconds": 1.5,
        "fit": Fit(23 * GIB, True, 4 * GIB, None, None, None, -19 * GIB),
        "notes": ("Kernels are not seen.",),
        "provenance": {"torch": "2.13.0"},
        "command": "python -m memviz run feed_forward",
        "code": "apply(model)",
    }
    return Run(**{**known, **changes})
