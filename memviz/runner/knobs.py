"""Knobs: the fields of a frozen dataclass that are set by name, in a command or in a form.

Workloads and optimizations are such dataclasses. The field's metadata describes a knob (`help`, `choices`, `unit`) for
the command line, the page and errors alike; the values that it accepts follow from its annotation: int, float, bool,
str, one of them or None, or a Literal. A field marked `python_only` takes no text.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from memviz.errors import UsageError
from memviz.text import nearest

T = TypeVar("T")

_YES = {"true", "yes", "on", "1"}
_NO = {"false", "no", "off", "0"}
_MOST = 1 << 40
"""Limit of whole numbers: larger ones overflow within torch, whose error names no knob."""
_BETWEEN_SIDES = re.compile(r"\s*[x×]\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Knob:
    """One knob as `--list` and the page's form show it."""

    name: str
    type: Literal["int", "float", "bool", "text"]
    optional: bool
    """True if `none` is a valid value."""
    default: Any
    """A plain value; on an instance, the value that it has."""
    help: str
    choices: tuple[Any, ...]
    """Empty where any value of the type may be tried."""
    unit: str
    says: str = ""
    """Label of a run with this value, as in `every {nth} block`; empty for name and value."""
    always: bool = False
    """Show the label for the default value too: the title alone is ambiguous."""


def knob(
    default: Any,
    help: str,
    *,
    choices: tuple[Any, ...] = (),
    unit: str = "",
    least: float | None = None,
    last: bool = False,
) -> Any:
    """Return a dataclass field with its help. `least` is the smallest value that makes sense.

    `last` is for fields of a base class: they are listed after the knobs of the subclass.
    """
    metadata = {"help": help, "choices": choices, "unit": unit, "least": least, "last": last}
    return field(default=default, metadata=metadata)


def least_of(of: Any, name: str, otherwise: int) -> int:
    """The smallest value of a knob that makes sense."""
    (least,) = (knob.metadata.get("least") for knob in fields(of) if knob.name == name)
    return otherwise if least is None else int(least)


def described(of: Any) -> tuple[Knob, ...]:
    """The knobs of a class, or of an instance with its values as the defaults."""
    kind = of if isinstance(of, type) else type(of)
    knobs = []
    for knob_field in _turnable(kind):
        name, accepted, about = knob_field.name, _Accepted.of(kind, knob_field), knob_field.metadata
        value = _default(knob_field) if isinstance(of, type) else getattr(of, name)
        texts = (about.get("unit", ""), about.get("says", ""), about.get("always", False))
        help = about.get("help", "")
        knobs.append(Knob(name, accepted.word, accepted.optional, value, help, accepted.choices, *texts))
    return tuple(knobs)


def with_knobs(kind: type[T], pairs: Mapping[str, str]) -> T:
    """Return an instance with these knobs; `resolution=512x768` sets two at once where the class joins them."""
    name = str(getattr(kind, "name", kind.__name__))
    turnable = {knob_field.name: knob_field for knob_field in _turnable(kind)}
    values = {}
    for key, text in _single_knobs(kind, name, pairs).items():
        if key not in turnable:
            raise UsageError(f"{name} has no knob {key}.{nearest(key, [*turnable, *_joined(kind)])}")
        try:
            values[key] = _Accepted.of(kind, turnable[key]).read(text)
        except ValueError as error:
            raise UsageError(f"{name}: {key} {error}") from None
    try:
        return kind(**values)
    except (ValueError, UsageError) as error:
        raise UsageError(f"{name}: {error}") from None


def as_text(of: Any, *, everything: bool = False) -> dict[str, str]:
    """Return the texts that `with_knobs` reads back: of knobs that differ from their default, or of all."""
    values = {knob_field: getattr(of, knob_field.name) for knob_field in _turnable(type(of))}
    return {
        knob_field.name: knob_text(value)
        for knob_field, value in values.items()
        if everything or value != _default(knob_field)
    }


def label_of_value(name: str, text: str, says: str = "") -> str:
    """`every 2nd block`, where `says` is "every {nth} block"; else its name and value."""
    if says:
        return " ".join(says.format(text, nth=_nth(text)).split())
    return f"{name.replace('_', ' ')} {text}"


def _nth(text: str) -> str:
    """2nd of 2, and nothing of 1: "every block" says it."""
    if not text.isdecimal() or text == "1":
        return "" if text == "1" else text
    ending = "th" if text[-2:-1] == "1" else {"1": "st", "2": "nd", "3": "rd"}.get(text[-1], "th")
    return f"{text}{ending}"


def parse_name_and_knobs(text: str) -> tuple[str, dict[str, str]]:
    """Parse `checkpointing:every=2,offload=true`. A piece without `=` continues the value before it."""
    name, _, rest = text.partition(":")
    if not name.strip():
        raise UsageError(f"Write NAME or NAME:KNOB=VALUE,KNOB=VALUE; {text!r} names nothing.")
    if "=" in name:
        title, _, value = name.partition("=")
        raise UsageError(f"Write {title.strip()}:KNOB={value.strip()} to set a knob of it.")
    pairs: dict[str, str] = {}
    last = ""
    for piece in rest.split(",") if rest.strip() else ():
        key, equals, value = piece.partition("=")
        if equals and key.strip() in pairs:
            raise UsageError(f"{name.strip()}: {key.strip()} is given twice.")
        if equals:
            last = key.strip()
            pairs[last] = value.strip()
        elif last:
            pairs[last] += f",{piece.strip()}"
        else:
            raise UsageError(f"{name.strip()}: {piece.strip()!r} has no value; write KNOB=VALUE.")
    return name.strip(), pairs


