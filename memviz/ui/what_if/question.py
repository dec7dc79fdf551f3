"""What a visitor asks on the What if tab, as the form has it, and what that means to the allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.settings import Settings, parse_settings
from memviz.allocator.settings_text import NEWEST, OLDEST, Release
from memviz.allocator.what_if import CardMemory, GiB
from memviz.errors import UsageError
from memviz.units import bytes_text, parse_bytes

LONGEST = 400
RELEASES = tuple((2, minor) for minor in range(NEWEST[1], OLDEST[1] - 1, -1))
ANY_CARD = ""
"""The memory is what was typed, not what a card leaves."""
_KEYS = {
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
    """GiB of a card, which then says how much memory there is."""
    overhead: str = bytes_text(OVERHEAD_BYTES)
    expandable: bool = False
    max_split: str = ""
    roundup: str = ""
    threshold: str = ""
    more: str = ""
    """Other keys, as they stand in PYTORCH_CUDA_ALLOC_CONF."""
    release: str = f"{NEWEST[0]}.{NEWEST[1]}"

    def with_settings(self, settings: Settings) -> Question:
        known: dict[str, Any] = dict.fromkeys(_KEYS, "")
        rest = []
        for part in _parts(settings.to_text()):
            key, _, value = part.partition(":")
            field = next((name for name, known in _KEYS.items() if known == key), "")
            if field:
                known[field] = value
            elif key != _EXPANDABLE:
                rest.append(part)
        return replace(self, expandable=settings.expandable_segments, more=",".join(rest), **known)


@dataclass(frozen=True)
class ParsedQuestion:
    settings: Settings | None
    """None where something was refused."""
    card: CardMemory | None
    release: Release
    overhead_bytes: int
    """Taken from every card of the usual sizes."""
    faults: Mapping[str, str]
    """By field; PyTorch's own words where it would have refused."""


def question_of(form: Mapping[str, Any]) -> Question:
    """From a browser: only known fields, only short texts."""
    values: dict[str, Any] = {field.name: str(form.get(field.name, ""))[:LONGEST].strip() for field in fields(Question)}
    values["expandable"] = form.get("expandable") is True
    return Question(**values)


def parse_question(question: Question) -> ParsedQuestion:
    release = _release(question.release)
    faults: dict[str, str] = {}
    card, overhead = _card(question, faults), _overhead(question, faults)
    settings = _settings(question, release, faults)
    if settings is not None and card is None and settings.per_process_memory_fraction < 1:
        faults["more"] = f"{_SHARE} is a share of the card's memory: say how large the card is."
    return ParsedQuestion(None if faults else settings, card, release, overhead, faults)


def _settings(question: Question, release: Release, faults: dict[str, str]) -> Settings | None:
    """Each field by itself first, so that a refusal stands where it belongs."""
    texts = {name: f"{key}:{getattr(question, name)}" for name, key in _KEYS.items() if getattr(question, name)}
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


def _card(question: Question, faults: dict[str, str]) -> CardMemory | None:
    if question.card.isdigit():
        card = CardMemory(int(question.card) * GiB, _overhead(question, faults))
        if not card.usable_bytes:
            faults["overhead"] = f"A card of {card.name} has nothing left then. Name a larger card, or less than that."
        return card
    memory = _bytes(question.memory, "memory", faults) if question.memory else None
    return None if memory is None else CardMemory(memory, 0)


def _overhead(question: Question, faults: dict[str, str]) -> int:
    return _bytes(question.overhead or "0", "overhead", faults) or 0


def _bytes(text: str, field: str, faults: dict[str, str]) -> int | None:
    plain = text.replace(",", "")
    try:
        # Whoever types a bare number next to sizes in MiB means MiB.
        size = parse_bytes(f"{plain}MiB" if plain.replace(".", "", 1).isdigit() else plain)
    except ValueError as error:
        faults[field] = f"{error}."
        return None
    if not size and field == "memory":
        faults[field] = "No process runs in nothing. Leave it empty for memory without end."
        return None
    return size


def _release(text: str) -> Release:
    return next((release for release in RELEASES if text == f"{release[0]}.{release[1]}"), NEWEST)


def _parts(text: str) -> list[str]:
    """At the commas between keys, not at those within brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]
