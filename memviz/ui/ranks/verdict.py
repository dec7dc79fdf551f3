"""The sentence on many ranks, and which files are none of them."""

from __future__ import annotations

from memviz.headlines.ranks import missing, ranks
from memviz.ranks.together import Ranks
from memviz.ui.html.headline import headline_html
from memviz.ui.html.markup import Html, tag
from memviz.ui.html.words import cut_middle
from memviz.units import count_text

_MOST = 20
_LONGEST = 60


def ranks_verdict_html(job: Ranks) -> Html:
    return tag("header", headline_html(ranks(job)), class_="mv-answer")


def missing_html(job: Ranks, *, is_open: bool) -> Html:
    """A file that was refused is no open one, and is there all the same."""
    words = missing(job, "Not open here:" if is_open else "No file of")
    return tag("p", words, class_="mv-soft mv-missing") if words else Html("")


def failed_html(job: Ranks) -> Html:
    if not job.failed:
        return Html("")
    rows = [
        tag("li", tag("b", cut_middle(one.place, _LONGEST), title=one.place), " ", one.reason)
        for one in job.failed[:_MOST]
    ]
    head = tag("summary", f"Left out: {count_text(len(job.failed))}")
    more = tag("li", f"and {count_text(len(job.failed) - _MOST)} more") if len(job.failed) > _MOST else ""
    return tag("details", head, tag("ul", *rows, more), class_="mv-leftout")
