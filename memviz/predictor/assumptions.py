"""Assumed values where a program or a library reads a value that is not computed; the notes of the run list each one.

Library code needs some values where every working run gets the same answer: whether gradients overflowed, whether
the arguments of a distribution are valid.
"""

from __future__ import annotations

import dis
import operator
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, reduce, wraps
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from memviz.errors import UsageError
from memviz.predictor.compat import inside_operator
from memviz.predictor.known_values import DEFAULT_NUMBER
from memviz.predictor.position import file_and_line_of_caller, first_of_library, place_of, quoted_line_of_caller
from memviz.predictor.questions import AskedQuestion, GivenAnswer, QuestionKind, Questions, WaitingLoops
from memviz.units import count_text

# Errors of a predicted device that cannot continue: the line, the value it reads, and the remedy.

REMEDY = "Or use a value from the host or a constant, or leave this line out of the prediction."
_NO_VALUE_HELPS = "No value helps: leave this line out of the prediction."
_REMEDIES = {
    "bincount": "Or pass minlength: values are assumed to be below it.",
    "repeat_interleave": "Or pass output_size, so that the shape is known.",
}
_NAMES = {
    "_local_scalar_dense": "a decision, an index or a number read from a tensor",
    "equal": "torch.equal",
    "index": "a mask as an index",
    "nonzero": "nonzero (or torch.where with a condition alone)",
    "_unique2": "unique",
    "unique_dim": "unique",
    "_pack_padded_sequence": "pack_padded_sequence",
    "linalg_lstsq": "torch.linalg.lstsq",
    "_linalg_check_errors": "a matrix check",
    "_ctc_loss": "ctc_loss",
    "_sparse_addmm": "torch.sparse.mm",
    "_to_sparse": "to_sparse",
    "_to_copy": ".to()",
}
OF_SPARSE = (
    "no rule gives its memory for sparse tensors; known are products with dense tensors, conversions, sums, and "
    "operators on each value"
)

_STATE_WHERE_TAKEN = "State the number with --assume at the line that reads it."

_refused: list[str] = []
"""Refusals since the device was entered; only one device exists at a time."""


def name_for_users(func: Any) -> str:
    """Return the name that users write for an operator that reads values, which differs from torch's."""
    return name_of_operator(func.overloadpacket.__name__)


def name_of_operator(operator: str) -> str:
    return _NAMES.get(operator, operator)


def remedy_for(func: Any) -> str:
    return _REMEDIES.get(func.overloadpacket.__name__, REMEDY)


class Stopped(UsageError):
    """A program cannot go on where it is."""

    exit_status = 3

    def __init__(self, what: str) -> None:
        super().__init__(f"{_line()}{what}")
        self.what = what
        self.where = file_and_line_of_caller()
        """The program's line, as 'train.py:12'."""

    def was_not_caught(self) -> None:
        """Called when the error ended the program."""


class NotPredicted(Stopped):
    """An operator without a memory rule."""


class WrongAnswer(Stopped):
    """An answer of the user that its question cannot take."""

    exit_status = 2


class DataNeeded(Stopped):
    """The program branches on data, or a shape depends on it."""

    def __init__(self, asking: str, rest: str, asked: AskedQuestion | None = None) -> None:
        self._refusal = f"{_line()}{asking}"
        _refused.append(self._refusal)
        self.assume = "" if asked is None else f"--assume {asked.name}=VALUE"
        """The option that states the value; empty where none would be taken."""
        super().__init__(f"{asking} {rest}")

    def was_not_caught(self) -> None:
        """Drop the refusal, because the program ended with it."""
        if self._refusal in _refused:
            _refused.remove(self._refusal)


def forget_refusals() -> None:
    _refused.clear()
    UnknownNumber.last_whole = ReadingLine()


def caught_refusal() -> str:
    """Return a sentence about the refusal that the program caught; empty if it caught none."""
    if not _refused:
        return ""
    return (
        "The program caught an error of the prediction and continued, so it may differ from a real run. "
        f"{_refused[0]} needed values that are not computed."
    )


