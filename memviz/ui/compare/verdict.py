"""What a comparison comes to, and the allocator settings that may be why."""

from __future__ import annotations

from collections.abc import Sequence

from memviz.analysis.comparing.changes import Setting
from memviz.headlines.headline import Headline
from memviz.ui.compare.state import LETTERS
from memviz.ui.html.headline import headline_html
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut

_MOST_SETTINGS = 4


def compare_verdict_html(said: Headline, settings: Sequence[Setting]) -> Html:
    return tag("header", headline_html(said), _settings(settings), class_="mv-answer")


def _settings(settings: Sequence[Setting]) -> Html | str:
    """Allocator settings change what is reserved, so a difference between them belongs beside the figures."""
    differ = [setting for setting in settings if setting.is_known_to_differ]
    if not differ:
        return ""
    words = "; ".join(map(_setting, differ[:_MOST_SETTINGS]))
    more = len(differ) - _MOST_SETTINGS
    rest = f"; and {more} more" if more > 0 else ""
    return tag("p", tag("b", "Their allocator settings differ."), f" {words}{rest}.", class_="mv-note")


def _setting(setting: Setting) -> str:
    """expandable_segments: False (A, B), True (C)."""
    holders: dict[str, list[str]] = {}
    for letter, value in zip(LETTERS, setting.values, strict=False):
        if value is not None:
            holders.setdefault(cut(value, 80) or "not set", []).append(letter)
    values = [f"{value} ({', '.join(who)})" for value, who in holders.items()]
    return f"{cut(setting.name)}: {', '.join(values)}"
