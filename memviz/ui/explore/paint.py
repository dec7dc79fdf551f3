"""What the colours of Explore mean now: the timeline's, the icicle's and the tables' alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from memviz.analysis.cache import cached_on
from memviz.analysis.purpose.categories import KINDS
from memviz.figures.colouring import MEANINGS, Colouring, colouring, group_colour
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.html.kinds import shades_of, style_of
from memviz.ui.html.markup import Html, tag


@dataclass(frozen=True)
class Paint:
    meaning: str
    shades: Mapping[str, tuple[str, str]]
    """Of each label, on light and on dark pages."""

    def style(self, label: str) -> str:
        return style_of(self.shades[label])

    def swatch(self, label: str) -> Html:
        words = None if self.meaning == "category" else f"mostly {label}"
        return tag("i", class_="mv-kind mv-square", style=self.style(label), title=words, aria_hidden="true")


CATEGORIES = Paint("category", {kind: shades_of(kind) for kind in KINDS})


def colours_of(trace: Trace, device: DeviceTrace, meaning: str) -> Colouring:
    """The timeline's own, made once. What a browser wants may be anything."""
    known = meaning if meaning in MEANINGS else "category"
    return cached_on(trace, (colouring, device.name, known), lambda: colouring(trace, device, known))


def paint_of(colours: Colouring) -> Paint:
    shades = {
        label: (group_colour(colours, group, dark=False), group_colour(colours, group, dark=True))
        for group, label in enumerate(colours.labels)
    }
    return Paint(colours.meaning, shades)
