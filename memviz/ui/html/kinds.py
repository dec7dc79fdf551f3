"""What a category looks like in HTML. The colours are the figures' own, in both modes at once."""

from __future__ import annotations

from memviz.analysis.purpose.categories import BEFORE_RECORDING
from memviz.figures.theme import DARK, LIGHT, Palette
from memviz.trace.model import Category
from memviz.ui.html.markup import Html, tag

_CATEGORIES = {category.label: category for category in Category}


def colour_style(kind: str) -> str:
    """For `style`: the custom properties that the class `mv-kind` reads."""
    return style_of(shades_of(kind))


def shades_of(kind: str) -> tuple[str, str]:
    """On light and on dark pages."""
    return _colour(LIGHT, kind), _colour(DARK, kind)


def style_of(shades: tuple[str, str]) -> str:
    light, dark = shades
    return f"--mv-light:{light};--mv-dark:{dark}"


def swatch(kind: str) -> Html:
    return tag("i", class_="mv-kind mv-square", style=colour_style(kind), aria_hidden="true")


def _colour(look: Palette, kind: str) -> str:
    return look.before if kind == BEFORE_RECORDING else look.category(_CATEGORIES[kind])
