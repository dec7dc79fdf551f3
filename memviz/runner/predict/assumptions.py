"""Values that are assumed where nobody computes them; the notes of the run say each assumption.

torch's own code needs some where every run that works gets the same answer: whether gradients overflowed, whether
the arguments of a distribution are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

from memviz.runner.predict.prediction_errors import decided
from memviz.runner.predict.program_frames import first_of_library, frames, line_of_caller, place_of_caller


@dataclass(frozen=True)
class _Rule:
    file: str
    functions: tuple[str, ...]
    """Of that file; empty is any."""
    value: Callable[[FrameType], Any]
    sentence: str


_SCALER = "A scaler of gradients is taken to find no overflow: every step is taken, and its scale stays as it began."
_TEXT = "Text is taken to go on to the greatest length allowed, without an end or padding before."
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
        "torch/nn/init.py",
        (),
        lambda frame: False,
        "Random weights that have to lie within bounds are taken to do so when they are first drawn.",
    ),
    _Rule(
        "torch/nn/utils/clip_grad.py",
        (),
        lambda frame: False,
        "The norm of all gradients is taken to be a finite number.",
    ),
    _Rule(
        "/transformers/masking_utils.py",
        (),
        lambda frame: True,
        "Masks of attention that nobody computes are taken to hide nothing.",
    ),
    _Rule("torch/testing/_comparison.py", (), lambda frame: True, "Values that are compared are taken to be close."),
    _Rule("/transformers/generation/", (), lambda frame: False, _TEXT),
    _Rule("/transformers/models/whisper/generation", (), lambda frame: False, _TEXT),
)
STANDS = 1.0
AS_IF_ONE = f"a number that is not computed decides here, as if it were {STANDS}"
_WORD = "unknown"
_KEEP_UNKNOWN = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_MOST_DECISIONS = 100_000
"""By one line: a loop that waits for a number to change would never end."""
NOT_STATED = object()


@dataclass(frozen=True)
class Stated:
    """Something that a program asked and nobody computes, with the answer that it got."""

    where: str
    """The program's line, as 'train.py:12'."""
    what: str

    @property
    def sentence(self) -> str:
        return f"{self.where}: {self.what}." if self.where else f"{self.what}."


class Assumptions:
    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        """`given` are the user's own answers, by 'train.py:12'."""
        self._given = [(*_split_place(place), value) for place, value in (given or {}).items()]
        self._sentences: dict[str, None] = {}
        """In the order in which they were first needed."""
        self._stated: dict[Stated, None] = {}
        self._decisions: dict[str, int] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        return (*self._sentences, *(stated.sentence for stated in self._stated))

    @property
    def stated(self) -> tuple[Stated, ...]:
        """For torch's own code, without a line; for the program's, with it."""
        return (*(Stated("", sentence.rstrip(".")) for sentence in self._sentences), *self._stated)

    def say(self, sentence: str) -> None:
        self._sentences[sentence] = None

    def state(self, what: str) -> None:
        """With the program's line."""
        self._stated[Stated(place_of_caller(), what)] = None

    def given(self) -> Any:
        """What the user said for the line that asks, or for one that called it; NOT_STATED where nothing was."""
        if not self._given:
            return NOT_STATED
        for frame in frames():
            for file, line, value in self._given:
                if frame.f_lineno == line and _is_file(frame.f_code.co_filename, file):
                    self.state(f"{value!r} is taken, as was asked")
                    return value
        return NOT_STATED

    def for_library(self) -> Any:
        """The value for a library's own code, if that is what needs one now; None where it has to be refused."""
        frame = first_of_library()
        if frame is None:
            return None
        file, function = Path(frame.f_code.co_filename).as_posix(), frame.f_code.co_name
        for rule in _RULES:
            if rule.file in file and (not rule.functions or function in rule.functions):
                self.say(rule.sentence)
                return rule.value(frame)
        return None

    def number(self, *, whole: bool = False) -> Any:
        """For a number that the program takes from a tensor."""
        given = self.given()
        if given is not NOT_STATED:
            return given
        kind = "a whole number" if whole else "a number"
        taken = f"counts as {STANDS:.0f} where it decides and where math or numpy take it"
        self.state(f"{kind} taken from a tensor is not computed: it prints as unknown, and {taken}")
        return UnknownNumber(line_of_caller(), whole, self)

    def decide(self, line: str, reason: str = AS_IF_ONE) -> None:
        """A comparison with a number that nobody computes."""
        place = place_of_caller()
        times = self._decisions[place] = self._decisions.get(place, 0) + 1
        if times > _MOST_DECISIONS:
            raise decided(line, without_end=True)
        self.state(reason)


def _split_place(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line)


def _is_file(filename: str, wanted: str) -> bool:
    have, want = Path(filename).parts, Path(wanted).parts
    return have[-len(want) :] == want


class UnknownNumber(float):
    """What `.item()` gives on a predicted device.

    Programs print their loss, add it up and take means of it; all of that goes on. What decides by it finds a finite
    number, and that is noted; a size or an index that would be made of it is stopped. Where C code takes the number
    out (`math.exp`, numpy, `"%f"`), it finds 1.0.
    """

    __slots__ = ("assumptions", "line", "whole")
    line: str
    """The line that took it from a tensor."""
    whole: bool
    assumptions: Assumptions | None

    def __new__(cls, line: str = "", whole: bool = False, assumptions: Assumptions | None = None) -> Self:
        made = super().__new__(cls, STANDS)
        made.line, made.whole, made.assumptions = line, whole, assumptions
        return made

    def __repr__(self) -> str:
        return _WORD

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        """In a column as wide as it was to be."""
        width = spec.partition(".")[0].strip("<>=^+-#0, bcdeEfFgGnoxX_%")
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
        return UnknownNumber, (self.line, self.whole)

    __hash__ = float.__hash__

    def _stop(self, *_: Any) -> NoReturn:
        raise decided(self.line)

    def _decide(self) -> None:
        if self.assumptions is not None:
            self.assumptions.decide(self.line)

    def __bool__(self) -> bool:
        self._decide()
        return True

    def __float__(self) -> float:
        if self.assumptions is not None:
            self.assumptions.state(f"a number that is not computed is taken as {STANDS}")
        return STANDS

    def is_integer(self) -> bool:
        return False

    def as_integer_ratio(self) -> tuple[int, int]:
        """What means of Python's own library are made of."""
        return float(self).as_integer_ratio()

    __int__ = __index__ = __trunc__ = __floor__ = __ceil__ = _stop
    __divmod__ = __rdivmod__ = _stop


def _unknown(own: str) -> Callable[..., Any]:
    def operation(self: UnknownNumber, other: Any, *_: Any) -> Any:
        return self if isinstance(other, int | float) else NotImplemented

    operation.__name__ = own
    return operation


def _comparing(own: str) -> Callable[..., Any]:
    compare = getattr(float, own)

    def comparison(self: UnknownNumber, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        self._decide()
        return compare(self, other)

    comparison.__name__ = own
    return comparison


for _name in _KEEP_UNKNOWN:
    for _own in (f"__{_name}__", f"__r{_name}__"):
        setattr(UnknownNumber, _own, _unknown(_own))
for _name in _COMPARISONS:
    setattr(UnknownNumber, f"__{_name}__", _comparing(f"__{_name}__"))
