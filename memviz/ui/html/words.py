"""Words that several views share."""

from __future__ import annotations

from memviz.ui.html.markup import Html, tag
from memviz.units import bytes_text, count_text, counted

LONGEST = 160
"""Characters of one text from a trace: a megabyte of function name must not become a megabyte of page."""


def cut(text: str, longest: int = LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def cut_middle(text: str, longest: int) -> str:
    """Names of files and modules mostly differ at their ends, so what is too long loses its middle."""
    if len(text) <= longest:
        return text
    head = (longest - 1) // 2
    return f"{text[:head]}…{text[head + 1 - longest :]}"


def when(event: int, *, is_still: bool = False) -> str:
    """`is_still`: of a recording without events, whose one moment is its end."""
    if is_still:
        return "at the end"
    return f"event {count_text(event)}" if event >= 0 else "before the first event"


def allocations(count: int) -> str:
    return counted(count, "allocation")


def exact(count: int) -> str:
    return f"{count_text(count)} B"


def rounded(count: int) -> Html:
    """Three digits to read, every byte on demand."""
    return tag("span", bytes_text(count), title=exact(count))
