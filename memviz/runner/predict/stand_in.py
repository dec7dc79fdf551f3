"""The number that stands for one that is not known: what `.item()` gives on a predicted device.

Programs print their loss, add it up and take means of it; all of that goes on. Whatever decides by it, a comparison,
a whole number, a truth value, is stopped with the line that decides. Where C code takes the number out (`math.exp`,
numpy, `"%f"`), it finds 1.0, which the run's notes say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Self

from memviz.runner.predict.refusals import decided

STANDS = 1.0
_WORD = "unknown"
_KEEP_UNKNOWN = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class UnknownNumber(float):
    __slots__ = ("asked",)
    asked: str
    """The line that took it from a tensor."""

    def __new__(cls, asked: str = "") -> Self:
        made = super().__new__(cls, STANDS)
        made.asked = asked
        return made

    def __repr__(self) -> str:
        return _WORD

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        """In a column as wide as it was to be."""
        width = spec.partition(".")[0].strip("<>=^+-#0, fFeEgGn%_")
        return _WORD.rjust(int(width)) if width.isdigit() else _WORD

    def __round__(self, digits: Any = None) -> Any:
        return self._stop() if digits is None else self

    def __neg__(self) -> UnknownNumber:
        return self

    __pos__ = __abs__ = __neg__

    def __copy__(self) -> UnknownNumber:
        return self

    def __deepcopy__(self, memo: Any) -> UnknownNumber:
        return self

    def __reduce__(self) -> Any:
        return UnknownNumber, (self.asked,)

    __hash__ = float.__hash__

    def _stop(self, *_: Any) -> NoReturn:
        raise decided(self.asked)

    __bool__ = __int__ = __float__ = __trunc__ = __floor__ = __ceil__ = _stop
    is_integer = as_integer_ratio = __divmod__ = __rdivmod__ = _stop


def _unknown(own: str) -> Callable[..., Any]:
    def operation(self: UnknownNumber, other: Any, *_: Any) -> Any:
        return self if isinstance(other, int | float) else NotImplemented

    operation.__name__ = own
    return operation


def _stopping(own: str) -> Callable[..., Any]:
    def comparison(self: UnknownNumber, other: Any) -> Any:
        return self._stop() if isinstance(other, int | float) else NotImplemented

    comparison.__name__ = own
    return comparison


for _name in _KEEP_UNKNOWN:
    for _own in (f"__{_name}__", f"__r{_name}__"):
        setattr(UnknownNumber, _own, _unknown(_own))
for _own in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(UnknownNumber, _own, _stopping(_own))
