"""Links that restore a question of the What if tab. Of which trace it is asked, the page itself adds (address.js)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from urllib.parse import urlencode

from memviz.ui.what_if.question import Question, question_of

TAB = "what-if"
_ON = "1"


def what_if_query(question: Question) -> str:
    """Only what differs from PyTorch's defaults."""
    usual = asdict(Question())
    differs = {name: value for name, value in asdict(question).items() if value != usual[name]}
    return urlencode({"tab": TAB, **{name: _ON if value is True else value for name, value in differs.items()}})


def question_in(query: Mapping[str, str]) -> Question:
    """What is not in a link is as usual; the form says of each field what it thinks of it."""
    usual = asdict(Question())
    form = {name: query.get(name, usual[name]) for name in usual}
    return question_of({**form, "expandable": query.get("expandable") == _ON})
