"""A constructor's signature is worked out once, and is the same as before."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any

from memviz.ui.shell.gradio_events import cache_signatures


def passing_on(function: Any) -> Any:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_signatures_are_those_that_python_would_work_out() -> None:
    class Block:
        def __init__(self, value: int = 1, *, label: str = "") -> None: ...

    class Button(Block):
        @passing_on
        def __init__(self, text: str, **more: Any) -> None: ...

    class Plain(Button): ...

    classes = (Block, Button, Plain)
    before = [inspect.signature(each.__init__) for each in classes]
    inner = inspect.getfullargspec(Button.__init__.__wrapped__)  # type: ignore[attr-defined]
    cache_signatures(Block)
    assert [inspect.signature(each.__init__) for each in classes] == before
    assert inspect.getfullargspec(Button.__init__.__wrapped__) == inner  # type: ignore[attr-defined]
    # Python is not asked to look through them again.
    assert all("__signature__" in each.__init__.__dict__ for each in classes)
