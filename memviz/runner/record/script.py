"""A user's program, run in this process as if Python had been started with it.

It is `__main__` and stays it until the process ends, `sys.argv` and `sys.path` are what it would have found, and an
error is shown with its own frames only.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

from memviz.errors import UsageError

_OWN_FOLDERS = tuple(f"{Path(__file__).parents[2] / part}{os.sep}" for part in ("runner", "predictor"))
_RELAYS = tuple(os.path.join("torch", name) for name in ("_ops.py", "overrides.py"))
"""Torch's files that relay calls; their frames below ours are hidden too."""


@dataclass(frozen=True)
class Script:
    code: CodeType
    arguments: tuple[str, ...]
    """`sys.argv`, the script first."""
    folder: str
    """First on `sys.path`."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of the module `__main__`."""

    @property
    def name(self) -> str:
        return os.path.basename(self.arguments[0])

    def run(self) -> None:
        module = ModuleType("__main__")
        module.__dict__.update({"__builtins__": builtins, **self.attributes})
        sys.argv[:] = self.arguments
        if not sys.flags.safe_path:
            sys.path[0] = self.folder
        sys.modules["__main__"] = module
        exec(self.code, module.__dict__)

    def run_to_its_end(self) -> None:
        """Python waits for threads that are no daemons before a program is over, and so is this."""
        process = os.getpid()
        try:
            self.run()
        except SystemExit:
            _wait_for_threads(process)
            raise
        _wait_for_threads(process)

    def show(self, error: BaseException) -> None:
        """Print an uncaught error as Python does, without frames before the program or of ours within it."""
        first = error.__traceback__
        while first is not None and first.tb_frame.f_code is not self.code:
            first = first.tb_next
        stripped = error.with_traceback(_without_own_frames(first or error.__traceback__))
        sys.excepthook(type(stripped), stripped, stripped.__traceback__)


def _without_own_frames(at: TracebackType | None) -> TracebackType | None:
    """Remove frames of memviz: the predicted device adds frames that do not exist on a GPU."""
    visible, below_runner, one = [], False, at
    while one is not None:
        file = one.tb_frame.f_code.co_filename
        below_runner = file.startswith(_OWN_FOLDERS) or below_runner and file.endswith(_RELAYS)
        if not below_runner:
            visible.append(one)
        one = one.tb_next
    frames = None
    for one in reversed(visible):
        frames = TracebackType(frames, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return frames or at


def _wait_for_threads(process: int) -> None:
    if os.getpid() != process:
        # One that the program forked, which has come to its own end.
        return
    excluded = (threading.current_thread(), threading.main_thread())
    while running := [thread for thread in threading.enumerate() if not thread.daemon and thread not in excluded]:
        running[0].join()


def load_script(path: str, arguments: Sequence[str]) -> Script:
    """`python path arguments...`"""
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder. Name a script, or a module with -m.")
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}).") from None
    path_in_full = os.path.abspath(path)
    attributes = {
        "__file__": path_in_full,
        "__spec__": None,
        "__loader__": SourceFileLoader("__main__", path_in_full),
        "__package__": None,
        "__cached__": None,
    }
    try:
        code = compile(source, path_in_full, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path_in_full} is not Python: {error}.") from None
    return Script(code, (path, *arguments), str(Path(path).resolve().parent), attributes)


def load_module(name: str, arguments: Sequence[str]) -> Script:
    """`python -m name arguments...`"""
    spec = _spec_of(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = _spec_of(f"{name}.__main__")
    code = getattr(spec.loader, "get_code", lambda name: None)(spec.name) if spec is not None else None
    if spec is None or code is None:
        raise UsageError(f"There is no module {name} that can be run here.")
    path = str(spec.origin)
    attributes = {
        "__file__": path,
        "__spec__": spec,
        "__loader__": spec.loader,
        "__package__": spec.parent,
        "__cached__": spec.cached,
    }
    return Script(code, (path, *arguments), os.getcwd(), attributes)


def _spec_of(name: str) -> ModuleSpec | None:
    """None where there is no such module; a package on the way to it may fail for a reason of its own."""
    try:
        return importlib.util.find_spec(name)
    except ValueError:
        return None
    except ImportError as error:
        if type(error) is ModuleNotFoundError and error.name and f"{name}.".startswith(f"{error.name}."):
            return None
        cause = f"{type(error).__name__}: {error}"
        raise UsageError(f"The package of {name} cannot be imported: {cause}.") from error
