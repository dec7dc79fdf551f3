"""Position in the program: stacks and lines of Python, the phase, the module, and the forward operator of a node.

A program allocates thousands of times from a few hundred places, so a frame becomes a number once and a stack is
a tuple of such numbers. Stacks hold no frames of the predictor, nor of what drives it from outside.

Autograd numbers its nodes as they are made. An operator's node is made just before the operator runs, so the
numbers that are new when an operator arrives belong to it; in backward the current node's number leads back to
that operator's module and stack.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from memviz.predictor.compat import required
from memviz.trace.intern import Interner
from memviz.trace.model import NO_STACK, Phase

_PREDICTOR = str(Path(__file__).parent)
_RUNNER = str(Path(__file__).parents[1] / "runner")
_WORKLOADS = str(Path(_RUNNER) / "workloads")
_TORCH = str(Path(torch.__file__).parent)
_RELAYS = tuple(
    str(Path(_TORCH) / name)
    for name in ("_ops.py", "overrides.py", "utils/_python_dispatch.py", "_library/", "utils/_device.py", "library.py")
)
"""Files of torch through which calls reach the predictor; a stack of a card does not have them."""
_UNSEEN = (_PREDICTOR, *_RELAYS)
_PYTHON = sysconfig.get_path("stdlib")
_INSTALLED = ("site-packages", "dist-packages")
_LONGEST_LINE = 80

_ENGINE = "_engine_run_backward"
"""On a card backward runs in a thread of its own, whose stacks end there, at the node."""
_SKIPPED, _LAST = -2, -3


def frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_UNSEEN):
            yield frame
        frame = frame.f_back


def quoted_line_of_caller() -> str:
    """Return 'train.py, line 12: `if loss < 3:`', with the library in between if any; empty if unknown."""
    own, library = _callers()
    if own is None:
        return "" if library is None else _quoted_line(library)
    return f"{_quoted_line(own)}{'' if library is None else f' (via {_quoted_line(library)})'}"


def file_and_line_of_caller() -> str:
    """Return 'train.py:12', as `--assume` takes it."""
    own, library = _callers()
    frame = own or library
    return "" if frame is None else f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def innermost_frame_outside_torch() -> FrameType | None:
    """Return the innermost frame outside torch and Python's own library, whose line `--assume` names."""
    for frame in frames():
        name = frame.f_code.co_filename
        if is_driver(name):
            break
        if not name.startswith(_TORCH) and not is_of_python(name):
            return frame
    return None


def place_in(frame: FrameType) -> str:
    """Return the line of a frame as `--assume` takes it.

    In an installed library the path begins at its package, which is the same on every machine.
    """
    name = frame.f_code.co_filename
    folder = next((folder for folder in _INSTALLED if folder in name), None)
    path = short_path(name) if folder is None else name.rpartition(folder)[2].lstrip(os.sep)
    return f"{path}:{frame.f_lineno}"


def place_of(traceback: TracebackType | None) -> str:
    """Return the program's own line that raised an error, in the form of `file_and_line_of_caller`."""
    place = ""
    while traceback is not None:
        filename = traceback.tb_frame.f_code.co_filename
        if not is_installed(filename) and not filename.startswith((_PREDICTOR, _RUNNER)):
            place = f"{short_path(filename)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def short_path(filename: str) -> str:
    """Return the path relative to the working directory if it is below."""
    inside = os.path.relpath(filename)
    return filename if inside.startswith("..") else inside


def _callers() -> tuple[FrameType | None, FrameType | None]:
    """Return the program's innermost frame, and that of the library in between."""
    library: FrameType | None = None
    for frame in frames():
        name = frame.f_code.co_filename
        if name.startswith(_TORCH):
            continue
        if is_driver(name):
            break
        if not is_installed(name):
            return frame, library
        library = library or frame
    return None, library


def _quoted_line(frame: FrameType) -> str:
    name, number = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(name, number, frame.f_globals).strip()
    text = code if len(code) <= _LONGEST_LINE else f"{code[:_LONGEST_LINE]}..."
    return f"{name}, line {number}" + (f": `{text}`" if text else "")


