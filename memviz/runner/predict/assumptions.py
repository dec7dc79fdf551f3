"""Values that are assumed where nobody computes them; the notes of the run say each assumption."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from memviz.runner.predict.library_answers import library_answer
from memviz.runner.predict.prediction_errors import data_needed, decided
from memviz.runner.predict.program_frames import AskedLine, asked_here, frames, place_of_caller, place_to_assume
from memviz.runner.predict.stand_ins import STANDS
from memviz.runner.predict.stated import Stated, sentences_of

_WORD = "unknown"
_KEEP_UNKNOWN = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_TAKEN = (
    "taken from a tensor is not computed: it prints as unknown, and counts as {number} where it decides and where math "
    "or numpy take it"
)
_TAKEN_AND_NO_SIZE = (
    "taken from a tensor is not computed: it prints as unknown, counts as {number} where it is compared and where math "
    "or numpy take it, and cannot be a size or an index"
)
_DECIDES = "a number that is not computed decides here, as if it were {number}"
_TAKEN_AS = "a number that is not computed is taken as {number}"
_MOST_DECISIONS = 100_000
"""By one line: a loop that waits for a number to change would never end."""
NOT_STATED = object()


class Assumptions:
    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        """`given` are the user's own answers, by 'train.py:12'."""
        self._given = [_Given(place, value) for place, value in (given or {}).items()]
        self._asked: dict[str, None] = {}
        """Lines where a value was asked for, as `--assume` takes them."""
        self._sentences: dict[str, None] = {}
        """In the order in which they were first needed."""
        self._stated: dict[tuple[str, str], Stated] = {}
        """By line and kind."""
        self._of_modules: Any = WeakIdKeyDictionary()
        """Sentences that hold once the module is called."""
        self._decisions: dict[str, int] = {}

    @property
    def sentences(self) -> tuple[str, ...]:
        return (*self._sentences, *sentences_of(self._stated.values()))

    @property
    def stated(self) -> tuple[Stated, ...]:
        """For torch's own code, without a line; for the program's, with it."""
        return (*(Stated("", sentence.rstrip(".")) for sentence in self._sentences), *self._stated.values())

    def say(self, sentence: str) -> None:
        self._sentences[sentence] = None

    def when_called(self, made: Any, *sentences: str) -> Any:
        """`made`, which says these once it runs: what is compiled and never called changes no peak."""
        if isinstance(made, nn.Module):
            self._of_modules[made] = (*self._of_modules.get(made, ()), *sentences)
            return made
        if isinstance(made, type) or not callable(made):
            return made

        @wraps(made)
        def run(*args: Any, **kwargs: Any) -> Any:
            for sentence in sentences:
                self.say(sentence)
            return made(*args, **kwargs)

        return run

    def module_called(self, module: nn.Module) -> None:
        for sentence in self._of_modules.get(module, ()) if len(self._of_modules) else ():
            self.say(sentence)

    def state(self, kind: str, number: float | None = None) -> None:
        """With the program's line."""
        now = Stated(place_of_caller(), kind, number, number)
        before = self._stated.get((now.where, kind))
        self._stated[now.where, kind] = now if before is None else before.and_again(now)

    def given(self) -> Any:
        """The user's answer for the line that asks, or for one that called it; NOT_STATED where there is none."""
        answer = self._answer()
        if answer is None:
            return NOT_STATED
        value = answer.next()
        self.state(f"{value!r} is taken, as was asked")
        return value

    def _answer(self) -> _Given | None:
        if not self._given:
            return None
        self._asked[place_to_assume()] = None
        answers = (given for frame in frames() for given in self._given if given.is_of(frame))
        return next(answers, None)

    @property
    def states_several(self) -> bool:
        """Whether the line that asks now has several answers, taken in turn."""
        answer = self._answer()
        return answer is not None and len(answer.values) > 1

    @property
    def unused(self) -> tuple[str, ...]:
        """Lines that the user stated an answer for, and none of them asked."""
        return tuple(given.place for given in self._given if not given.taken)

    @property
    def unused_sentence(self) -> str:
        """Empty where every stated answer was used."""
        if not self.unused:
            return ""
        asked = ", ".join(filter(None, self._asked))
        where = f"Values were asked for at {asked}." if asked else "The program asked for no value."
        return f"No line used --assume {', '.join(self.unused)}. {where}"

    def for_library(self, kind: type, stands: int | None = None) -> Any:
        """The value for a library's own code, if that is what needs one now; None where it has to be refused.

        `stands` is what it would naturally be, if anything.
        """
        answer = library_answer(kind, stands)
        if answer is None:
            return None
        self.say(answer.sentence)
        return answer.value

    def number(self, *, whole: bool = False, stands: int | None = None, drawn: bool = False) -> Any:
        """For a number that the program takes from a tensor; `stands` is what a whole one would naturally be."""
        given = self.given()
        if given is not NOT_STATED:
            return given
        if drawn:
            self.state("a number that is drawn at random is not computed: it prints as unknown")
            return UnknownNumber(asked_here(), whole, None, None, drawn=True)
        kind = "a whole number" if whole else "a number"
        self.state(
            f"{kind} {_TAKEN_AND_NO_SIZE if stands is None else _TAKEN}", int(STANDS if stands is None else stands)
        )
        return UnknownNumber(asked_here(), whole, self, stands)

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
        self._count_decision(asked_here())
        self.state(what)

    def decide(self, asked: AskedLine, number: float) -> None:
        """A comparison with a number that nobody computes."""
        self._count_decision(asked)
        self.state(_DECIDES, number)

    def _count_decision(self, asked: AskedLine) -> None:
        place = place_of_caller()
        times = self._decisions[place] = self._decisions.get(place, 0) + 1
        if times > _MOST_DECISIONS:
            raise decided(asked, without_end=True)


