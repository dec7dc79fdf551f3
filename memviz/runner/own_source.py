"""A user's file before it is executed: which functions it has, and what they take."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from memviz.errors import UsageError
from memviz.runner.request import Knob, KnobType, read_value
from memviz.text import nearest

_EXPECTED = "a function that returns (model, inputs) or (model, inputs, loss)"
_READ = (bool, int, float, str)
_KINDS: Mapping[str, KnobType] = {"int": "int", "float": "float", "bool": "bool"}


@dataclass(frozen=True)
class Function:
    """A function at the top level of the file, as its source shows it."""

    file: str
    name: str
    parameters: tuple[str, ...]
    any_name: bool
    """True if it takes `**kwargs`."""
    knobs: tuple[Knob, ...] = ()
    """Its parameters, with their defaults as far as those are plain values."""
    sentence: str = ""
    """First line of its docstring."""

    def takes(self, key: str, reserved: Iterable[str]) -> bool:
        return key in self.parameters or (self.any_name and key not in reserved)

    def check(self, settings: Mapping[str, str], reserved: Iterable[str]) -> None:
        reserved = tuple(reserved)
        for key in settings:
            if key not in reserved and not self.takes(key, reserved):
                there_are = dict.fromkeys((*self.parameters, *reserved))
                raise UsageError(f"{self.name} in {self.file} has no parameter {key}.{nearest(key, there_are)}")


def function_in(file: str, wanted: str = "") -> Function:
    """Return the function of that name, or the only public one."""
    if wanted:
        functions = {function.name: function for function in _functions(file)}
        if wanted not in functions:
            public = [name for name in functions if not name.startswith("_")]
            raise UsageError(f"{file} has no function {wanted} at its top level.{nearest(wanted, public)}")
        return functions[wanted]
    first, *others = functions_of(file)
    if others:
        names = ", ".join(f"{file}:{function.name}" for function in (first, *others))
        raise UsageError(f"{file} has several functions. Name one of them: {names}.")
    return first


def functions_of(file: str) -> list[Function]:
    """Return the functions whose names do not begin with an underscore."""
    functions = [function for function in _functions(file) if not function.name.startswith("_")]
    if not functions:
        raise UsageError(f"{file} has no top-level function. Write {_EXPECTED}. For a script: memviz predict.")
    return functions


def read_argument(function: str, name: str, text: str, hint: Any, default: Any) -> Any:
    """Parse a text by the parameter's annotation, else by its default's type, else as a Python literal."""
    kinds = [kind for kind in (*get_args(hint), hint) if kind in _READ]
    optional = default is None or type(None) in get_args(hint)
    if optional and text.lower() == "none":
        return None
    if not kinds and type(default) in _READ:
        kinds = [type(default)]
    if not kinds:
        with suppress(ValueError, SyntaxError):
            return ast.literal_eval(text)
        return text
    try:
        return read_value(kinds[0], text)
    except ValueError as error:
        raise UsageError(f"{function}: {name} {error}") from None


def _functions(file: str) -> list[Function]:
    try:
        tree = ast.parse(Path(file).read_bytes(), filename=file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}.") from None
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UsageError(f"{file}{line} is not Python: {getattr(error, 'msg', error)}.") from None
    return [_function(file, node) for node in tree.body if isinstance(node, ast.FunctionDef)]


def _function(file: str, node: ast.FunctionDef) -> Function:
    arguments, missing = (*node.args.args, *node.args.kwonlyargs), len(node.args.args) - len(node.args.defaults)
    defaults = (*[None] * missing, *node.args.defaults, *node.args.kw_defaults)
    parameters, knobs = tuple(argument.arg for argument in arguments), tuple(map(_knob, arguments, defaults))
    sentence = (ast.get_docstring(node) or "").strip().partition("\n")[0]
    return Function(file, node.name, parameters, node.args.kwarg is not None, knobs, sentence)


def _knob(argument: ast.arg, default: ast.expr | None) -> Knob:
    """Make a knob of the annotated or the default's type; any other value is text, read as Python reads it."""
    try:
        value = None if default is None else ast.literal_eval(default)
    except ValueError:
        value = None
    type_name = argument.annotation.id if isinstance(argument.annotation, ast.Name) else type(value).__name__
    if type(value) not in _READ:
        value = "" if value is None else str(value)
    sentence = "a parameter of your function" + ("" if default is not None else ", which has no default")
    return Knob(argument.arg, _KINDS.get(type_name, "text"), False, value, sentence, (), "")
