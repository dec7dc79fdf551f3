"""Models built quickly: billions of random numbers take a processor minutes and a GPU a second."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from memviz.runner.workloads.model import FromConfiguration


@contextmanager
def drawn_on(kind: str) -> Iterator[None]:
    """Within, workloads are built on that device and handed over in host memory, where a run expects them.

    So the run places its weights itself, in its own order, as it does in the command line; only the numbers differ,
    and nothing of the building is left on the GPU.
    """
    build = FromConfiguration.build

    def build_there(workload: FromConfiguration) -> nn.Module:
        with torch.device(kind):
            model = build(workload)
        model = model.to("cpu")
        gc.collect()
        forget(kind)
        return model

    FromConfiguration.build = build_there  # type: ignore[method-assign]
    try:
        yield
    finally:
        FromConfiguration.build = build  # type: ignore[method-assign]


def forget(kind: str) -> None:
    """The cache, and the workspaces that products of matrices took: a fresh process has neither."""
    if kind != "cuda":
        return
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()
