"""Questions: the places where a program asks for a value that is not computed, and the user's own answers to them.

A place is 'train.py:12', and 'train.py:12#2' the second question on that line. Two questions are the
same if the same instruction and the same calls lead to them, so that a loop asks one question many times.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from operator import length_hint
from pathlib import Path
from types import CodeType, FrameType, GeneratorType, ModuleType
from typing import Any, NamedTuple

from memviz.errors import UsageError
from memviz.predictor.position import frames, innermost_frame_outside_torch, is_driver, place_in
from memviz.units import count_text

_PLACE = re.compile(r"(?P<file>.+):(?:(?P<line>\d+)|(?P<name>[^\W\d][\w.]*))(?:#(?P<number>[1-9]\d*))?")
_MOST_LISTED = 8
_MOST_KEPT = 1000
"""Answers to one question, in turn, that are kept for `--write-assume`."""


@dataclass(frozen=True)
class QuestionKind:
    """A kind of question: meaning and range of its answers."""

    text: str
    kinds: tuple[type[complex], ...]
    least: float | None = None
    most: float | None = None

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, self.kinds) or isinstance(value, bool) and bool not in self.kinds:
            return False
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


CONDITION = QuestionKind("True or False", (bool, int, float))
NUMBER = QuestionKind("a number, such as 3.5", (bool, int, float, complex))
WHOLE_NUMBER = QuestionKind("a whole number", (bool, int))


def count_question(most: int | None, *, least: int = 0) -> QuestionKind:
    """Return the question how many elements a result has."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {count_text(most)}"
    return QuestionKind(f"the number of elements: a whole number {bounds}", (int,), least, most)


def mask_question(elements: int) -> QuestionKind:
    some = f"how many of {count_text(elements)} elements are true"
    return QuestionKind(f"True (all elements), False (none) or {some}", (bool, int), 0, elements)


@dataclass
class AskedQuestion:
    question: QuestionKind
    place: str
    number: int
    """Its number among the questions on the line, in the order of their first occurrence."""
    numbers_on_line: list[int]
    """Shared by the questions of a line; numbers alone, as a question is pickled with the number it is about."""
    answers: list[Any] = field(default_factory=list)
    """Natural answers that it got, in turn."""
    times: int = 0

    @property
    def name(self) -> str:
        """Return the place as `--assume` takes it, with a number if its line has several questions."""
        return f"{self.place}#{self.number}" if len(self.numbers_on_line) > 1 else self.place

    def took(self, answer: Any) -> None:
        self.times += 1
        if len(self.answers) < _MOST_KEPT:
            self.answers.append(answer)


def is_place(text: str) -> bool:
    return _PLACE.fullmatch(text) is not None


class GivenAnswer:
    """The user's answers for one place; several are taken in turn, and again from the first."""

    def __init__(self, place: str, value: Any) -> None:
        parts = _PLACE.fullmatch(place)
        if parts is None:
            raise UsageError(
                f"{place} is not a place for --assume, such as train.py:12, train.py:12#2 or train.py:count."
            )
        self.place = place
        self.values = list(value) if isinstance(value, tuple | list) and value else [value]
        self.taken = 0
        self._file = Path(parts["file"]).parts
        self._line, self._name, self._number = int(parts["line"] or 0), parts["name"] or "", int(parts["number"] or 0)
        self._numbers: dict[Hashable, int] = {}
        self._assigned_on: set[int] = set()

    def matches(self, asking: Sequence[FrameType]) -> int | None:
        """Return which of the frames, innermost first, is at this place; None if none is."""
        at = next((at for at, frame in enumerate(asking) if self._is_of(frame)), None)
        if at is None:
            return None
        number = self._numbers.setdefault(_call_path(asking[: at + 1]), len(self._numbers) + 1)
        return at if self._number in (0, number) else None

    def _is_of(self, frame: FrameType) -> bool:
        code = frame.f_code
        if Path(code.co_filename).parts[-len(self._file) :] != self._file:
            return False
        if not self._name:
            return frame.f_lineno == self._line
        line = assigning_line(self._name, code, frame.f_lasti)
        if line:
            self._assigned_on.add(line)
        return line > 0

    @property
    def ambiguity(self) -> str:
        """A sentence if the name is assigned on several lines that ask; else empty."""
        if len(self._assigned_on) < 2:
            return ""
        lines = " and ".join(map(str, sorted(self._assigned_on)))
        return (
            f"--assume {self.place}: {self._name} is assigned on lines {lines}, which both need a value. Name the line."
        )

    @property
    def is_numbered(self) -> bool:
        return self._number > 0

    def next(self) -> Any:
        self.taken += 1
        return self.values[(self.taken - 1) % len(self.values)]