def is_driver(filename: str) -> bool:
    """Return whether a file belongs to the runner and not to a workload; the runner's frames are not the user's."""
    return filename.startswith((_PREDICTOR, _RUNNER)) and not filename.startswith(_WORKLOADS)


def is_installed(filename: str) -> bool:
    return any(folder in filename for folder in _INSTALLED) or is_of_python(filename)


def is_of_python(filename: str) -> bool:
    in_packages = any(folder in filename for folder in _INSTALLED)
    return filename.startswith((_PYTHON, "<frozen ")) and not in_packages


def first_of_library() -> FrameType | None:
    """Return the frame that calls the operator, if it is a library's."""
    frame = next(frames(), None)
    return frame if frame is not None and is_installed(frame.f_code.co_filename) else None


class StackTable:
    """Stacks as the history of a card has them: the operator, in backward its node, then Python's frames."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._frames: dict[tuple[int, int], int] = {}
        self._codes: list[CodeType] = []
        """Kept, so that no other code gets the id of one that is known."""
        self._native: dict[str, int] = {}

    def here(self, operator: str = "", node: str = "") -> int:
        numbers = []
        if operator:
            numbers.append(self._native_frame(f"at::_ops::{operator}::call"))
        if node:
            qualified = node if "::" in node else f"torch::autograd::generated::{node}"
            numbers.append(self._native_frame(f"{qualified}::apply()"))
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            number = self._frames.get((id(code), frame.f_lasti))
            if number is None:
                if code.co_filename.startswith(_UNSEEN):
                    number = _SKIPPED
                elif code.co_qualname == _ENGINE or is_driver(code.co_filename):
                    number = _LAST
                else:
                    name = code.co_qualname.rpartition(".")[2]
                    number = self._interner.frame(
                        {"name": name, "filename": code.co_filename, "line": frame.f_lineno or 0}
                    )
                self._frames[id(code), frame.f_lasti] = number
                self._codes.append(code)
            if number >= 0:
                numbers.append(number)
            elif number == _LAST:
                break
            frame = frame.f_back
        return self._interner.stack_of(numbers) if numbers else NO_STACK

    def current_key(self) -> Hashable:
        """Return a key of the current stack, without adding the stack."""
        places = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            places.append((frame.f_code, frame.f_lasti))
            frame = frame.f_back
        return tuple(places)

    def _native_frame(self, name: str) -> int:
        number = self._native.get(name)
        if number is None:
            # As recorded stacks name the file of C++ frames.
            number = self._native[name] = self._interner.frame({"name": name, "filename": "??", "line": 0})
        return number


class NoStacks:
    """No stacks, where only figures are wanted: walking the frames takes a tenth of a prediction."""

    def here(self, operator: str = "", node: str = "") -> int:
        return NO_STACK

    def current_key(self) -> Hashable:
        return None


_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer step": Phase.STEP}
NO_TASK = -1
ACCUMULATE = "torch::autograd::AccumulateGrad"


class _InThread(threading.local):
    """State per thread: autograd numbers nodes in each thread by itself, and modules nest per thread."""

    def __init__(self, next_number: Callable[[], int]) -> None:
        self.modules: list[int] = []
        self.calls: list[int] = []
        """Number of the call of each module that is entered; no number comes twice."""
        self.steps = 0
        self.task = NO_TASK
        self.known_up_to = next_number()
        self.modules_before = 0
        self.made_by: dict[int, tuple[int, int]] = {}
        self.stream = 0
        """The current one's handle."""
        self.streams: dict[int, int] = {}
        """Streams of nodes, where known."""


