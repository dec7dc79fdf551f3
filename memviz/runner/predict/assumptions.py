"""Values that are assumed where nobody computes them; the notes of the run say each assumption.

torch's own code needs some where every run that works gets the same answer: whether gradients overflowed, whether
the arguments of a distribution are valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

from memviz.runner.predict.prediction_errors import decided
from memviz.runner.predict.program_frames import first_of_torch, line_of_caller


@dataclass(frozen=True)
class _Rule:
    file: str
    functions: tuple[str, ...]
    """Of that file; empty is any."""
    value: Callable[[FrameType], Any]
    sentence: str


_SCALER = "A scaler of gradients is taken to find no overflow: every step is taken, and its scale stays as it began."
_RULES = (
    _Rule("torch/amp/grad_scaler.py", ("get_scale",), lambda frame: frame.f_locals["self"]._init_scale, _SCALER),
    _Rule("torch/amp/grad_scaler.py", ("_get_growth_tracker",), lambda frame: 0, _SCALER),
    _Rule("torch/amp/grad_scaler.py", (), lambda frame: 0.0, _SCALER),
    _Rule(
        "torch/distributions/distribution.py",
        (),
        lambda frame: True,
        "Arguments and samples of torch.distributions are taken to be valid.",
    ),
    _Rule(
        "torch/nn/utils/clip_grad.py",
        (),
        lambda frame: False,
        "The norm of all gradients is taken to be a finite number.",
    ),
)
_NUMBERS = "Numbers that the program takes"
_STANDS = 1.0
_WORD = "unknown"
_KEEP_UNKNOWN = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class Assumptions:
    def __init__(self) -> None:
        self._sentences: dict[str, None] = {}
        """In the order in which they were first needed."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(self._sentences)

    def say(self, sentence: str) -> None:
        self._sentences[sentence] = None

    def for_torch(self) -> Any:
        """The value for torch's own code, if that is what needs one now; None where it has to be refused."""
        frame = first_of_torch()
        if frame is None:
            return None
        file, function = Path(frame.f_code.co_filename).as_posix(), frame.f_code.co_name
        for rule in _RULES:
            if file.endswith(rule.file) and (not rule.functions or function in rule.functions):
                self.say(rule.sentence)
                return rule.value(frame)
        return None

    def number(self) -> UnknownNumber:
        """For a floating-point number that the program takes from a tensor."""
        line = line_of_caller()
        if not any(sentence.startswith(_NUMBERS) for sentence in self._sentences):
            where = f", first in {line}" if line else ""
            self.say(
                f"{_NUMBERS} from tensors are not computed{where}. They print as unknown, whatever decides by one is "
                f"stopped, and code that takes the number out by itself (math.exp, numpy) finds {_STANDS}."
            )
        return UnknownNumber(line)


class UnknownNumber(float):
    """What `.item()` gives on a predicted device.

    Programs print their loss, add it up and take means of it; all of that goes on. Whatever decides by it, a
    comparison, a whole number, a truth value, is stopped with the line that decides. Where C code takes the number
    out (`math.exp`, numpy, `"%f"`), it finds 1.0, which the run's notes say.
    """

    __slots__ = ("line",)
    line: str
    """The line that took it from a tensor."""

    def __new__(cls, line: str = "") -> Self:
        made = super().__new__(cls, _STANDS)
        made.line = line
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
        return UnknownNumber, (self.line,)

    __hash__ = float.__hash__

    def _stop(self, *_: Any) -> NoReturn:
        raise decided(self.line)

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
