"""Which settings would have needed the least: the few that matter, each replayed, best first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.replayer import Progress, Source
from memviz.allocator.settings import Settings
from memviz.allocator.settings_text import NEWEST, SINCE, Release
from memviz.allocator.side_by_side import tried_side_by_side
from memviz.allocator.sizes import rounding, segment_size
from memviz.allocator.tried import Tried
from memviz.allocator.what_if import CardMemory
from memviz.trace.model import Action
from memviz.trace.reserved_bytes import reserved_after
from memviz.trace.rounding import SLOTS, MiB
from memviz.units import bytes_text, percent_text


def _large_segments(mebibytes: int) -> dict[str, int]:
    """PyTorch lets what may be left of a block follow the size of segments."""
    return {"large_segment_size": mebibytes * MiB, "max_non_split_rounding_size": mebibytes * MiB}


_TRIED: tuple[Mapping[str, Any], ...] = (
    {},
    {"expandable_segments": True},
    {"expandable_segments": False},
    {"max_split_size": None},
    # At 20 the segments of 20 MiB, which most tensors share, would not be split either.
    {"max_split_size": 21 * MiB},
    {"max_split_size": 64 * MiB},
    {"max_split_size": 128 * MiB},
    {"max_split_size": 256 * MiB},
    {"max_split_size": 512 * MiB},
    {"roundup_power2_divisions": (4,) * SLOTS},
    {"roundup_power2_divisions": (8,) * SLOTS},
    {"roundup_power2_divisions": (0,) * SLOTS},
    _large_segments(40),
    {"expandable_segments": True, **_large_segments(12)},
)
"""What is changed of the recorded settings: what each brought on real recordings, and the ways back."""

_WORTH_SAYING = 0.01


@dataclass(frozen=True)
class Search:
    tried: tuple[Tried, ...]
    """What fits first, then by peak reserved; among equals the recorded settings, then the simplest change."""
    advised: Tried
    """The simplest of those that are as good as the best, to one in a hundred."""
    advice: str
    """One sentence."""
    is_placed_anew: bool = False
    """The history starts late: for all of them what was live before is placed into empty memory."""

    @property
    def best(self) -> Tried:
        return self.tried[0]

    @property
    def recorded(self) -> Tried:
        return next(outcome for outcome in self.tried if outcome.is_recorded)

    @property
    def saved_by(self) -> Tried | None:
        """What would have carried a run through that the recorded settings do not; None where nothing has to."""
        return self.advised if self.advised.fits and not self.recorded.fits else None


def search(
    source: Source,
    card: CardMemory | None = None,
    *,
    also: Settings | None = None,
    release: Release = NEWEST,
    overhead_bytes: int | None = None,
    progress: Progress | None = None,
) -> Search:
    """Only settings that this release knows, and that can change anything in this recording; and `also`.

    `overhead_bytes` are taken from the cards of the usual sizes; without it as much as from `card`.
    """
    if overhead_bytes is None:
        overhead_bytes = card.overhead_bytes if card else OVERHEAD_BYTES
    wanted = list(dict.fromkeys([*settings_to_try(source, release), *([also] if also else [])]))
    recorded_peak = int(reserved_after(source.device).max())
    found = tried_side_by_side(source, wanted, card, overhead_bytes, progress)
    tried = sorted((_held_against(recorded_peak, one) for one in found), key=_rank)
    advised = _advised(tried)
    advice, is_anew = _advice(tried, advised, card), bool(source.layout.segments)
    return Search(tuple(tried), advised, advice, is_anew)


def _held_against(recorded_peak: int, tried: Tried) -> Tried:
    """A program can give memory back where no setting would: then a replay is not what is recorded."""
    return tried if tried.peak_reserved_bytes == recorded_peak else replace(tried, is_as_recorded=False)


def settings_to_try(source: Source, release: Release = NEWEST) -> list[Settings]:
    wanted = dict.fromkeys(replace(source.recorded, **changes) for changes in _TRIED)
    largest = _largest_segment(source)
    return [
        settings
        for settings in wanted
        if settings == source.recorded
        or (_known_to(settings, release) and not _is_idle(settings, source.recorded, largest))
    ]


def _known_to(settings: Settings, release: Release) -> bool:
    keys = [part.partition(":")[0] for part in settings.to_text().split(",") if ":" in part]
    return all(SINCE.get(key, (0, 0)) <= release for key in keys)


def _is_idle(settings: Settings, recorded: Settings, largest: int) -> bool:
    """A limit to splitting that no block reaches changes nothing; blocks in segments that expand may grow to it."""
    most = settings.max_split_size
    return most is not None and most != recorded.max_split_size and most > largest and not settings.expandable_segments


def _largest_segment(source: Source) -> int:
    """No block is larger than the segment it lies in."""
    events, settings = source.device.events, source.recorded
    requested = int(events.size[events.action == Action.ALLOC].max(initial=1))
    there = max((block.requested for block in source.layout.blocks), default=1)
    round_size = rounding(settings.roundup_power2_divisions)
    return segment_size(round_size(max(requested, there)), settings.large_segment_size)


def _rank(tried: Tried) -> tuple[bool, int, bool]:
    return not tried.fits, tried.peak_reserved_bytes, not tried.is_recorded


def _advised(ranked: list[Tried]) -> Tried:
    """Fewer keys are easier to explain, to keep and to take out again."""
    best = ranked[0]
    enough = (1 + _WORTH_SAYING) * best.peak_reserved_bytes
    as_good = [outcome for outcome in ranked if outcome.fits == best.fits and outcome.peak_reserved_bytes <= enough]
    return min(as_good, key=lambda outcome: (not outcome.is_recorded, outcome.text.count(":")))


def _advice(ranked: list[Tried], advised: Tried, card: CardMemory | None) -> str:
    recorded = next(outcome for outcome in ranked if outcome.is_recorded)
    name = advised.text or "PyTorch's default settings"
    if card and advised.peak_requested_bytes > card.usable_bytes:
        left = bytes_text(card.usable_bytes)
        return f"No settings can make it fit: what the program holds at its peak is more than the {left} there are."
    if not advised.fits:
        return "None of the settings tried makes it fit: it needs less live memory, or a larger card."
    if not recorded.fits:
        return f"Set {name}: with it this run fits, and with the recorded settings it runs out of memory."
    # Under a limit the cache fills what there is, so what settings need shows without one.
    where = " without a limit" if card else ""
    if advised.is_recorded:
        return f"Keep the settings: none of those tried reserves noticeably less at its peak{where}."
    saved = percent_text(recorded.peak_reserved_bytes - advised.peak_reserved_bytes, recorded.peak_reserved_bytes)
    return f"Set {name}: at its peak it reserves {saved} less than with the recorded settings{where}."