class NoSuchDevice(UsageError, RuntimeError):
    """Error like torch's own for a missing card, so that a program that expects it continues."""


class NoSuchKernel(UsageError, RuntimeError):
    """Error like torch's own where no enabled kernel fits: programs try one and take another."""


def data_needed(what: str, remedy: str = REMEDY, asked: AskedQuestion | None = None) -> DataNeeded:
    """Return the error for reading values by `what`, such as '.tolist()'; `asked` if --assume can answer."""
    asks = "needs the values of a tensor, which a prediction does not compute."
    return DataNeeded(what, f"{asks} {_state_hint(asked, remedy)}", asked)


class ReadingLine(NamedTuple):
    """A line that reads a value of a tensor."""

    words: str = ""
    asked: AskedQuestion | None = None
    """The question that `--assume` answers; None where no answer would be taken."""


def decision_needed(line: ReadingLine, what: str = "a decision", *, without_end: bool = False) -> DataNeeded:
    """Return the error for a decision by a number taken from a tensor; `without_end` if it repeats forever."""
    number = f"a number read from a tensor{f' ({line.words})' if line.words else ''}"
    why = (
        "which never changes in a prediction, so the program would not end."
        if without_end
        else "which a prediction does not compute: it can be printed and added up, but not decide this."
    )
    return DataNeeded(what, f"needs {number}, {why} {_state_hint(line.asked, REMEDY)}", line.asked)


def size_needed(error: TypeError) -> DataNeeded:
    """Return the error for torch's TypeError about an unknown number used as a size."""
    at = place_of(error.__traceback__)
    line = next(_unknown_numbers_at(error.__traceback__), UnknownNumber.last_whole)
    if line.asked is None:
        needed = DataNeeded("A size", f"depends on a number that is not computed. {_STATE_WHERE_TAKEN}")
    else:
        needed = decision_needed(line, "a size")
    needed.where = at
    needed.args = (f"{at}: {needed.what}",)
    return needed


def _unknown_numbers_at(traceback: TracebackType | None) -> Iterator[ReadingLine]:
    """Yield where unknown numbers were read that the frames of an error hold, innermost frame first."""
    held: list[Any] = []
    while traceback is not None:
        held[:0] = traceback.tb_frame.f_locals.values()
        traceback = traceback.tb_next
    for value in held:
        for number in value if isinstance(value, list | tuple) else (value,):
            if type(number) is UnknownNumber and number.whole and number.default is None:
                yield number.asked


def stopped_by_interrupt(error: KeyboardInterrupt) -> Stopped:
    """Return the error for Ctrl-C, with the line that the program was at."""
    stopped = Stopped("Stopped by Ctrl-C.")
    stopped.where = place_of(error.__traceback__)
    stopped.args = (f"{stopped.where}: {stopped.what}" if stopped.where else stopped.what,)
    return stopped


def _state_hint(asked: AskedQuestion | None, remedy: str) -> str:
    if asked is None:
        return _NO_VALUE_HELPS
    return f"State it with --assume {asked.name}=VALUE, where VALUE is {asked.question.text}. {remedy}"


def raise_as_cuda(error: RuntimeError, func: Any, args: Any, card: int) -> None:
    """Raise CUDA's message for a device or size mismatch, which programs may parse; meta tensors raise another."""
    if "is not on the expected device" in str(error):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, cuda:{card} and cpu! "
            f"(in {name_for_users(func)})"
        ) from None
    if func.overloadpacket.__name__ not in ("mm", "addmm"):
        return
    one, other = args[-2:]
    if one.dim() == other.dim() == 2 and one.size(1) != other.size(0):
        shapes = f"{one.size(0)}x{one.size(1)} and {other.size(0)}x{other.size(1)}"
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({shapes})") from None


def not_predicted(operator: str, why: str, remedy: str = "Remove it, or use other operators") -> UsageError:
    return NotPredicted(f"{operator} cannot be predicted: {why}. {remedy}.")


def strided_nested_tensor() -> UsageError:
    return not_predicted("A strided nested tensor", "it has no shape; layout=torch.jagged is predicted")


