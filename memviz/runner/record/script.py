"""A user's program, run in this process as if Python had been started with it.

It is `__main__` and stays it until the process ends, `sys.argv` and `sys.path` are what it would have found, and an
error is shown with its own frames only.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import io
import json
import linecache
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import accumulate
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, cast
from weakref import ref

from memviz.errors import UsageError

_OWN_FOLDERS = tuple(f"{Path(__file__).parents[2] / part}{os.sep}" for part in ("runner", "predictor"))
_RELAYS = tuple(os.path.join("torch", name) for name in ("_ops.py", "overrides.py"))
"""Torch's files that relay calls; their frames below ours are hidden too."""


@dataclass(frozen=True)
class Script:
    codes: tuple[CodeType, ...]
    """One, or the cells of a notebook."""
    arguments: tuple[str, ...]
    """`sys.argv`, the script first."""
    folder: str
    """First on `sys.path`."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of the module `__main__`."""
    skipped: tuple[str, ...] = ()
    """Commands of Jupyter in a notebook, which do not run."""

    @property
    def is_notebook(self) -> bool:
        return self.arguments[0].endswith(NOTEBOOK)

    @property
    def name(self) -> str:
        return os.path.basename(self.arguments[0])

    def run(self, ended: Callable[[], None] = lambda: None) -> None:
        """`ended` is called after each cell of a notebook."""
        module = ModuleType("__main__")
        module.__dict__.update({"__builtins__": builtins, **self.attributes})
        sys.argv[:] = self.arguments
        if not sys.flags.safe_path:
            sys.path[0] = self.folder
        sys.modules["__main__"] = module
        if package := self.attributes.get("__package__"):
            importlib.import_module(package)
        for code in self.codes:
            try:
                exec(code, module.__dict__)
            finally:
                ended()

    def run_to_its_end(self, ended: Callable[[], None] = lambda: None) -> None:
        """Python waits for threads that are no daemons before a program is over, and so is this."""
        process, others = os.getpid(), {*threading.enumerate(), threading.main_thread()}
        try:
            self.run(ended)
        except SystemExit:
            _wait_for_threads(process, others)
            raise
        _wait_for_threads(process, others)

    def show(self, error: BaseException) -> None:
        """Print an uncaught error as Python does, without frames before the program or of ours within it."""
        first = error.__traceback__
        while first is not None and first.tb_frame.f_code not in self.codes:
            first = first.tb_next
        stripped = error.with_traceback(_without_own_frames(first or error.__traceback__))
        # Python's own hook reads the lines of files alone.
        show = traceback.print_exception if self.is_notebook else sys.excepthook
        show(type(stripped), stripped, stripped.__traceback__)


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


def _wait_for_threads(process: int, others: set[threading.Thread]) -> None:
    """Wait for the threads of a program; `others` were there before it."""
    if os.getpid() != process:
        # One that the program forked, which has come to its own end.
        return
    while running := [thread for thread in threading.enumerate() if not thread.daemon and thread not in others]:
        # A pool that was not shut down would wait for more work; Python lets it finish and end as a program exits.
        for argument in getattr(running[0], "_args", None) or ():
            if isinstance(argument, ref) and isinstance(pool := argument(), ThreadPoolExecutor):
                pool.shutdown()
        running[0].join()


def load_script(path: str, arguments: Sequence[str]) -> Script:
    """`python path arguments...`"""
    if os.path.isdir(path):
        raise UsageError(f"{path} is a folder. Give a script, or a module with -m.")
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
    folder = str(Path(path).resolve().parent)
    if path.endswith(NOTEBOOK):
        cells = notebook_cells(source, path_in_full)
        skipped = tuple(line for cell in cells for line in cell.skipped)
        names = {"__name__": "__main__", "In": [], "Out": {}}
        return Script(tuple(cell.code for cell in cells), (path, *arguments), folder, names, skipped)
    try:
        code = compile(source, path_in_full, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"{path_in_full} is not Python: {error}.") from None
    return Script((code,), (path, *arguments), folder, attributes)


NOTEBOOK = ".ipynb"
_COMMAND = re.compile(r"\s*(?:[\w.,\s\[\]]+=\s*)?[%!]|\s*\?|.*\?\s*$")
"""A line that IPython runs: a magic, a command of the shell, or a question."""
_RUNS_ITS_CELL = ("%%time", "%%timeit", "%%capture", "%%prun")


@dataclass(frozen=True)
class Cell:
    code: CodeType
    skipped: tuple[str, ...]


def notebook_cells(source: bytes, path: str) -> list[Cell]:
    """Return the cells of code; line 4 of the third is `train.ipynb[3]:4`."""
    try:
        cells = json.loads(source)["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, LookupError, TypeError) as error:
        raise UsageError(f"{path} is not a notebook of version 4 ({type(error).__name__}: {error}).") from None
    return [_cell(text, f"{path}[{number}]", number) for number, text in enumerate(texts, 1)]


def _cell(text: str, name: str, number: int) -> Cell:
    """Compile a cell without what only IPython can run; its last value is shown and kept, as IPython keeps it."""
    lines, skipped = text.splitlines(), list[str]()
    if text.startswith("%%") and not text.startswith(_RUNS_ITS_CELL):
        skipped, lines = lines[:1], []
    first = next(filter(str.strip, lines), "")
    # IPython removes the indent of the first line, as of a method that a notebook explains.
    lines = [line.removeprefix(first[: len(first) - len(first.lstrip())]) for line in lines]
    # A line like a command may stand in a text or in parentheses: only where Python cannot read it, it is one.
    while isinstance(tree := _parsed(lines, name), int):
        at, line = tree, lines[tree]
        skipped.append(line)
        assigned = line.split("%")[0].split("!")[0].partition("=")[0].strip()
        indent = line[: len(line) - len(line.lstrip())]
        lines[at] = f"{indent}{f'{assigned} = []' if assigned else 'pass'}"
    linecache.cache[name] = (len(text), None, [f"{line}\n" for line in text.splitlines()], name)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        show = ast.parse(f"Out[{number}] = _ = 0\nprint(repr(_)) if _ is not None else None").body
        keep = cast("ast.Assign", show[0])
        keep.value = last.value
        for statement in show:
            for node in ast.walk(statement):
                if node is not last.value and hasattr(node, "lineno"):
                    ast.copy_location(node, last)
        tree.body[-1:] = show if not text.rstrip().endswith(";") else show[:1]
    return Cell(compile(tree, name, "exec", dont_inherit=True), tuple(line.strip() for line in skipped))


def _parsed(lines: list[str], name: str) -> ast.Module | int:
    """Return the syntax tree, or the place of the first command, which Python cannot read."""
    try:
        return ast.parse("\n".join(lines), name)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        at = min(max(line - 1, 0), len(lines) - 1)
        if _COMMAND.match(lines[at]):
            return at
        raise UsageError(f"{name} is not Python: {error}.") from None


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
    return Script((code,), (path, *arguments), os.getcwd(), attributes)


def _spec_of(name: str) -> ModuleSpec | None:
    """None where there is no such module. Packages are not imported: their code is the program's."""
    spec, folders = None, None
    for full in accumulate(name.split("."), "{}.{}".format):
        if spec is not None and folders is None:
            return None
        specs = (finder.find_spec(full, folders) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next(filter(None, specs), None)
        if spec is None:
            return None
        if spec.origin is None and spec.submodule_search_locations is not None:
            # Folders without code ask the module around them for their path.
            importlib.import_module(full)
        folders = spec.submodule_search_locations
    return spec
