"""Text of unknown origin made harmless: escaped for a terminal, and for HTML by hand.

Text from a trace goes into HTML through `esc` or `tag`, which escape it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape

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
    plain = str(text)
    if not plain.isprintable():
        plain = "".join(
            character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}"
            for character in plain
        )
    return Html(escape(plain, quote=True))


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
    spelled = "".join(
        f" {_attribute_name(key)}" if value is True else f' {_attribute_name(key)}="{esc(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{spelled}>{content}</{name}>")


def _attribute_name(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def joined(*children: object) -> Html:
    return Html("".join(esc(child) for child in children))
