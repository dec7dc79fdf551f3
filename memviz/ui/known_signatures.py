"""What arguments Gradio's components take, worked out once.

Gradio asks Python for the signature of a constructor whenever it makes a component or describes one, which it does for
all of a page's components as soon as a visitor comes. Python answers from `__signature__` where a function has it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def know_signatures(base: type) -> None:
    """Of the constructors of `base` and of all classes made from it so far."""
    classes, seen = [base], set()
    while classes:
        each = classes.pop()
        if each not in seen:
            seen.add(each)
            classes += each.__subclasses__()
            _know(each.__dict__.get("__init__"))


def _know(function: Callable[..., Any] | None) -> None:
    while inspect.isfunction(function) and "__signature__" not in function.__dict__:
        inner = getattr(function, "__wrapped__", None)
        with suppress(ValueError, TypeError):
            function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        function = inner
