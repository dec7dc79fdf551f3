"""What a comparison of numbers that nobody computes comes to, should a program decide by it.

`if (token == end).all(): break` stands in most loops that generate: a whole number equals none that it is compared
with, which lets them go on to their end. A single number with a fraction, such as a loss on the host, counts as 1.0,
as it does where it is taken out of its tensor. Only a decision gets the answer; the tensor itself stays unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from memviz.runner.predict.assumptions import AS_IF_ONE, STANDS, Assumptions
from memviz.runner.predict.host import Host
from memviz.runner.predict.program_frames import line_of_caller

_EQUALS_NONE = "whole numbers that nobody computes are taken to equal none that they are compared with"
_Answer = Callable[[Any, Any], Any]
_Found = tuple[bool, str]
"""What all elements of a result are, and what that stands on."""


class Comparisons:
    def __init__(self, host: Host, assumptions: Assumptions) -> None:
        self._host = host
        self._assumptions = assumptions
        self._found: Any = WeakIdKeyDictionary()
        self.answers: dict[Any, _Answer] = {
            **self._following(("eq", "ne", "lt", "le", "gt", "ge"), self._compared),
            **self._following(("any", "all"), lambda name, args: self._of(args[0])),
            **self._following(("bitwise_not", "logical_not", "invert"), self._negated),
            **self._following(("or", "ior", "bitwise_or", "logical_or", "and", "iand", "logical_and"), self._joined),
        }

    def answer(self, tensor: Tensor) -> bool | None:
        """To a decision, which is noted; None where the tensor is no such comparison."""
        found = self._of(tensor)
        if found is None:
            return None
        self._assumptions.decide(line_of_caller(), found[1])
        return found[0]

    def _of(self, tensor: Any) -> _Found | None:
        found: _Found | None = self._found.get(tensor) if isinstance(tensor, Tensor) else None
        return found

    def _following(self, names: tuple[str, ...], find: Callable[[str, Any], _Found | None]) -> dict[Any, _Answer]:
        return {function: self._after(name, function, find) for name in names for function in _functions(name)}

    def _after(self, name: str, function: Any, find: Callable[[str, Any], _Found | None]) -> _Answer:
        def followed(args: Any, kwargs: Any) -> Any:
            if not any(map(self._host.is_unknown, args)):
                return NotImplemented
            found = find(name, args)
            if found is None:
                return NotImplemented
            out = function(*args, **kwargs)
            if isinstance(out, Tensor):
                self._found[out] = found
            return out

        return followed

    def _compared(self, name: str, args: Any) -> _Found | None:
        if all(map(_is_whole, args)):
            return (name == "ne", _EQUALS_NONE) if name in ("eq", "ne") else None
        if any(isinstance(arg, Tensor) and (arg.numel() != 1 or arg.is_complex()) for arg in args):
            return None
        if any(isinstance(arg, Tensor) and self._host.is_unknown(arg) and not arg.is_floating_point() for arg in args):
            return None
        return bool(getattr(operator, name)(*map(self._number, args))), AS_IF_ONE

    def _number(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        known = None if self._host.is_unknown(value) else self._host.known.of(value) if value.is_meta else value
        return STANDS if known is None else known.item()

    def _negated(self, name: str, args: Any) -> _Found | None:
        found = self._of(args[0])
        return None if found is None else (not found[0], found[1])

    def _joined(self, name: str, args: Any) -> _Found | None:
        """Of one such result with another, or with values that are all alike."""
        reason = next((found[1] for found in map(self._of, args) if found is not None), None)
        answers = [self._alike(arg) for arg in args]
        if reason is None or None in answers:
            return None
        return (any(answers) if name.endswith("or") else all(answers)), reason

    def _alike(self, value: Any) -> bool | None:
        found = self._of(value)
        if found is not None or not isinstance(value, Tensor) or value.dtype is not torch.bool:
            return None if found is None else found[0]
        known = None if self._host.is_unknown(value) else self._host.known.of(value) if value.is_meta else value
        if known is None or known.numel() == 0 or bool(known.any()) != bool(known.all()):
            return None
        return bool(known.any())


def _functions(name: str) -> Iterator[Any]:
    for function in (getattr(torch, name, None), getattr(Tensor, name, None), getattr(Tensor, f"__{name}__", None)):
        if function is not None:
            yield function


def _is_whole(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    return type(value) is int