def refusing(operator: str, why: str) -> Callable[..., None]:
    """Return a function that raises `not_predicted` when it is called."""

    def refuse(*_: Any, **__: Any) -> None:
        raise not_predicted(operator, why)

    return refuse


def shapes_not_registered(func: Any) -> UsageError:
    """Return the error for a custom operator without registered shapes."""
    name = func.name()
    return NotPredicted(
        f"{name} cannot be predicted: it is a custom operator without registered shapes. "
        f'Register them with @torch.library.register_fake("{name}") on a function of the same arguments that returns '
        "tensors of these shapes, such as torch.empty_like(x)."
    )


def no_such_device(index: int, card: str, count: int) -> NoSuchDevice:
    cards = f"one {card} (cuda:0)" if count == 1 else f"{count} cards ({card}), cuda:0 to cuda:{count - 1}"
    return NoSuchDevice(
        f"{_line()}CUDA error: invalid device ordinal. The program uses device {index}, but the predicted machine has "
        f"{cards}. Use {'that one' if count == 1 else 'one of those'}, or predict more with --gpus {index + 1}."
    )


def wrong_device_for_rank(index: int, rank: int, own: int) -> NoSuchDevice:
    return NoSuchDevice(
        f"{_line()}CUDA error: the program uses device {index}, but the card of the predicted rank {rank} is "
        f"cuda:{own}. Use LOCAL_RANK ({own}), or no device number."
    )


def _line() -> str:
    line = quoted_line_of_caller()
    return f"{line}: " if line else ""


_MOST_PLACES = 3
"""That one sentence names."""


@dataclass(frozen=True)
class Assumption:
    """A value that the program read and that is not computed, with the answer that it got."""

    where: str
    """The program's line, as 'train.py:12'; empty for torch's own code."""
    kind: str
    """Statement of the assumption, with `{number}` in place of its numbers."""
    least: float | None = None
    most: float | None = None
    """Range of the numbers returned."""
    times: int = 1
    is_size: bool = False

    @property
    def what(self) -> str:
        number = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
        return self.kind.replace("{number}", number)

    def and_again(self, other: Assumption) -> Assumption:
        """Merge with another assumption of the same kind."""
        numbers = [number for number in (self.least, self.most, other.least, other.most) if number is not None]
        least, most = min(numbers, default=None), max(numbers, default=None)
        return replace(self, least=least, most=most, times=self.times + other.times)

    def as_json(self) -> dict[str, Any]:
        return {"where": self.where, "what": self.what, "times": self.times}


def sentences_of(stated: Iterable[Assumption]) -> list[str]:
    """Return one sentence for each kind of assumption, with its lines and count."""
    by_kind: dict[str, list[Assumption]] = {}
    for one in stated:
        by_kind.setdefault(one.kind, []).append(one)
    sentences = []
    for same_kind in by_kind.values():
        total = reduce(Assumption.and_again, same_kind)
        places = [one.where for one in same_kind if one.where]
        if len(places) > _MOST_PLACES + 1:
            more = count_text(len(places) - _MOST_PLACES)
            where = f"{', '.join(places[:_MOST_PLACES])} and {more} more lines"
        else:
            where = " and ".join(filter(None, (", ".join(places[:-1]), *places[-1:])))
        often = f" ({count_text(total.times)} times)" if total.times > len(same_kind) else ""
        sentences.append(f"{where}{often}: {total.what}." if places else f"{total.what}.")
    return sentences


class _LibraryRule(NamedTuple):
    file: str
    functions: tuple[str, ...]
    """Functions of the file; empty matches any."""
    value: Any
    """The answer, or a function that gets it from the reading frame."""
    sentence: str
    prefers_default: tuple[type, ...] = ()
    """Types of answers for which a default value, if there is one, is better than the rule's."""


