"""Position in the program: its phase, its module, and in backward the forward operator of a node.

Autograd numbers its nodes as they are made. An operator's node is made just before the operator runs, so the
numbers that are new when an operator arrives belong to it; in backward the current node's number leads back to
that operator's module and stack.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from memviz.runner.predict.compat import required
from memviz.trace.intern import Interner
from memviz.trace.model import NO_STACK, Phase

_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "optimizer step": Phase.STEP}
NO_TASK = -1
ACCUMULATE = "torch::autograd::AccumulateGrad"


class _InThread(threading.local):
    """State per thread: autograd numbers nodes in each thread by itself, and modules nest per thread."""

    def __init__(self, next_number: Callable[[], int]) -> None:
        self.modules: list[int] = []
        self.calls: list[int] = []
        """Number of the call of each module."""
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
        self.here = _InThread(self._next_number)
        self.phases: list[str] = []
        self._call_numbers = count(1)
        self.follows_streams = False
        """True if the program uses a stream besides the default one."""
        self._owners: Any = WeakIdKeyDictionary()
        """The path of the module that a weight belongs to."""
        self._paths: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()

    def begins(self) -> None:
        """Skip earlier autograd nodes, which belong to no operator of the program."""
        self.here.known_up_to = self._next_number()

    @property
    def modules(self) -> list[int]:
        """Paths of the modules entered, as numbers of texts."""
        return self.here.modules

    @property
    def calls(self) -> list[int]:
        """Numbers of the calls of modules that go on; no number comes twice."""
        return self.here.calls

    @property
    def call(self) -> int:
        """Number of the innermost module's call, 0 outside all modules."""
        calls = self.here.calls
        return calls[-1] if calls else 0

    @property
    def task(self) -> int:
        """Graph task of the autograd engine that runs backward here."""
        return self.here.task

    @property
    def module(self) -> int:
        modules = self.here.modules
        return modules[-1] if modules else 0

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

    def turned(self, task: int) -> bool:
        """Note the engine's task, and return whether a backward has begun."""
        began, here = task != NO_TASK, self.here
        if here.task == NO_TASK:
            here.modules_before = len(here.modules)
        here.task = task
        return began

    def nodes_are_new(self) -> bool:
        return bool(self._next_number() != self.here.known_up_to)

    def made_nodes(self, stack: int) -> None:
        """Assign the nodes made since the last operator to the current one."""
        upto, here = self._next_number(), self.here
        for number in range(here.known_up_to, upto):
            here.made_by[number] = (self.module, stack)
        if self.follows_streams:
            here.streams.update(dict.fromkeys(range(here.known_up_to, upto), here.stream))
        here.known_up_to = upto

    def name_modules(self, model: nn.Module) -> None:
        """Name modules by their paths, and the model itself by its class."""
        for path, module in model.named_modules():
            self._paths[module] = self._text(path or type(model).__name__)

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

    def in_backward(self) -> tuple[int, int, str]:
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