class Questions:
    def __init__(self, answers: Mapping[str, Any] | None) -> None:
        self.given = [GivenAnswer(place, value) for place, value in (answers or {}).items()]
        self._by_place: dict[str, dict[Hashable, AskedQuestion]] = {}
        self.last: AskedQuestion | None = None

    def ask(self, question: QuestionKind) -> GivenAnswer | None:
        """Note a question where the program now is, and return the user's answer to it, if any."""
        self.last = None
        innermost = innermost_frame_outside_torch()
        if innermost is not None:
            asking = []
            for frame in frames():
                asking.append(frame)
                if frame is innermost:
                    break
            place, calls = place_in(innermost), _call_path(asking)
            on_line = self._by_place.setdefault(place, {})
            if calls not in on_line:
                numbers = next((asked.numbers_on_line for asked in on_line.values()), [])
                numbers.append(len(on_line) + 1)
                on_line[calls] = AskedQuestion(question, place, numbers[-1], numbers)
            self.last = on_line[calls]
        return self.answer()

    def answer(self) -> GivenAnswer | None:
        """Return the user's answer at the current place: for the innermost line, then for the question's number."""
        if not self.given:
            return None
        asking = list(frames())
        # Each one counts the questions at its place, whichever answers.
        matches = [(at, given) for given in self.given if (at := given.matches(asking)) is not None]
        return min(matches, key=lambda match: (match[0], not match[1].is_numbered), default=(0, None))[1]

    def all(self) -> Iterator[AskedQuestion]:
        for on_line in self._by_place.values():
            yield from on_line.values()

    def answers(self) -> list[str]:
        """Return the user's and the natural answers as lines for `--assume-file`; none where there were too many."""
        lines = [f"{given.place}={','.join(map(repr, given.values))}" for given in self.given if given.taken]
        for asked in self.all():
            values = asked.answers[:1] if len(set(map(repr, asked.answers))) == 1 else asked.answers
            if values and asked.times <= _MOST_KEPT:
                lines.append(f"{asked.name}={','.join(map(repr, values))}")
        return lines

    def unused_sentence(self, unused: Sequence[GivenAnswer]) -> str:
        """Name answers that no question took, and the questions that could have been meant, the same file's first."""
        files = {Path(given.place.rpartition(":")[0]).name for given in unused}
        likely = sorted(self.all(), key=lambda asked: Path(asked.place.rpartition(":")[0]).name not in files)
        texts = [f"{asked.name} ({asked.question.text})" for asked in likely]
        rest = f" and {count_text(len(texts) - _MOST_LISTED)} more" if len(texts) > _MOST_LISTED else ""
        where = f"Values were needed at {'; '.join(texts[:_MOST_LISTED])}{rest}." if texts else ""
        places = ", ".join(given.place for given in unused)
        return f"No line used --assume {places}. {where or 'The program needed no value.'}"


def _call_path(asking: Sequence[FrameType]) -> Hashable:
    return tuple((frame.f_code, frame.f_lasti) for frame in asking)


_BYTES_OF_INSTRUCTION = 2


class _Span(NamedTuple):
    """A piece of source code, from a line and column up to another."""

    begin: tuple[int, int]
    end: tuple[int, int]


