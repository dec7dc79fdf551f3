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
    visible = "".join(each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in str(text))
    return Html(escape(visible, quote=True))


def tag(name: str, *children: object, **attributes: object) -> Html:
    """`tag("td", label, class_="mv-number")`. Names: a trailing _ is dropped, other _ become hyphens."""
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{esc(value)}"' if value is not True else f" {key.rstrip('_')}"
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{spelled}>{joined(*children)}</{name}>")


def joined(*children: object) -> Html:
    return Html("".join(esc(each) for each in children))
