"""Which settings would have needed the least: the few that matter, each replayed, best first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memviz.allocator.replayer import RanOut, Source
from memviz.allocator.settings import Settings
from memviz.allocator.what_if import Card, replay_on
from memviz.trace.rounding import SLOTS, MiB

_TRIED: tuple[Mapping[str, Any], ...] = (
    {},
    {"expandable_segments": True},
    {"expandable_segments": False},
    {"max_split_size": None},
    {"max_split_size": 64 * MiB},
    {"max_split_size": 128 * MiB},
    {"max_split_size": 256 * MiB},
    {"max_split_size": 512 * MiB},
    {"roundup_power2_divisions": (4,) * SLOTS},
    {"roundup_power2_divisions": (8,) * SLOTS},
    {"roundup_power2_divisions": (0,) * SLOTS},
)
"""What is changed of the recorded settings, one thing at a time: more at once is hard to explain and rarely better."""

_WORTH_SAYING = 0.01


@dataclass(frozen=True)
class Tried:
    settings: Settings
    text: str
    """To paste behind `PYTORCH_CUDA_ALLOC_CONF=`; empty for PyTorch's defaults."""
    is_recorded: bool
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    """With memory without end."""
    retries: int
    """On the card, where there is one."""
    oom: RanOut | None

    @property
    def fits(self) -> bool:
        return self.oom is None


@dataclass(frozen=True)
class Search:
    tried: tuple[Tried, ...]
    """What fits first, then by peak reserved; among equals the recorded settings, then the simplest change."""
    advice: str
    """One sentence."""

    @property
    def best(self) -> Tried:
        return self.tried[0]


def search(source: Source, card: Card | None = None) -> Search:
    settings = list(dict.fromkeys(replace(source.recorded, **changes) for changes in _TRIED))
    tried = sorted((_tried(source, each, card) for each in settings), key=_rank)
    return Search(tuple(tried), _advice(tried, card))


def _tried(source: Source, settings: Settings, card: Card | None) -> Tried:
    # All of them start from a fresh layout, so that no one is charged with a cache that the others do not have.
    on_card = replay_on(source, settings, card, afresh=True)
    undisturbed = card is None or (on_card.oom is None and on_card.retries == 0)
    free = on_card if undisturbed else replay_on(source, settings, afresh=True)
    return Tried(
        settings=settings,
        text=settings.to_text(),
        is_recorded=settings == source.recorded,
        peak_requested_bytes=free.peak_requested_bytes,
        peak_allocated_bytes=free.peak_allocated_bytes,
        peak_reserved_bytes=free.peak_reserved_bytes,
        retries=on_card.retries,
        oom=on_card.oom,
    )


def _rank(tried: Tried) -> tuple[bool, int, bool]:
    return not tried.fits, tried.peak_reserved_bytes, not tried.is_recorded


def _advice(ranked: list[Tried], card: Card | None) -> str:
    best = ranked[0]
    recorded = next(each for each in ranked if each.is_recorded)
    saved = 1 - best.peak_reserved_bytes / recorded.peak_reserved_bytes if recorded.peak_reserved_bytes else 0.0
    name = best.text or "PyTorch's default settings"
    if card and best.peak_requested_bytes > card.usable_bytes:
        return "No settings can make it fit: what the program holds at its peak is more than this card has."
    if not best.fits:
        return "None of the settings tried makes it fit: it needs less live memory, or a larger card."
    if not recorded.fits:
        return f"Set {name}: with it this run fits, and with the recorded settings it runs out of memory."
    if saved < _WORTH_SAYING:
        where = " on this card" if card else ""
        return f"Keep the settings{where}: none of those tried reserves noticeably less at its peak."
    return f"Set {name}: at its peak it reserves {saved:.0%} less than with the recorded settings."