def assigning_line(name: str, code: CodeType, instruction: int) -> int:
    """Return the line of the statement that assigns `name` from what an instruction computes; 0 if none does."""
    positions = next(islice(code.co_positions(), instruction // _BYTES_OF_INSTRUCTION, None), None)
    if positions is None or None in positions:
        return 0
    line, end_line, column, end_column = positions
    within = (span for span in _assigned_spans(code.co_filename).get(name, ()) if span.begin <= (line, column))
    return next((span.begin[0] for span in within if (end_line, end_column) <= span.end), 0)


@cache
def _nodes_of(filename: str) -> list[ast.AST]:
    """Return the syntax nodes of a file; none where it has no readable source."""
    try:
        return list(ast.walk(ast.parse("".join(linecache.getlines(filename)))))
    except (SyntaxError, ValueError):
        return []


@cache
def _assigned_spans(filename: str) -> dict[str, list[_Span]]:
    """Return, for each variable of a file, the expressions that are assigned to it."""
    spans: dict[str, list[_Span]] = {}
    for node in _nodes_of(filename):
        for target, value in _assignments(node):
            span = _Span((value.lineno, value.col_offset), (value.end_lineno or 0, value.end_col_offset or 0))
            for part in ast.walk(target):
                if isinstance(part, ast.Name | ast.Attribute):
                    spans.setdefault(ast.unparse(part), []).append(span)
    return spans


def _assignments(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        targets = [*node.targets]
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        targets = [node.target]
    elif isinstance(node, ast.For | ast.comprehension):
        yield node.target, node.iter
        return
    else:
        return
    value = node.value
    for target in targets if value is not None else ():
        parts, values = getattr(target, "elts", []), getattr(value, "elts", [])
        if parts and len(parts) == len(values):
            yield from zip(parts, values, strict=True)
        else:
            yield target, value  # type: ignore[misc]


# Loops that wait for a value that never changes: in a prediction only Python's own state can end a loop.

_SAMPLED_EVERY = 499
"""Decisions of a line between two looks at the state; a prime, so that counters that start again are seen to move."""
_SAMPLES = 4
"""Equal states in turn, after which nothing but the value can end the loop."""
_MOST_NUMBERS = 64
_PLAIN = (str, int, float, complex, bool, bytes, type(None))
Loop = ast.While | ast.For


class WaitingLoops:
    """Finds decisions that repeat in a `while` loop while no state changes that Python code can see."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[Hashable, int]] = {}

    def waits(self, place: str, times: int) -> bool:
        """Return whether the decision at a place, asked so many times, is the only one that could end its loop."""
        if times % _SAMPLED_EVERY:
            return False
        state = _state_of_loops()
        before, equal = self._states.get(place, (None, 0))
        equal = equal + 1 if state is not None and state == before else 1
        self._states[place] = state, equal
        return equal >= _SAMPLES


def _state_of_loops() -> Hashable | None:
    """Return the state that can end the innermost loop, and that of the frames around it; None if that is unknown."""
    states: list[Hashable] = []
    for frame in frames():
        if is_driver(frame.f_code.co_filename):
            break
        loop, values = _loop_around(frame), {**frame.f_globals, **frame.f_locals}
        names = frame.f_locals if states else () if loop is None else _names_that_end(loop)
        if names is None or frame.f_code.co_name in ("<listcomp>", "<genexpr>", "<lambda>"):
            return None
        if isinstance(loop, ast.For):
            counters = (part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name))
            if not states or not any(type(values.get(name)) in (int, str) for name in counters):
                return None
        if loop is not None or states:
            states.append(tuple(_plain(values.get(name), 2) for name in sorted(names)))
    return tuple(states) or None


def _names_that_end(loop: Loop) -> set[str] | None:
    """Return the variables in the conditions of a loop; None if one calls a function, whose state is not seen."""
    nodes = list(ast.walk(loop))
    conditions = [node.test for node in nodes if isinstance(node, ast.While | ast.If | ast.IfExp | ast.Assert)]
    calls = [node for part in conditions for node in ast.walk(part) if isinstance(node, ast.Call)]
    if any(isinstance(call.func, ast.Name) and not hasattr(builtins, call.func.id) for call in calls):
        return None
    # A loop may also end with its iterator.
    iterators = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "next"]
    parts = [node for part in (*conditions, *iterators) for node in ast.walk(part)]
    return {node.id for node in parts if isinstance(node, ast.Name)}


def _loop_around(frame: FrameType) -> Loop | None:
    """Return the innermost loop of the frame's own code at its line."""
    first, line = frame.f_code.co_firstlineno, frame.f_lineno
    loops = (node for node in _nodes_of(frame.f_code.co_filename) if isinstance(node, Loop))
    around = [loop for loop in loops if first <= loop.lineno <= line <= (loop.end_lineno or 0)]
    return max(around, key=lambda loop: loop.lineno, default=None)


def _plain(value: Any, depth: int) -> Hashable:
    """Return what can be compared of a value: itself, its length, and the same of its attributes."""
    if type(value) in _PLAIN:
        return value  # type: ignore[no-any-return]
    if isinstance(value, type | ModuleType) or callable(value) and not hasattr(value, "__dict__") or not depth:
        return None
    if isinstance(value, GeneratorType):
        return value.gi_frame and (
            value.gi_frame.f_lasti,
            *(_plain(one, 0) for one in value.gi_frame.f_locals.values()),
        )
    numbers = getattr(value, "tobytes", None)
    if numbers is not None and getattr(value, "size", _MOST_NUMBERS + 1) <= _MOST_NUMBERS:
        return numbers()  # type: ignore[no-any-return]
    if hasattr(value, "is_meta"):
        return value._version if value.device.type == "cpu" else None
    try:
        length = length_hint(value, -1)
    except Exception:  # of a program's own __len__
        length = -1
    return length, *(_plain(one, depth - 1) for one in getattr(value, "__dict__", {}).values())
