"""Texts and pieces of HTML that several views share. `plain` is for text that the browser sets as text."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix

from memviz.text import Attributes as Attributes
from memviz.text import Html as Html
from memviz.text import esc as esc
from memviz.text import joined as joined
from memviz.text import rewriting as rewriting
from memviz.text import tag as tag
from memviz.units import bytes_text, count_text, counted

LONGEST_TEXT = 160
"""Characters of one text from a trace: a megabyte of function name must not become a megabyte of page."""


def cut(text: str, longest: int = LONGEST_TEXT) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def cut_middle(text: str, longest: int) -> str:
    """Names of files and modules mostly differ at their ends, so what is too long loses its middle."""
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[head + 1 - longest :]}"


def distinct_labels(names: Sequence[str], longest: int) -> list[str]:
    """Each name without its middle where it is too long; names that differ stay different."""
    shown = [cut_middle(name, longest) for name in names]
    whose: dict[str, set[str]] = {}
    for name, text in zip(names, shown, strict=True):
        whose.setdefault(text, set()).add(name)
    around = {
        name: _around(name, len(commonprefix(list(alike))), longest)
        for alike in whose.values()
        for name in (alike if len(alike) > 1 else ())
    }
    different = {around.get(name, text): name for name, text in zip(names, shown, strict=True)}
    if len(different) == len(set(names)):
        return [around.get(name, text) for name, text in zip(names, shown, strict=True)]
    numbers = {name: f" {number}" for number, name in enumerate(dict.fromkeys(names), 1)}
    return [cut_middle(name, longest - len(numbers[name])) + numbers[name] for name in names]


def _around(name: str, place: int, longest: int) -> str:
    """The part of a name with what stands at `place`."""
    inner = longest - 2
    first = min(max(place - inner // 2, 0), max(len(name) - inner, 0))
    end = first + inner
    return f"{'…' if first else ''}{name[first:end]}{'…' if end < len(name) else ''}"


def when(event: int, *, is_still: bool = False) -> str:
    """`is_still`: of a recording without events, whose one moment is its end."""
    if is_still:
        return "at the end"
    return f"event {count_text(event)}" if event >= 0 else "before the first event"


def allocations(count: int) -> str:
    return counted(count, "allocation")


def exact(count: int) -> str:
    return f"{count_text(count)} B"


def dark_html() -> Html:
    """The button to the mode that the page is not in."""
    words = tag("span", "Dark", class_="mv-when-light"), tag("span", "Light", class_="mv-when-dark")
    return tag("button", *words, type="button", data_mv_dark=True)


def rounded(count: int) -> Html:
    """Three digits to read, every byte on demand."""
    return tag("span", bytes_text(count), title=exact(count))


def plain(text: str) -> str:
    """Cut, and with controls and marks that turn the writing direction made visible, as `markup.esc` does."""
    short = cut(text)
    if short.isprintable():
        return short
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in short)
