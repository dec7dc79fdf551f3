"""torch.compile, which is not predicted: what it would compile runs as it stands, and the run says so."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from memviz.runner.predict.patches import Patches
from memviz.runner.predict.stated import Stated

_SENTENCE = (
    "torch.compile is not predicted: what it would compile ran as it stands, operator by operator. Compiled code keeps "
    "less between its operators, so this peak is that of the model without it."
)
_COMPILED = "OptimizedModule"
"""The class of what torch.compile makes of a module; to import it takes seconds."""


@contextmanager
def left_as_it_stands(stated: Stated) -> Iterator[None]:
    def compile(model: Any = None, **kwargs: Any) -> Any:
        stated.say(_SENTENCE)
        return model if model is not None else lambda function: function

    def compile_in_place(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        stated.say(_SENTENCE)

    patches = Patches()
    try:
        patches.replace(torch, "compile", compile)
        patches.replace(nn.Module, "compile", compile_in_place)
        with ExitStack() as stack:
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
    finally:
        patches.undo()


def say_if_compiled(module: nn.Module, stated: Stated) -> None:
    if type(module).__name__ == _COMPILED or module._compiled_call_impl is not None:
        stated.say(_SENTENCE)
