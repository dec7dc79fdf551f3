"""Kernels that a program or a library wrote in Triton: without a card nothing can run them.

They write into tensors that they are given, and take no memory of the allocator's themselves. So their memory is what
the Python around them asks for, which runs as it stands. Triton is not imported for this: where a library brought it
along before the device was there, it is followed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from memviz.runner.predict.arguments import tensors_among
from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.torch_patches import Patches

NOT_RUN = (
    "Kernels written in Triton did not run: they write into tensors that are there, so their memory is predicted, and "
    "what they read and write is not counted as work."
)
_LAUNCHED_BY = (("triton.runtime.jit", "JITFunction"), ("triton.runtime.autotuner", "Autotuner"))
Lose = Callable[[Any], None]
"""The values of the tensors in something."""


def follow_triton(patches: Patches, lose: Lose, assumptions: Assumptions) -> None:
    for module, name in _LAUNCHED_BY:
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            patches.replace(kind, "run", _not_on_card(kind.run, lose, assumptions))


def _not_on_card(run: Any, lose: Lose, assumptions: Assumptions) -> Any:
    def launched(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            given = [tensor for tensor in tensors_among((args, kwargs)) if tensor.is_meta]
            if given:
                lose(given)
        if not given:
            return run(kernel, *args, **kwargs)
        assumptions.say(NOT_RUN)
        return None

    return launched
