"""Texts from a trace that the browser sets as text, not as markup."""

from __future__ import annotations

from memviz.ui.html.words import cut


def plain(text: str) -> str:
    """Cut, and with controls and marks that turn the writing direction made visible, as `markup.esc` does."""
    short = cut(text)
    if short.isprintable():
        return short
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in short)
