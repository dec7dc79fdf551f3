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

from memviz.runner.predict.prediction_errors import data_needed, decided
from memviz.runner.predict.program_frames import first_of_library, frames, line_of_caller, place_of_caller
from memviz.runner.predict.stand_ins import STANDS


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
    _Rule(
        "torch/__init__.py",
        ("_check_tensor_all_with",),
        lambda frame: True,
        "What a library checks of the values of a tensor (torch._check_tensor_all) is taken to hold.",
    ),
    _Rule("torch/utils/data/", (), lambda frame: 0, "Seeds that loaders of data draw on the card are taken to be 0."),
    _Rule("torch/testing/_comparison.py", (), lambda frame: True, "Values that are compared are taken to be close."),
    _Rule("/transformers/generation/", (), lambda frame: False, _TEXT),
    _Rule("/transformers/models/whisper/generation", (), lambda frame: False, _TEXT),
)
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

    def number(self, *, whole: bool = False, stands: int | None = None, drawn: bool = False) -> Any:
        """For a number that the program takes from a tensor; `stands` is what a whole one would naturally be."""
        given = self.given()
        if given is not NOT_STATED:
            return given
        if drawn:
            self.state("a number that is drawn at random is not computed: it prints as unknown")
            return UnknownNumber(line_of_caller(), whole, None, None, drawn=True)
        kind = "a whole number" if whole else "a number"
        taken = f"counts as {STANDS if stands is None else stands:.0f} where it decides and where math or numpy take it"
        self.state(f"{kind} taken from a tensor is not computed: it prints as unknown, and {taken}")
        return UnknownNumber(line_of_caller(), whole, self, stands)

    def truth(self, stands: int | None) -> bool:
        """Of a condition that lies in a tensor, where `stands` is a natural answer."""
        given = self.given()
        if given is not NOT_STATED:
            return bool(given)
        if stands is None:
            raise data_needed("bool(), as in a condition,")
        truth = bool(stands)
        self.state_a_decision(f"a condition that is not computed is taken to be {truth}")
        return truth

    def state_a_decision(self, what: str) -> None:
        self._count_decision(line_of_caller())
        self.state(what)

    def decide(self, line: str, number: float) -> None:
        """A comparison with a number that nobody computes."""
        self._count_decision(line)
        self.state(f"a number that is not computed decides here, as if it were {number}")

    def _count_decision(self, line: str) -> None:
        place = place_of_caller()
        times = self._decisions[place] = self._decisions.get(place, 0) + 1
        if times > _MOST_DECISIONS:
            raise decided(line, without_end=True)


def _split_place(place: str) -> tuple[str, int]:
    file, _, line = place.rpartition(":")
    return file, int(line)


def _is_file(filename: str, wanted: str) -> bool:
    have, want = Path(filename).parts, Path(wanted).parts
    return have[-len(want) :] == want


class UnknownNumber(float):
    """What `.item()` gives on a predicted device.

    Programs print their loss, add it up and take means of it; all of that goes on. What decides by it finds a finite
    number, and that is noted; a size or an index that would be made of it is stopped, unless it counts what is true
    in a mask. Where C code takes the number out (`math.exp`, numpy, `"%f"`), it
    finds 1.0, or what stands in.
    """

    __slots__ = ("assumptions", "drawn", "line", "stands", "whole")
    line: str
    """The line that took it from a tensor."""
    whole: bool
    assumptions: Assumptions | None
    stands: int | None
    """For a whole number: what it would naturally be, if anything."""
    drawn: bool
    """At random: nothing can be decided by it."""

    def __new__(
        cls,
        line: str = "",
        whole: bool = False,
        assumptions: Assumptions | None = None,
        stands: int | None = None,
        drawn: bool = False,
    ) -> Self:
        made = super().__new__(cls, STANDS if stands is None else stands)
        made.line, made.whole, made.assumptions, made.stands, made.drawn = line, whole, assumptions, stands, drawn
        return made

    def __repr__(self) -> str:
        return _WORD

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        """In a column as wide as it was to be."""
        width = spec.partition(".")[0].strip("<>=^+-#0, bcdeEfFgGnoxX_%")
        return _WORD.rjust(int(width)) if width.isdigit() else _WORD

    def __round__(self, digits: Any = None) -> Any:
        return self._whole_number() if digits is None else self

    def __neg__(self) -> UnknownNumber:
        return self

    __pos__ = __abs__ = __neg__

    def __copy__(self) -> UnknownNumber:
        return self

    def __deepcopy__(self, memo: Any) -> UnknownNumber:
        return self

    def __reduce__(self) -> Any:
        return UnknownNumber, (self.line, self.whole, None, self.stands, self.drawn)

    __hash__ = float.__hash__

    def _stop(self, *_: Any) -> NoReturn:
        raise decided(self.line)

    def _decide(self) -> None:
        if self.drawn:
            self._stop()
        if self.assumptions is not None:
            self.assumptions.decide(self.line, STANDS if self.stands is None else self.stands)

    def __bool__(self) -> bool:
        self._decide()
        return self.stands != 0

    def _whole_number(self) -> int:
        """As a size, an index, or what `int()` makes of it."""
        if self.stands is None:
            self._stop()
        self._decide()
        return self.stands

    def __float__(self) -> float:
        if self.assumptions is not None:
            self.assumptions.state(f"a number that is not computed is taken as {STANDS}")
        return STANDS if self.stands is None else float(self.stands)

    def is_integer(self) -> bool:
        return self.whole

    def as_integer_ratio(self) -> tuple[int, int]:
        """What means of Python's own library are made of."""
        return float(self).as_integer_ratio()

    __int__ = __index__ = __trunc__ = __floor__ = __ceil__ = _whole_number
    __divmod__ = __rdivmod__ = _stop


def _unknown(own: str) -> Callable[..., Any]:
    def operation(self: UnknownNumber, other: Any, *_: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return _of_whole(own, self, other) if self.whole and not self.drawn else self

    operation.__name__ = own
    return operation


def _of_whole(own: str, one: UnknownNumber, other: Any) -> UnknownNumber:
    """A whole number again, where Python's own operation on the stand-ins gives one."""
    if type(other) is UnknownNumber:
        other = other.stands if other.whole else STANDS
    if one.stands is None or not isinstance(other, int):
        return UnknownNumber(one.line, isinstance(other, int) and "truediv" not in own, one.assumptions)
    try:
        standing = getattr(one.stands, own)(other)
    except ZeroDivisionError:
        standing = STANDS
    stands = standing if isinstance(standing, int) else None
    return UnknownNumber(one.line, stands is not None, one.assumptions, stands)


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