class _Given:
    """The user's answers for one line; several are taken in turn, and again from the first."""

    def __init__(self, place: str, value: Any) -> None:
        file, _, line = place.rpartition(":")
        self.place = place
        self.values = list(value) if isinstance(value, tuple | list) and value else [value]
        self.taken = 0
        self._parts, self._line = Path(file).parts, int(line)

    def is_of(self, frame: FrameType) -> bool:
        if frame.f_lineno != self._line:
            return False
        return Path(frame.f_code.co_filename).parts[-len(self._parts) :] == self._parts

    def next(self) -> Any:
        self.taken += 1
        return self.values[(self.taken - 1) % len(self.values)]


class UnknownNumber(float):
    """What `.item()` gives on a predicted device.

    Programs print their loss, add it up and take means of it; all of that goes on. What decides by it finds a finite
    number, and that is noted; a size or an index that would be made of it is stopped, unless it counts what is true
    in a mask. Where C code takes the number out (`math.exp`, numpy, `"%f"`), it
    finds 1.0, or what stands in.
    """

    __slots__ = ("asked", "assumptions", "drawn", "stands", "whole")
    asked: AskedLine
    """The line that took it from a tensor."""
    whole: bool
    assumptions: Assumptions | None
    stands: int | None
    """For a whole number: what it would naturally be, if anything."""
    drawn: bool
    """At random: nothing can be decided by it."""

    def __new__(
        cls,
        asked: AskedLine = AskedLine(),  # noqa: B008
        whole: bool = False,
        assumptions: Assumptions | None = None,
        stands: int | None = None,
        drawn: bool = False,
    ) -> Self:
        made = super().__new__(cls, STANDS if stands is None else stands)
        made.asked, made.whole, made.assumptions, made.stands, made.drawn = asked, whole, assumptions, stands, drawn
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
        return UnknownNumber, (self.asked, self.whole, None, self.stands, self.drawn)

    __hash__ = float.__hash__

    def _stop(self, *_: Any) -> NoReturn:
        raise decided(self.asked)

    def _decide(self) -> None:
        if self.drawn:
            self._stop()
        if self.assumptions is not None:
            self.assumptions.decide(self.asked, STANDS if self.stands is None else self.stands)

    def __bool__(self) -> bool:
        self._decide()
        return self.stands != 0

    def _whole_number(self) -> int:
        """As a size, an index, or what `int()` makes of it."""
        if self.stands is None:
            raise decided(self.asked, "a size, an index or a whole number")
        self._decide()
        return self.stands

    def __float__(self) -> float:
        if self.assumptions is not None:
            self.assumptions.state(_TAKEN_AS, int(STANDS if self.stands is None else self.stands))
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
        return UnknownNumber(one.asked, isinstance(other, int) and "truediv" not in own, one.assumptions)
    try:
        standing = getattr(one.stands, own)(other)
    except ZeroDivisionError:
        standing = STANDS
    stands = standing if isinstance(standing, int) else None
    return UnknownNumber(one.asked, stands is not None, one.assumptions, stands)


def _comparing(own: str) -> Callable[..., Any]:
    compare = getattr(float, own)

    def comparison(self: UnknownNumber, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        # What is drawn decides nothing by itself; against another number it is that which has an answer.
        decides = other if self.drawn and isinstance(other, UnknownNumber) else self
        decides._decide()
        return compare(self, other)

    comparison.__name__ = own
    return comparison


for _name in _KEEP_UNKNOWN:
    for _own in (f"__{_name}__", f"__r{_name}__"):
        setattr(UnknownNumber, _own, _unknown(_own))
for _name in _COMPARISONS:
    setattr(UnknownNumber, f"__{_name}__", _comparing(f"__{_name}__"))