class ProgramPosition:
    def __init__(self, interner: Interner) -> None:
        self.graph_task = required(torch._C, "_current_graph_task_id")
        self._node = required(torch._C, "_current_autograd_node")
        self._next_number = required(torch.autograd, "_get_sequence_nr")
        self._text = interner.string
        self._texts: dict[int, str] = {}
        self.here = _InThread(self._next_number)
        self.phases: list[str] = []
        self._call_numbers = count(1)
        self.follows_streams = False
        """True if the program uses a stream besides the default one."""
        self._owners: Any = WeakIdKeyDictionary()
        """The path of the module that a weight belongs to."""
        self._paths: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()

    def skip_earlier_nodes(self) -> None:
        """Skip earlier autograd nodes, which belong to no operator of the program."""
        self.here.known_up_to = self._next_number()

    @property
    def modules(self) -> list[int]:
        """Paths of the modules entered, as numbers of texts."""
        return self.here.modules

    @property
    def task(self) -> int:
        """Graph task of the autograd engine that runs backward here."""
        return self.here.task

    @property
    def module(self) -> int:
        modules = self.here.modules
        return modules[-1] if modules else 0

    @property
    def path(self) -> str:
        return self._texts.get(self.module, "")

    def path_mover(self, path: str, to: str | None = None) -> Callable[[int], int]:
        """Return a function that moves paths of modules below `path` to below another, or the current module."""
        here = self.path if to is None else to
        moved: dict[int, int] = {}

        def move(number: int) -> int:
            if number not in moved:
                text = self._texts.get(number, "")
                is_below = text == path or text.startswith(f"{path}.")
                moved[number] = self._text(here + text[len(path) :]) if is_below else number
            return moved[number]

        return move

    @property
    def phase(self) -> Phase:
        if self.task != NO_TASK:
            return Phase.BACKWARD
        for name in reversed(self.phases):
            if name in _PHASES:
                return _PHASES[name]
        if self.here.steps:
            return Phase.STEP
        return Phase.FORWARD if self.modules else Phase.UNKNOWN

    @property
    def is_recomputing(self) -> bool:
        """True in forward code within backward; the engine itself runs without gradients."""
        return self.task != NO_TASK and torch.is_grad_enabled()

    def note_task(self, task: int) -> bool:
        """Note the engine's task, and return whether a backward has begun."""
        began, here = task != NO_TASK, self.here
        if here.task == NO_TASK:
            here.modules_before = len(here.modules)
        here.task = task
        return began

    def nodes_are_new(self) -> bool:
        return bool(self._next_number() != self.here.known_up_to)

    def assign_nodes(self, stack: int) -> None:
        """Assign the nodes made since the last operator to the current one."""
        upto, here = self._next_number(), self.here
        for number in range(here.known_up_to, upto):
            here.made_by[number] = (self.module, stack)
        if self.follows_streams:
            here.streams.update(dict.fromkeys(range(here.known_up_to, upto), here.stream))
        here.known_up_to = upto

    def name_modules(self, model: nn.Module) -> None:
        """Name modules by their paths, and the model itself by its class."""
        for path, module in nn.Module.named_modules(model):
            text = path or type(model).__name__
            number = self._paths[module] = self._text(text)
            self._texts[number] = text

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        path = self._paths.get(module)
        if path is None:
            if self.here.modules:
                # A module made during a call belongs to its caller.
                path = self.module
            else:
                self.name_modules(module)
                path = self._paths[module]
        modules, calls = self.here.modules, self.here.calls
        modules.append(path)
        calls.append(next(self._call_numbers))
        try:
            yield
        finally:
            modules.pop()
            calls.pop()

    def own(self, weight: torch.Tensor, path: str) -> None:
        self._owners[weight] = self._text(path)

    def stream_of_node(self, otherwise: int) -> int:
        """Return the stream of the node's forward operator; `otherwise` without a node or to accumulate a gradient."""
        node = self._node()
        if node is None or node.name() == ACCUMULATE:
            return otherwise
        return self.here.streams.get(node._sequence_nr(), 0)

    def module_stack_and_node(self) -> tuple[int, int, str]:
        """Return the module, the forward stack and the node of the current operator, if any."""
        node = self._node() if self.task != NO_TASK else None
        if node is None:
            return self.module, NO_STACK, ""
        name = node.name()
        weight = getattr(node, "variable", None)
        if weight is not None:
            return self._owners.get(weight, 0), NO_STACK, name
        here = self.here
        module, stack = here.made_by.get(node._sequence_nr(), (0, NO_STACK))
        if len(here.modules) > here.modules_before:
            module = here.modules[-1]
        return module, stack, name
