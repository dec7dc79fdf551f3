"""What torch's CUDA build does and no rule follows: refused in words, instead of a name that torch has not here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memviz.runner.predict.prediction_errors import not_predicted
from memviz.runner.predict.torch_patches import Patches

_TUNING = "while it tries kernels it copies what they work on, as often as its measurements have it"
_REFUSED = {
    "an allocator of one's own (CUDAPluggableAllocator)": (
        "what it reserves follows rules of its own",
        ("_cuda_customAllocator", "_cuda_changeCurrentAllocator", "_cuda_getAllocator"),
    ),
    "torch.cuda.jiterator": (
        "it compiles C++ for the card, which nobody runs here",
        ("_cuda_jiterator_compile_and_launch_kernel",),
    ),
}


def follow_beyond(patches: Patches) -> None:
    for what, (why, names) in _REFUSED.items():
        for name in names:
            patches.put(torch._C, name, _refuses(what, why))
    patches.put(torch._C, "_cuda_tunableop_enable", _tuning)
    patches.put(torch._C, "_cuda_tunableop_is_enabled", lambda: False)


def _refuses(what: str, why: str) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise not_predicted(what, why)

    return refuse


def _tuning(is_on: bool) -> None:
    if is_on:
        raise not_predicted("torch.cuda.tunable", _TUNING)
