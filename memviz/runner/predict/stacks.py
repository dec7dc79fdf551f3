"""Call stacks as the history of a real card has them: the operator, in backward its node, then Python's frames.

A program allocates thousands of times from a few hundred places, so a frame becomes a number once and a stack is
a tuple of such numbers. Nothing of the predictor itself stands in a stack, nor what drives it from outside.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType

from memviz.runner.predict.caller import OURS, RELAYS
from memviz.trace.intern import Interner
from memviz.trace.model import NO_STACK

_RUNNER = str(Path(__file__).parent.parent)
_PARTS_OF_A_MODEL = (str(Path(_RUNNER) / "workloads"),)
_ENGINE = "_engine_run_backward"
"""On a card backward runs in a thread of its own, whose stacks end there; the node stands for the caller."""
_SKIPPED, _LAST = -2, -3
_NO_FILE = "??"
"""What real stacks have for C++."""


class Stacks:
    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._frames: dict[tuple[int, int], int] = {}
        self._codes: list[CodeType] = []
        """Kept, so that no other code gets the id of one that is known."""
        self._native: dict[str, int] = {}

    def here(self, operator: str = "", node: str = "") -> int:
        """The stack of whoever calls into torch now, innermost frame first."""
        found = []
        if operator:
            found.append(self._native_frame(f"at::_ops::{operator}::call"))
        if node:
            found.append(self._native_frame(_node_text(node)))
        frame: FrameType | None = sys._getframe(1)
        known = self._frames
        while frame is not None:
            code = frame.f_code
            number = known.get((id(code), frame.f_lasti))
            if number is None:
                number = self._judge(frame)
            if number >= 0:
                found.append(number)
            elif number == _LAST:
                break
            frame = frame.f_back
        return self._interner.stack_of(found) if found else NO_STACK

    def _judge(self, frame: FrameType) -> int:
        code = frame.f_code
        number = self._number(code.co_filename, code.co_qualname, frame.f_lineno)
        self._frames[id(code), frame.f_lasti] = number
        self._codes.append(code)
        return number

    def _number(self, filename: str, name: str, line: int) -> int:
        if filename.startswith((OURS, *RELAYS)):
            return _SKIPPED
        if name == _ENGINE:
            return _LAST
        if filename.startswith(_RUNNER) and not filename.startswith(_PARTS_OF_A_MODEL):
            return _LAST
        return self._interner.frame({"name": name.rpartition(".")[2], "filename": filename, "line": line})

    def _native_frame(self, name: str) -> int:
        number = self._native.get(name)
        if number is None:
            number = self._interner.frame({"name": name, "filename": _NO_FILE, "line": 0})
            self._native[name] = number
        return number


def _node_text(node: str) -> str:
    qualified = node if "::" in node else f"torch::autograd::generated::{node}"
    return f"{qualified}::apply()"
