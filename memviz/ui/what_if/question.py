"""A visitor's question on the What if tab, as the form and links have it, and as allocator settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.replayer import CardMemory, GiB
from memviz.allocator.settings import NEWEST, OLDEST, Release, Settings, parse_settings
from memviz.errors import UsageError
from memviz.ui.shell.session import MOST_OPEN
from memviz.units import bytes_text, parse_bytes

LONGEST = 400
RELEASES = tuple((2, minor) for minor in range(NEWEST[1], OLDEST[1] - 1, -1))
ANY_CARD = ""
"""The memory is what was typed, not what a card leaves."""
KEYS = {
    "max_split": "max_split_size_mb",
    "roundup": "roundup_power2_divisions",
    "threshold": "garbage_collection_threshold",
}
_EXPANDABLE = "expandable_segments"
_SHARE = "per_process_memory_fraction"


@dataclass(frozen=True)
class Question:
    """Texts as typed. Empty is PyTorch's default, and memory without end."""

    memory: str = ""
    card: str = ANY_CARD
    """GiB of a card, which then sets the memory."""
    overhead: str = bytes_text(OVERHEAD_BYTES)
    expandable: bool = False
    max_split: str = ""
    roundup: str = ""
    threshold: str = ""
    more: str = ""
    """Other keys, as written in PYTORCH_CUDA_ALLOC_CONF."""
    release: str = f"{NEWEST[0]}.{NEWEST[1]}"

    def with_settings(self, settings: Settings) -> Question:
        values: dict[str, Any] = dict.fromkeys(KEYS, "")
        fields_of, rest = {key: name for name, key in KEYS.items()}, []
        # At the commas between keys, not at those within brackets.
        for part in re.split(r",(?![^\[]*\])", settings.to_text()):
            key, _, value = part.partition(":")
            if key in fields_of:
                values[fields_of[key]] = value
            elif part and key != _EXPANDABLE:
                rest.append(part)
        return replace(self, expandable=settings.expandable_segments, more=",".join(rest), **values)


@dataclass(frozen=True)
class ParsedQuestion:
    settings: Settings | None
    """None where something was refused."""
    card: CardMemory | None
    release: Release
    overhead_bytes: int
    """Taken from every card of the usual sizes."""
    faults: Mapping[str, str]
    """Messages by field, in PyTorch's own words where it would refuse the setting."""


def question_of(form: Mapping[str, Any]) -> Question:
    """From a browser: only known fields, only short texts."""
    values: dict[str, Any] = {field.name: str(form.get(field.name, ""))[:LONGEST].strip() for field in fields(Question)}
    values["expandable"] = form.get("expandable") is True
    return Question(**values)


def parse_question(question: Question) -> ParsedQuestion:
    release = next((release for release in RELEASES if question.release == f"{release[0]}.{release[1]}"), NEWEST)
    faults: dict[str, str] = {}
    overhead = _bytes(question.overhead or "0", "overhead", faults) or 0
    card = _card(question, overhead, faults)
    settings = _settings(question, release, faults)
    if settings is not None and card is None and settings.per_process_memory_fraction < 1:
        faults["more"] = f"{_SHARE} is a fraction of the card's memory: give the size of the card."
    return ParsedQuestion(None if faults else settings, card, release, overhead, faults)


def _settings(question: Question, release: Release, faults: dict[str, str]) -> Settings | None:
    """Parse each field by itself first, so that a fault is shown at its field."""
    texts = {name: f"{key}:{getattr(question, name)}" for name, key in KEYS.items() if getattr(question, name)}
    if question.expandable:
        texts["expandable"] = f"{_EXPANDABLE}:True"
    if question.more:
        texts["more"] = question.more
    for name, text in texts.items():
        try:
            parse_settings(text, release)
        except UsageError as error:
            faults[name] = str(error)
    if faults.keys() & texts.keys():
        return None
    try:
        return parse_settings(",".join(texts.values()), release)
    except UsageError as error:
        faults["more"] = str(error)
        return None


def _card(question: Question, overhead: int, faults: dict[str, str]) -> CardMemory | None:
    if question.card.isdigit():
        card = CardMemory(int(question.card) * GiB, overhead)
        if not card.usable_bytes:
            faults["overhead"] = f"That leaves no memory on a card of {card.name}. Choose a larger card, or less."
        return card
    memory = _bytes(question.memory, "memory", faults) if question.memory else None
    return None if memory is None else CardMemory(memory, 0)


def _bytes(text: str, field: str, faults: dict[str, str]) -> int | None:
    plain = text.replace(",", "")
    try:
        # Whoever types a bare number next to sizes in MiB means MiB.
        size = parse_bytes(f"{plain}MiB" if plain.replace(".", "", 1).isdigit() else plain)
    except ValueError as error:
        faults[field] = f"{error}."
        return None
    if not size and field == "memory":
        faults[field] = "Memory must be more than 0. Leave it empty for no limit."
        return None
    return size


TAB = "what-if"
_SWITCHED_ON = "1"


def what_if_query(question: Question) -> str:
    """Only what differs from PyTorch's defaults."""
    usual = asdict(Question())
    differs = {name: value for name, value in asdict(question).items() if value != usual[name]}
    if "expandable" in differs:
        differs["expandable"] = _SWITCHED_ON
    return urlencode({"tab": TAB, **differs})


def question_in(query: Mapping[str, str]) -> Question:
    """Return the question in a link. Missing fields have defaults; the form reports invalid ones."""
    usual = asdict(Question())
    form = {name: query.get(name, usual[name]) for name in usual}
    return question_of({**form, "expandable": query.get("expandable") == _SWITCHED_ON})


@dataclass(frozen=True)
class WhatIfState:
    """State of a visitor's What if tab. Immutable: every change is a new one."""

    key: str = ""
    question: Question = Question()
    turn: int = 0
    """Grows where the page itself fills the form in."""
    with_blocks: bool = False
    left: tuple[tuple[str, Question], ...] = ()
    """Questions about other traces, by key, for when the visitor returns to them."""

    def turned_to(self, key: str) -> tuple[WhatIfState, bool]:
        """Return the state for this trace, and True if it has no earlier question."""
        left = dict(self.left)
        if self.key:
            left[self.key] = self.question
        question = left.pop(key, None)
        retained = tuple(left.items())[-MOST_OPEN:]
        return WhatIfState(key, question or Question(), self.turn + 1, self.with_blocks, retained), question is None
