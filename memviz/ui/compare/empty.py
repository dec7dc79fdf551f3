"""The Compare tab before there are two traces to compare."""

from __future__ import annotations

from collections.abc import Sequence

from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut
from memviz.ui.shell.session import Opened

SAMPLE = "checkpointing"
_MOST = 24


def compare_empty_html(opened: Sequence[Opened], compared: Sequence[str]) -> Html:
    """What is missing, and what is open already."""
    have = [trace for trace in opened if trace.key in compared]
    others = [trace for trace in opened if trace.key not in compared][:_MOST]
    title = f"Add a trace to compare {cut(have[0].name, 60)} with." if have else "Choose two traces to compare."
    words = (
        "Drop another snapshot on the left: of the same program with another setting, or of another day. "
        "Two to eight stand side by side on one scale, with what makes the difference to the byte."
    )
    return tag(
        "div",
        tag("h1", title, class_="mv-verdict"),
        tag("p", words, class_="mv-lead"),
        tag("p", tag("span", "Open already"), *map(_add, others), class_="mv-also") if others else "",
        class_="mv-compare-empty",
    )


def offer_html() -> Html:
    """One button that shows how it looks."""
    button = tag(
        "button", "Open a pair of samples", type="button", class_="mv-primary", data_act="sample", data_sample=SAMPLE
    )
    words = "What does checkpointing save? The same steps without it and with it."
    return tag("p", button, tag("span", words, class_="mv-soft"), class_="mv-offer")


def _add(opened: Opened) -> Html:
    return tag(
        "button",
        tag("i", aria_hidden="true"),
        cut(opened.name, 48),
        type="button",
        role="checkbox",
        aria_checked="false",
        data_act="toggle",
        data_key=opened.key,
    )