_SCALER = "A gradient scaler is assumed to find no overflow: no step is skipped, and the scale keeps its initial value."
_VALID = "Arguments and samples of torch.distributions are assumed to be valid."
_BOUNDS = "Random weights with bounds are assumed to be within them at the first draw."
_NORM = "The total gradient norm is assumed to be finite."
_MASKS = "Attention masks that are not computed are assumed to mask nothing."
_CHECKS = "Library checks of tensor values (torch._check_tensor_all) are assumed to pass."
_SEEDS = "Seeds that data loaders draw on the card are assumed to be 0."
_CLOSE = "Compared values are assumed to be close."
_TEXT = "Generated text is assumed to reach the maximum length, without an earlier end or padding."
_DRAFTS = "Generated text is assumed to reach the maximum length, with all draft tokens accepted."
_GRADCHECK = "gradcheck is assumed to pass: gradients are not computed, only the memory of the check is predicted."
_CONVERGED = "torch.lobpcg is assumed to converge in its third iteration, whose bases have their full size."
_DIFFER = ("_check_jacobians_equal", "_check_no_differentiable_outputs", "_check_no_differentiable_outputs_fast")
_AGREE = ("_allclose_with_type_promotion", "_test_backward_mul_by_grad_output", "check_undefined_grad_support")
_GENERATION = "/transformers/generation/"
_LIBRARY_RULES = (
    _LibraryRule("torch/amp/grad_scaler.py", ("get_scale",), lambda frame: frame.f_locals["self"]._init_scale, _SCALER),
    _LibraryRule("torch/amp/grad_scaler.py", ("_get_growth_tracker",), 0, _SCALER),
    _LibraryRule("torch/amp/grad_scaler.py", (), 0.0, _SCALER),
    _LibraryRule("torch/distributions/distribution.py", (), True, _VALID),
    _LibraryRule("torch/nn/init.py", (), False, _BOUNDS),
    _LibraryRule("torch/nn/utils/clip_grad.py", (), False, _NORM),
    _LibraryRule("/transformers/masking_utils.py", (), True, _MASKS),
    _LibraryRule("torch/__init__.py", ("_check_tensor_all_with",), True, _CHECKS),
    _LibraryRule("torch/utils/data/", (), 0, _SEEDS),
    _LibraryRule("torch/testing/_comparison.py", (), True, _CLOSE),
    _LibraryRule(
        "torch/_lobpcg.py",
        ("update_converged_count",),
        lambda frame: frame.f_locals["self"].ivars["istep"] > 2,
        _CONVERGED,
    ),
    _LibraryRule("torch/autograd/gradcheck.py", _DIFFER, False, _GRADCHECK),
    _LibraryRule("torch/autograd/gradcheck.py", _AGREE, True, _GRADCHECK),
    # Whether any beam goes on, which is known where the greatest length is reached, and how long the longest is.
    _LibraryRule(_GENERATION, ("_beam_search",), True, _TEXT, prefers_default=(int,)),
    _LibraryRule(_GENERATION, ("_assisted_decoding",), False, _DRAFTS, prefers_default=(int,)),
    _LibraryRule(_GENERATION, ("_speculative_sampling",), False, _DRAFTS, prefers_default=(int, bool)),
    _LibraryRule(_GENERATION, (), False, _TEXT),
    _LibraryRule("/transformers/models/whisper/generation", (), False, _TEXT),
)
"""The first that fits."""


_WORD = "unknown"
_TAKEN = (
    "read from a tensor is not computed: it prints as unknown, and counts as {number} in conditions, % formats, math "
    "and numpy"
)
_TAKEN_AND_NO_SIZE = (
    "read from a tensor is not computed: it prints as unknown, counts as {number} in comparisons, % formats, math and "
    "numpy, and cannot be a size"
)
_MOST_DECISIONS = 100_000
"""Limit per line: a loop that waits for a number to change would never end."""
_MOST_PASSES = 16
"""Passes of a loop that only such a number can end; later on it has one."""
NOT_STATED = object()
FIRST = 0


