"""Numbers of others' recordings on real GPUs: sizes of allocations in order, frees, and peaks."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from memviz.allocator.blocks import Platform

_NUMBERS = Path(__file__).parent / "numbers"


@dataclass(frozen=True)
class Peaks:
    live: int
    """Requested bytes."""
    allocated: int
    """Bytes of the rounded blocks."""
    reserved: int


@dataclass(frozen=True)
class Recording:
    name: str
    source: str
    """Address of the public file."""
    card: str
    """A card of its class: the recordings do not name the exact one."""
    release: tuple[int, int]
    platform: Platform
    """Told by the order of its segments' addresses."""
    settings: str
    """Allocator settings that the file states."""
    peaks: Peaks
    before: int
    """Bytes that were live before the first event and never freed after it."""
    freed: tuple[int, ...]
    """Others that were live before it, and went."""
    events: tuple[int, ...]
    """A positive number is an allocation of so many bytes, a negative one the free of the so-manieth.

    Those of `freed` are counted first.
    """

    @property
    def sizes(self) -> list[int]:
        return [event for event in self.events if event > 0]


def recording(name: str) -> Recording:
    """Its file has a line for each fact, then a line `events` and the events."""
    head, _, events = (_NUMBERS / f"{name}.txt").read_text().partition("events\n")
    facts = dict(line.split(": ", 1) for line in head.splitlines())
    major, minor = facts["torch"].split(".")
    return Recording(
        name=name,
        source=facts["source"],
        card=facts["card"],
        release=(int(major), int(minor)),
        platform=cast(Platform, facts.get("platform", "linux")),
        settings=facts.get("settings", ""),
        peaks=Peaks(*_numbers(facts["peaks"])),
        before=int(facts.get("before", 0)),
        freed=_numbers(facts.get("freed", "")),
        events=_numbers(events),
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def recordings() -> list[str]:
    return sorted(path.stem for path in _NUMBERS.glob("*.txt"))
