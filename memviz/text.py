"""Text of unknown origin made harmless: escaped for a terminal, and for HTML by hand.

Text from a trace goes into HTML through `esc` or `tag`, which escape it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape
from os.path import commonprefix

from memviz.units import bytes_text, count_text, counted

_UNUSUAL = re.compile(r"[^\n\t -~]")


def escape_control_chars(text: str, keep: str = "\n\t") -> str:
    """Escape what is not printed: control characters, marks of direction, lone surrogates."""
    if not _UNUSUAL.search(text) and all(letter in keep or letter not in text for letter in "\n\t"):
        return text
    return "".join(letter if letter.isprintable() or letter in keep else _escape(letter) for letter in text)


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class Html(str):
    """Markup that is ours, or escaped already."""

    __slots__ = ()


def esc(text: object) -> Html:
    """Escape for HTML. Marks that turn the writing direction and other control characters are made visible."""
    if isinstance(text, Html):
        return text
    shown = _visible(str(text), keep="\n")
    return Html(shown if shown.isalnum() else escape(shown, quote=True))


def _visible(text: str, keep: str = "") -> str:
    if text.isprintable() or (keep and text.replace(keep, "").isprintable()):
        return text
    return "".join(letter if letter.isprintable() or letter in keep else "\N{REPLACEMENT CHARACTER}" for letter in text)


Attributes = dict[str, object]
Rewrite = Callable[[str, Attributes, Html], tuple[str, Attributes] | None]
"""From an element's name, attributes and content to its new name and attributes; None drops the element."""
_rewrite: ContextVar[Rewrite | None] = ContextVar("rewrite", default=None)


@contextmanager
def rewriting(rewrite: Rewrite) -> Iterator[None]:
    """Pass every element that `tag` makes through `rewrite`; saved pages reuse the page's views that way."""
    token = _rewrite.set(rewrite)
    try:
        yield
    finally:
        _rewrite.reset(token)


def tag(name: str, *children: object, **attributes: object) -> Html:
    """`tag("td", label, class_="mv-number")`. Names: a trailing _ is dropped, other _ become hyphens."""
    content = joined(*children)
    rewrite = _rewrite.get()
    if rewrite is not None:
        rewritten = rewrite(name, attributes, content)
        if rewritten is None:
            return Html("")
        name, attributes = rewritten
    spelled = ""
    for key, value in attributes.items():
        if value is not None and value is not False:
            spelled += f" {key.rstrip('_').replace('_', '-')}"
            spelled += "" if value is True else f'="{esc(value)}"'
    return Html(f"<{name}{spelled}>{content}</{name}>")


def joined(*children: object) -> Html:
    return Html("".join(esc(child) for child in children))


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
    """Cut, and with controls and marks that turn the writing direction made visible, as `esc` does."""
    return _visible(cut(text))


def nearest(name: object, there_are: Iterable[object]) -> str:
    """Return the end of a message: the likely spelling and the valid names. Begins with a space, or is empty."""
    names = [str(name) for name in there_are]
    if not names:
        return " It has none." if name else ""
    import difflib  # Not above: every command loads this module, and few meet a misspelled name.

    close = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.6)
    guess = f" Did you mean {close[0]}?" if close else ""
    return f"{guess} There {'is' if len(names) == 1 else 'are'} {', '.join(names)}."
