"""ZeroGPU Spaces lend a GPU for the length of one function, in a process that is used again for the next visitor.

So a whole measured run has to be inside one such function: the history is of the process, and is switched off and
cleared before the function returns (`History.stop`). Elsewhere the function stays what it is.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from memviz.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SECONDS = 120
_ON_ZERO_GPU = "SPACES_ZERO_GPU"


def is_zero_gpu(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get(_ON_ZERO_GPU, "").lower() in ("1", "true", "t")


def on_gpu(
    function: F, *, seconds: int | Callable[..., int] = DEFAULT_SECONDS, environment: Mapping[str, str] = os.environ
) -> F:
    """`seconds` may be a function of the same arguments. Arguments and result are pickled: never return a tensor of
    the GPU. The package is part of such a Space and of nothing else, so it is looked for only there.

    This happens while the page starts. Whatever that package ends in, the page is there all the same, and says so to
    whoever asks for the GPU."""
    if not is_zero_gpu(environment):
        return function
    try:
        spaces = importlib.import_module("spaces")
        wrapped: F = spaces.GPU(duration=seconds)(function)
    except (Exception, SystemExit) as error:
        return cast(F, _refusing(f"{type(error).__name__}: {error}"))
    return wrapped


def _refusing(why: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise UsageError(f"This Space cannot lend a GPU, because its package `spaces` could not be used ({why}).")

    return refuse