class Assumptions:
    def __init__(self, answers: Mapping[str, Any] | None = None) -> None:
        """`answers` are the user's own, by place, as 'train.py:12'."""
        self.questions = Questions(answers)
        self._sentences: dict[str, None] = {}
        """In the order in which they were first needed."""
        self._stated: dict[tuple[str, str], Assumption] = {}
        """Assumptions by line and kind."""
        self._of_modules: Any = WeakIdKeyDictionary()
        """Sentences that hold once the module is called."""
        self._decisions: dict[str, int] = {}
        self._loops = WaitingLoops()
        self._passes: Counter[tuple[CodeType, int]] = Counter()
        """Passes of loops that only a value that is not computed can end."""

    @property
    def sentences(self) -> tuple[str, ...]:
        return (*self._sentences, *sentences_of(self._stated.values()))

    @property
    def stated(self) -> tuple[Assumption, ...]:
        """Assumptions of torch's code, without a line, and of the program's code, with it."""
        return (*(Assumption("", sentence.rstrip(".")) for sentence in self._sentences), *self._stated.values())

    def say(self, sentence: str) -> None:
        self._sentences[sentence] = None

    def when_called(self, target: Any, *sentences: str) -> Any:
        """Return `target` with the sentences noted when it is called: code that never runs changes no peak."""
        if isinstance(target, nn.Module):
            self._of_modules[target] = (*self._of_modules.get(target, ()), *sentences)
            return target
        if isinstance(target, type) or not callable(target):
            return target

        @wraps(target)
        def run(*args: Any, **kwargs: Any) -> Any:
            # Code that a library compiles may compute the known result of an operator.
            if not inside_operator():
                for sentence in sentences:
                    self.say(sentence)
            return target(*args, **kwargs)

        return run

    def module_called(self, module: nn.Module) -> None:
        for sentence in self._of_modules.get(module, ()) if len(self._of_modules) else ():
            self.say(sentence)

    def state(self, kind: str, number: float | None = None, *, is_size: bool = False) -> None:
        now = Assumption(file_and_line_of_caller(), kind, number, number, is_size=is_size)
        before = self._stated.get((now.where, kind))
        self._stated[now.where, kind] = now if before is None else before.and_again(now)

    def stated_answer(self, question: QuestionKind) -> Any:
        """Return the user's answer to a question at the reading line or a caller of it, or NOT_STATED."""
        answer = self.questions.ask(question)
        if answer is None:
            return NOT_STATED
        value, asked = answer.next(), self.questions.last
        if answer.ambiguity:
            raise WrongAnswer(answer.ambiguity)
        if asked is not None and not asked.question.accepts(value):
            # Not used, then, if the program catches this and goes on.
            answer.taken -= 1
            place = asked.name
            own = "" if place == answer.place else f" State it separately with --assume {place}=VALUE."
            raise WrongAnswer(
                f"--assume {answer.place}={value!r} is not valid at {place}, which needs {asked.question.text}.{own}"
            )
        self.state(f"{value!r} is used, as stated")
        return value

    def took(self, answer: Any) -> Any:
        """Note and return the natural answer to the last question."""
        if self.questions.last is not None:
            self.questions.last.took(answer)
        return answer

    @property
    def states_several(self) -> bool:
        """Return whether the asking line has several stated answers, taken in turn."""
        answer = self.questions.answer()
        return answer is not None and len(answer.values) > 1

    @property
    def _unused(self) -> tuple[GivenAnswer, ...]:
        return tuple(answer for answer in self.questions.given if not answer.taken)

    @property
    def unused(self) -> tuple[str, ...]:
        """Places with a stated answer that read no value."""
        return tuple(answer.place for answer in self._unused)

    @property
    def unused_sentence(self) -> str:
        """Empty where every stated answer was used."""
        return self.questions.unused_sentence(self._unused) if self._unused else ""

    def for_library(self, kind: type, default: int | None = None) -> Any:
        """Return the answer for a library that now reads a value of this type, or None.

        `default` is the default value, if there is one.
        """
        frame = first_of_library()
        if frame is None:
            return None
        file, function = Path(frame.f_code.co_filename).as_posix(), frame.f_code.co_name
        for rule in _LIBRARY_RULES:
            if rule.file in file and (not rule.functions or function in rule.functions):
                self.say(rule.sentence)
                if default is not None and kind in rule.prefers_default:
                    return kind(default)
                return rule.value(frame) if callable(rule.value) else rule.value
        return None

    def number(self, *, is_whole: bool = False, default: int | None = None) -> UnknownValue:
        """Return a number that the program takes from a tensor, with the default value of a whole one."""
        kind = "a whole number" if is_whole else "a number"
        sentence = f"{kind} {_TAKEN_AND_NO_SIZE if default is None else _TAKEN}"
        value = self.took(int(DEFAULT_NUMBER if default is None else default))
        self.state(sentence, value)
        line = self._reading_line()
        if is_whole and default is None:
            UnknownNumber.last_whole = line
        return unknown_number(line, is_whole, self, default)

    def first_of_list(self) -> int:
        """Return the natural index of one element: any list that has some has this one."""
        self.state("an index that is not computed is assumed to be {number}", FIRST)
        return FIRST

    def _reading_line(self) -> ReadingLine:
        return ReadingLine(quoted_line_of_caller(), self.questions.last)

    def state_a_decision(self, what: str) -> None:
        self._count_decision(self._reading_line())
        self.state(what)

    def leads_on(self, frame: FrameType | None, answer: bool) -> bool:
        """Return the answer to a frame's condition, or the other one and note it: no error, and an end of each loop."""
        branches = _Branches() if frame is None else _branches(frame.f_code, frame.f_lasti)
        if branches.without_error not in (None, answer):
            self.state_a_decision(f"a condition that is not computed is assumed to be {not answer}")
            return not answer
        if frame is not None and branches.out_of_loop not in (None, answer):
            self._passes[frame.f_code, frame.f_lasti] += 1
            if self._passes[frame.f_code, frame.f_lasti] >= _MOST_PASSES:
                self.state(f"a loop whose condition is not computed is assumed to end after {_MOST_PASSES} passes")
                return not answer
        return answer

    def decide(self, line: ReadingLine, number: float) -> None:
        self._count_decision(line)
        self.state("a number that is not computed counts as {number} in a condition", number)

    def _count_decision(self, line: ReadingLine) -> None:
        place = file_and_line_of_caller()
        times = self._decisions[place] = self._decisions.get(place, 0) + 1
        if times > _MOST_DECISIONS or self._loops.waits(place, times):
            raise decision_needed(line, without_end=True)


