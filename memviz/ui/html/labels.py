"""Category colours, stack frames (`linear.py:36 forward`) and headlines in HTML."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.analysis.cache import cached_on
from memviz.analysis.callstacks.sites import LAST_PYTHON_KIND, FrameKind, frame_kinds, with_line
from memviz.analysis.callstacks.stack_tree import frame_name
from memviz.analysis.purpose.categories import BEFORE_RECORDING
from memviz.figures.theme import DARK, LIGHT
from memviz.results.headline import Headline
from memviz.text import Html, joined, tag
from memviz.trace.model import Category, Trace

_CATEGORIES = {category.label: category for category in Category}


def colour_style(kind: str) -> str:
    """For `style`: the custom properties that the class `mv-kind` reads."""
    return style_of(shades_of(kind))


def shades_of(kind: str) -> tuple[str, str]:
    """On light and on dark pages."""
    if kind == BEFORE_RECORDING:
        return LIGHT.before, DARK.before
    category = _CATEGORIES[kind]
    return LIGHT.category(category), DARK.category(category)


def style_of(shades: tuple[str, str]) -> str:
    light, dark = shades
    return f"--mv-light:{light};--mv-dark:{dark}"


def swatch(kind: str) -> Html:
    return tag("i", class_="mv-kind mv-square", style=colour_style(kind), aria_hidden="true")


def mark(look: str, text: str, style: str | None = None, title: str | None = None) -> Html:
    return tag("span", tag("i", class_=look, style=style, aria_hidden="true"), text, class_="mv-key", title=title)


RESERVED_KEYS = (mark("mv-hatched mv-square", "cached"), mark("mv-rule", "reserved"))


_PARTS = 2
"""Parts kept of a path, from its end: one is too often `__init__.py`."""


@dataclass(frozen=True)
class FrameWords:
    function: str
    place: str
    """`modules/linear.py:36`; empty below Python."""
    path: str
    """The whole place, as recorded."""
    is_own: bool
    """A person's own, not a library's."""


def frame_text(trace: Trace, frame: int) -> FrameWords:
    """`frame` may be one of the negative ones of `analysis.stacks`."""
    return cached_on(trace, (frame_text, frame), lambda: _frame_text(trace, frame))


def _frame_text(trace: Trace, frame: int) -> FrameWords:
    function = frame_name(trace, frame)
    if frame < 0:
        return FrameWords(function, "", "", is_own=False)
    kind = frame_kinds(trace)[frame]
    if kind > LAST_PYTHON_KIND:
        return FrameWords(function, "", trace.strings[trace.stacks.frames.name[frame]], is_own=False)
    line = int(trace.stacks.frames.line[frame])
    path = trace.strings[trace.stacks.frames.filename[frame]]
    tail = "/".join([part for part in path.replace("\\", "/").split("/") if part][-_PARTS:])
    return FrameWords(function, with_line(tail, line), with_line(path, line), is_own=bool(kind == FrameKind.USER))


def headline_html(headline: Headline) -> Html:
    reason = joined(" ", tag("span", headline.reason)) if headline.reason else ""
    return tag("h1", headline.answer, reason, class_="mv-verdict")
