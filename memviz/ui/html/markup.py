"""HTML by hand, safely: whatever comes from a trace goes through `esc` or `tag`, which escape it."""

from __future__ import annotations

from html import escape


class Html(str):
    """Markup that is ours, or escaped already."""

    __slots__ = ()


def esc(text: object) -> Html:
    """Text as it stands. Marks that turn the writing direction and other controls are made visible."""
    if isinstance(text, Html):
        return text
    plain = str(text)
    if not plain.isprintable():
        plain = "".join(
            character if character.isprintable() or character == "\n" else "\N{REPLACEMENT CHARACTER}"
            for character in plain
        )
    return Html(escape(plain, quote=True))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """`tag("td", label, class_="mv-number")`. Names: a trailing _ is dropped, other _ become hyphens."""
    spelled = "".join(
        f' {_spelled(key)}="{esc(value)}"' if value is not True else f" {_spelled(key)}"
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{spelled}>{joined(*children)}</{name}>")


def _spelled(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def joined(*children: object) -> Html:
    return Html("".join(esc(child) for child in children))
