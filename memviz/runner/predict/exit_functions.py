"""What a program wants done when Python ends, done when the program does: this process goes on.

What libraries register as they are imported stays with the process, as they do: torch would take back operators that
the next program needs.
"""

from __future__ import annotations

import atexit
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from memviz.runner.predict.program_frames import is_installed, is_of_python
from memviz.runner.predict.torch_patches import Patches

_MODULE = "<module>"
"""The name of the code that runs when a module is imported."""


class ExitFunctions:
    """Of one program."""

    def __init__(self) -> None:
        self._kept: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def run(self) -> None:
        """The last that was registered first; one that fails stops no other."""
        while self._kept:
            function, args, kwargs = self._kept.pop()
            try:
                function(*args, **kwargs)
            except (Exception, SystemExit) as error:
                sys.stderr.write(f"Exception ignored in atexit callback {function!r}:\n")
                traceback.print_exception(error)

    def register(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._kept.append((function, args, kwargs))

    def unregister(self, function: Callable[..., Any]) -> None:
        self._kept = [kept for kept in self._kept if kept[0] != function]


@contextmanager
def exit_functions() -> Iterator[ExitFunctions]:
    """Of whatever runs inside."""
    kept, patches = ExitFunctions(), Patches()
    register, unregister = atexit.register, atexit.unregister

    def registered(func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        code = sys._getframe(1).f_code
        stays = is_of_python(code.co_filename) or (code.co_name == _MODULE and is_installed(code.co_filename))
        if stays:
            register(func, *args, **kwargs)
        else:
            kept.register(func, args, kwargs)
        return func

    def taken_back(func: Callable[..., Any], /) -> None:
        kept.unregister(func)
        unregister(func)

    patches.replace(atexit, "register", registered)
    patches.replace(atexit, "unregister", taken_back)
    try:
        yield kept
    finally:
        patches.undo()
