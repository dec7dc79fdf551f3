"""A headline as the page shows it: the answer, and the reason beside it in softer ink."""

from __future__ import annotations

from memviz.headlines.headline import Headline
from memviz.ui.html.markup import Html, tag


def headline_html(said: Headline) -> Html:
    return tag("h1", said.answer, " ", tag("span", said.reason), class_="mv-verdict")
