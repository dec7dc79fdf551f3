"""Profilers find a card that takes no time: marks are kept by nobody, and what a profile says of the host is true."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from memviz.runner.predict.torch_patches import Patches


def follow_profilers(patches: Patches) -> None:
    _mark_ranges(patches)
    emits: Any = torch.autograd.profiler.emit_nvtx
    patches.put(emits, "__enter__", lambda self: self)
    patches.put(emits, "__exit__", lambda self, *error: False)
    begin: Any = torch.autograd.profiler.profile.__init__

    def begun(self: Any, *args: Any, use_cuda: bool = False, use_device: str | None = None, **options: Any) -> None:
        if not use_cuda and use_device != "cuda":
            begin(self, *args, use_device=use_device, **options)
            return
        begin(self, *args, **{**options, "use_cpu": True})
        # Its tables have the card's columns then.
        self.use_device = "cuda"

    patches.put(torch.autograd.profiler.profile, "__init__", begun)


def _mark_ranges(patches: Patches) -> None:
    """For a profiler that is not there."""
    depth: list[None] = []

    def push(message: str, *rest: Any) -> int:
        depth.append(None)
        return len(depth) - 1

    def pop(*rest: Any) -> int:
        if depth:
            depth.pop()
        return len(depth)

    nothing: Callable[..., int] = lambda *args: 0  # noqa: E731
    ranges = {"rangePushA": push, "rangePop": pop, "rangeStartA": nothing, "rangeEnd": nothing, "markA": nothing}
    stub = SimpleNamespace(**ranges, deviceRangeStart=nothing, deviceRangeEnd=nothing)
    patches.put(torch.cuda.nvtx, "_nvtx", stub)
