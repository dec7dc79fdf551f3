"""Whether a whole number that nobody computes, such as the next token, is one that it is compared with: it is not.

`if (token == end).all(): break` stands in most loops that generate, and the answer lets them go on to their end.
Only who decides by the comparison gets it; the tensor itself stays unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from memviz.runner.predict.assumptions import Assumptions
from memviz.runner.predict.host import Host
from memviz.runner.predict.program_frames import line_of_caller

_EQUALS_NONE = "whole numbers that nobody computes are taken to equal none that they are compared with"
_Answer = Callable[[Any, Any], Any]


class Comparisons:
    def __init__(self, host: Host, assumptions: Assumptions) -> None:
        self._host = host
        self._assumptions = assumptions
        self._alike: Any = WeakIdKeyDictionary()
        """What all elements of a comparison's result are."""
        self.answers: dict[Any, _Answer] = {
            **{function: self._compared(function, False) for function in _functions("eq")},
            **{function: self._compared(function, True) for function in _functions("ne")},
            **{function: self._reduced(function) for function in _functions("any", "all")},
        }

    def answer(self, tensor: Tensor) -> bool | None:
        """To a decision, which is noted; None where the tensor is no such comparison."""
        found: bool | None = self._alike.get(tensor)
        if found is not None:
            self._assumptions.decide(line_of_caller(), _EQUALS_NONE)
        return found

    def _compared(self, function: Any, answer: bool) -> _Answer:
        def compared(args: Any, kwargs: Any) -> Any:
            if len(args) != 2 or kwargs or not any(map(self._host.is_unknown, args)) or not all(map(_is_whole, args)):
                return NotImplemented
            out = function(*args)
            if isinstance(out, Tensor):
                self._alike[out] = answer
            return out

        return compared

    def _reduced(self, function: Any) -> _Answer:
        """Whether any of them, or all."""

        def reduced(args: Any, kwargs: Any) -> Any:
            found = self._alike.get(args[0]) if len(self._alike) and args else None
            if found is None:
                return NotImplemented
            out = function(*args, **kwargs)
            self._alike[out] = found
            return out

        return reduced


def _functions(*names: str) -> Iterator[Any]:
    for name in names:
        for function in (getattr(torch, name), getattr(Tensor, name), getattr(Tensor, f"__{name}__", None)):
            if function is not None:
                yield function


def _is_whole(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    return type(value) is int