def check_knobs(of: Any) -> None:
    """Refuse a value that is not among the choices, or below the least; for `__post_init__`."""
    kind = type(of)
    for knob_field in _turnable(kind):
        value, least = getattr(of, knob_field.name), knob_field.metadata.get("least")
        choices = _Accepted.of(kind, knob_field).choices
        if choices and value not in choices and value is not None:
            raise UsageError(f"{knob_field.name} cannot be {value}.{nearest(value, choices)}")
        if least is not None and value is not None and value < least:
            raise UsageError(f"{knob_field.name} is {value}; the least is {least}.")


@lru_cache(maxsize=128)
def _annotations(owner: type) -> dict[str, Any]:
    """Cached, since `get_type_hints` evaluates every annotation anew and a search plans thousands of runs."""
    return get_type_hints(owner)


@dataclass(frozen=True)
class _Accepted:
    """Type and choices that a field's annotation accepts."""

    kind: type
    optional: bool
    choices: tuple[Any, ...]

    @classmethod
    def of(cls, owner: type, knob_field: Field[Any]) -> _Accepted:
        annotated = _annotations(owner)[knob_field.name]
        members = get_args(annotated) if get_origin(annotated) in (Union, types.UnionType) else (annotated,)
        solid = [member for member in members if member is not type(None)]
        choices = tuple(knob_field.metadata.get("choices", ()))
        if get_origin(solid[0]) is Literal:
            listed = get_args(solid[0])
            return cls(type(listed[0]), len(solid) < len(members), choices or listed)
        return cls(solid[0], len(solid) < len(members), choices)

    @property
    def word(self) -> Literal["int", "float", "bool", "text"]:
        names: dict[type, Literal["int", "float", "bool"]] = {int: "int", float: "float", bool: "bool"}
        return names.get(self.kind, "text")

    def read(self, text: str) -> Any:
        """Read a value; the caller puts the knob's name in front of a ValueError."""
        text = text.strip()
        if self.optional and text.lower() in ("none", ""):
            return None
        value = read_value(self.kind, text)
        if self.kind is int and abs(value) > _MOST:
            raise ValueError(f"is {text}; the most is {_MOST:,}.")
        if self.choices and value not in self.choices:
            raise ValueError(f"cannot be {text}.{nearest(text, self.choices)}")
        return value


def read_value(kind: type, text: str) -> Any:
    """Read an int, float, bool or str; the text of a ValueError follows the knob's name."""
    if kind is bool:
        if text.lower() not in _YES | _NO:
            raise ValueError(f"is true or false (yes, no, on, off); not {text!r}.")
        return text.lower() in _YES
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise ValueError(f"is {expected}, as in {'16 or 1_000' if kind is int else '0.1'}; not {text!r}.") from None
    return text


def _single_knobs(kind: type, name: str, pairs: Mapping[str, str]) -> dict[str, str]:
    """Replace joined knobs, such as `resolution`, by their single knobs."""
    knobs: dict[str, str] = {}
    choices = {one.name: one.metadata.get("choices", ()) for one in _turnable(kind)}
    for key, text in pairs.items():
        # `by` is the older name where it chooses between this project's torch code and a library's.
        if key == "implementation" and "torch" in choices.get("by", ()):
            key, text = "by", dict(zip(("memviz", "library"), choices["by"], strict=False)).get(text.strip(), text)
        singles = _joined(kind).get(key, (key,))
        values = _BETWEEN_SIDES.split(text.strip()) if key in _joined(kind) else [text]
        if len(values) != len(singles):
            defaults = {knob_field.name: knob_text(_default(knob_field)) for knob_field in _turnable(kind)}
            example = "x".join(defaults[single] for single in singles)
            raise UsageError(f"{name}: {key} is {' x '.join(singles)}, as in {example}; not {text!r}.")
        for single, value in zip(singles, values, strict=True):
            if single in knobs:
                raise UsageError(f"{name}: {single} is given twice.")
            knobs[single] = value
    return knobs


def _joined(kind: type) -> Mapping[str, tuple[str, ...]]:
    """Return the joined knobs of a class, as `resolution` for height and width."""
    joined: Mapping[str, tuple[str, ...]] = getattr(kind, "together", {})
    return joined


def _turnable(kind: type) -> list[Field[Any]]:
    turnable = [one for one in fields(kind) if one.init and not one.metadata.get("python_only")]
    return sorted(turnable, key=lambda one: bool(one.metadata.get("last")))


def _default(knob_field: Field[Any]) -> Any:
    factory = knob_field.default_factory
    return factory() if factory is not MISSING else knob_field.default


def knob_text(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