class UnknownValue:
    """Result of `.item()` on a predicted device.

    Programs may print a loss, add it up and average it. A decision based on it sees a finite number, and an assumption
    records that. A size or an index made of it raises an error, unless it counts the true elements of a mask. C code
    that takes the number out (`math.exp`, numpy, `"%f"`) gets 1.0, or the default value.
    """

    __slots__ = ()
    asked: ReadingLine
    whole: bool
    assumptions: Assumptions | None
    default: int | None
    """Default value of a whole number, if there is one."""

    def __repr__(self) -> str:
        return _WORD

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        """Keep the width of the column."""
        width = spec.partition(".")[0].strip("<>=^+-#0, bcdeEfFgGnoxX_%")
        return _WORD.rjust(int(width)) if width.isdigit() else _WORD

    def __round__(self, digits: Any = None) -> Any:
        return self._as_integer() if digits is None else self

    def _itself(self, *_: Any) -> Self:
        return self

    __neg__ = __pos__ = __abs__ = __copy__ = __deepcopy__ = _itself

    def __reduce__(self) -> Any:
        # Plain values, which torch.load accepts; the question is not asked again.
        return unknown_number, ((self.asked.words,), self.whole, None, self.default)

    @property
    def _value(self) -> float:
        return DEFAULT_NUMBER if self.default is None else self.default

    def _decide(self, answer: bool = True, asking: FrameType | None = None) -> bool:
        """Note a decision; return its answer, or the other one where that leads to an error or no end."""
        if self.assumptions is not None:
            if asking is not None and self.assumptions.leads_on(asking, answer) != answer:
                return not answer
            self.assumptions.decide(self.asked, self._value)
        return answer

    def __bool__(self) -> bool:
        return self._decide(self.default != 0, sys._getframe(1))

    def _as_integer(self) -> int:
        """Return a number with a fraction as 1; a whole one may be a length, unless it is printed."""
        if self.whole and self.default is None and not is_printed_by(sys._getframe(1)):
            raise decision_needed(self.asked, "a size, an index or a whole number")
        self._decide()
        return int(self._value)

    def __index__(self) -> int:
        """Return the default value for a size or an index; without one, 0 as an index and nothing as a size."""
        if self.default is not None:
            return self._as_integer()
        if not is_index_in(sys._getframe(1)):
            raise decision_needed(self.asked, "a size or an index")
        if self.asked.asked is not None:
            self.asked.asked.answers[:] = [FIRST]
        return FIRST if self.assumptions is None else self.assumptions.first_of_list()

    def __float__(self) -> float:
        if self.assumptions is not None:
            self.assumptions.state("a number that is not computed counts as {number}", int(self._value))
        return float(self._value)

    def is_integer(self) -> bool:
        return self.whole

    def as_integer_ratio(self) -> Any:
        """Support `statistics.mean` and the like, which call it."""
        return float(self).as_integer_ratio()

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    __int__ = __trunc__ = __floor__ = __ceil__ = _as_integer


