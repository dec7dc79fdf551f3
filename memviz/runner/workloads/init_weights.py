"""Random weights, drawn where that is quick: thousands of millions take a processor minutes and a GPU a second."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import nn

from memviz.runner.measure.accelerator import Accelerator


def drawn_on(accelerator: Accelerator, build: Callable[[], nn.Module]) -> nn.Module:
    """Built there and handed over in host memory, where a run expects it and places it in its own order.

    Nothing of the building stays on the GPU. A model that does not fit there is drawn by the processor, so that it
    is the run that says so.
    """
    try:
        with torch.device(accelerator.kind):
            return build().to("cpu")
    except torch.OutOfMemoryError:
        pass
    finally:
        clear(accelerator)
    return build()


def clear(accelerator: Accelerator) -> None:
    """The cache, and the workspaces that products of matrices took: a fresh process has neither."""
    gc.collect()
    if accelerator.kind == "cuda":
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
    accelerator.api.memory.empty_cache()
