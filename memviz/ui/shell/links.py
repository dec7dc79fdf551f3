"""Links that restore a view. They name a trace without opening it to anybody else.

A sample is named by itself, and an estimate of one by the sample and the action, which make it again. Any other trace
is named by a short digest of its key: the visitor who opened it has the key and finds it again; nobody can come from
the digest to the key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from memviz.figures.colouring import MEANINGS
from memviz.ui.shell.session import Opened, Session

_NUMBERS = ("at", "from", "to", "low", "high", "pin")
_CHOICES = {"order": ("category", "age"), "colour": MEANINGS, "axis": ("event", "time")}
SAMPLE = "sample:"
_WITH_ACTION = "+"


def link_name(opened: Opened) -> str:
    if opened.sample:
        return SAMPLE + opened.sample
    return hashlib.sha256(opened.key.encode()).hexdigest()[:12]


def estimate_name(sample: str, finding: str, kind: str) -> str:
    """`Opened.sample` of an estimate; of one that nobody else can make again, empty."""
    return _WITH_ACTION.join((sample, finding, kind)) if sample and _WITH_ACTION not in sample else ""


def parts_of_sample(name: str) -> tuple[str, dict[str, str]]:
    """The sample's file, and the action that an estimate of it is made with."""
    file, *action = name.split(_WITH_ACTION)
    return file, dict(zip(("finding", "kind"), action, strict=True)) if len(action) == 2 else {}


def named(session: Session, name: str) -> Opened | None:
    return next((opened for opened in session.opened if link_name(opened) == name), None)


def view_state(query: Mapping[str, str]) -> dict[str, Any]:
    """What a link says of the view; whatever is not understood is left out."""
    state: dict[str, Any] = {}
    for key in _NUMBERS:
        text = query.get(key, "")
        if text.lstrip("-").isdigit() and len(text) < 16:
            state[key] = int(text)
    for key, allowed in _CHOICES.items():
        if query.get(key) in allowed:
            state[key] = query[key]
    return state