class UnknownNumber(UnknownValue, float):
    """A number without a default value, or with a fraction."""

    __slots__ = ("asked", "assumptions", "default", "whole")
    last_whole: ClassVar[ReadingLine] = ReadingLine()
    """The line that took the last whole number without a default value: a size may be made of it at once."""
    __hash__ = float.__hash__


class UnknownInteger(UnknownValue, int):
    """A whole number with a default value: an int, so that numpy and C code take it for one."""

    __hash__ = int.__hash__


def unknown_number(
    asked: tuple[Any, ...], whole: bool, assumptions: Assumptions | None, default: int | None = None
) -> UnknownValue:
    kind: Any = UnknownInteger if whole and default is not None else UnknownNumber
    number = kind(DEFAULT_NUMBER if default is None else default)
    number.asked, number.whole, number.assumptions, number.default = ReadingLine(*asked), whole, assumptions, default
    result: UnknownValue = number
    return result


_SUBSCRIPTS = {dis.opmap[name] for name in ("BINARY_SUBSCR", "STORE_SUBSCR", "DELETE_SUBSCR") if name in dis.opmap}
_OPERATORS: list[Any] = getattr(dis, "_nb_ops", [])
_IS_BRANCH = re.compile(r"(POP_)?JUMP_.*IF_(TRUE|FALSE)").fullmatch
_ENDS_BLOCK = re.compile("RAISE|LOAD_ASSERT|RETURN|FOR_ITER|SEND|.*JUMP").match
_TOKENIZERS = ("/transformers/tokenization_", "/tokenizers/")
"""Their code looks up a word for each number."""


def is_index_in(frame: FrameType, *, of_tensor: bool = False) -> bool:
    """Return whether the instruction of a frame takes one element: `items[number]`, but not `items[:number]`.

    Among several indices only a tensor's are distinguished: the ends of its slices are answered before.
    """
    if any(name in Path(frame.f_code.co_filename).as_posix() for name in _TOKENIZERS):
        return True
    instruction = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    if instruction[0] in _SUBSCRIPTS:
        # Before Python 3.12 a slice is made in the instruction before.
        before = frame.f_code.co_code[frame.f_lasti - 2]
        return before != dis.opmap["BUILD_SLICE"] and (of_tensor or before != dis.opmap["BUILD_TUPLE"])
    return _is_operator(frame, "NB_SUBSCR")


def is_printed_by(frame: FrameType) -> bool:
    """Return whether the instruction of a frame is `"%d" % number`: no other "%" of tensors or numbers calls it."""
    return _is_operator(frame, "NB_REMAINDER")


def _is_operator(frame: FrameType, name: str) -> bool:
    code, operand = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    return code == dis.opmap["BINARY_OP"] and operand < len(_OPERATORS) and _OPERATORS[operand][0] == name


class _Branches(NamedTuple):
    """Answers to a condition by what they lead to; None where both answers lead there, or neither."""

    without_error: bool | None = None
    """Raises no error, as in `assert`."""
    out_of_loop: bool | None = None
    """Leaves a loop that has no other end."""


@cache
def _branches(code: CodeType, at: int) -> _Branches:
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("TO_BOOL", "NOT_TAKEN")]
    # The instruction that asks is the jump, or makes the condition of the next one.
    here = next((index for index, step in enumerate(steps) if step.offset >= at), len(steps))
    jump = next((step for step in steps[here : here + 2] if _IS_BRANCH(step.opname)), None)
    if jump is None:
        return _Branches()
    loops = [(step.argval, step.offset) for step in steps if "JUMP" in step.opname and step.argval < step.offset]
    around = [loop for loop in loops if loop[0] <= jump.offset <= loop[1]]
    begin, end = max(around, default=(0, len(code.co_code)))
    within = [step for step in steps if begin <= step.offset <= end]

    def answer_to(leads: Callable[[int], bool], branch: dis.Instruction) -> bool | None:
        by_jump, by_falling = leads(branch.argval), leads(branch.offset + 1)
        return None if by_jump == by_falling else by_jump == branch.opname.endswith("TRUE")

    def leaves(offset: int) -> bool:
        end_of_block = _end_of_block(steps, offset)
        if end_of_block.opname == "JUMP_FORWARD":
            return not begin <= end_of_block.argval <= end
        return not begin <= offset <= end or end_of_block.opname.startswith("RETURN")

    def fails(offset: int) -> bool:
        return _end_of_block(steps, offset).opname.startswith(("RAISE", "LOAD_ASSERT"))

    error, out_of_loop = answer_to(fails, jump), answer_to(leaves, jump)
    has_end = not around or within[0].opname == "FOR_ITER"
    exits = [step for step in within if _IS_BRANCH(step.opname) and answer_to(leaves, step) is not None]
    return _Branches(None if error is None else not error, None if has_end or len(exits) > 1 else out_of_loop)


def _end_of_block(steps: list[dis.Instruction], start: int) -> dis.Instruction:
    """Return the first instruction from `start` that branches, returns or raises an error."""
    return next((step for step in steps if step.offset >= start and _ENDS_BLOCK(step.opname)), steps[-1])


def _unknown_result(own: str) -> Callable[..., Any]:
    def operation(self: UnknownValue, other: Any, *_: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return _integer_result(own, self, other) if self.whole else self

    operation.__name__ = own
    return operation


def _integer_result(own: str, one: UnknownValue, other: Any) -> UnknownValue:
    """Return an integer result if Python's operation on the default values gives one."""
    if isinstance(other, UnknownValue):
        other = other.default if other.whole else DEFAULT_NUMBER
    if one.default is None or not isinstance(other, int):
        return unknown_number(one.asked, isinstance(other, int) and "truediv" not in own, one.assumptions)
    try:
        result = getattr(one.default, own)(other)
    except ZeroDivisionError:
        result = DEFAULT_NUMBER
    default = result if isinstance(result, int) else None
    return unknown_number(one.asked, default is not None, one.assumptions, default)


_EQUALITY = ("__eq__", "__ne__")


def _comparison(own: str) -> Callable[..., Any]:
    compare = getattr(operator, own)

    def comparison(self: UnknownValue, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        if own in _EQUALITY and self.whole and self.default is None and not isinstance(other, UnknownValue):
            # A token is not the end of a text, a label not a certain one.
            if self.assumptions is not None:
                self.assumptions.state_a_decision("a number that is not computed is assumed to differ from another")
            return own == "__ne__"
        answer = compare(self._value, other._value if isinstance(other, UnknownValue) else other)
        return self._decide(answer, sys._getframe(1))

    comparison.__name__ = own
    return comparison


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift"):
    for _own in (f"__{_name}__", f"__r{_name}__"):
        setattr(UnknownValue, _own, _unknown_result(_own))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(UnknownValue, f"__{_name}__", _comparison(f"__{_name}__"))
