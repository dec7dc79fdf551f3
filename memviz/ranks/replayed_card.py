"""Ranks for which rows alone say that a smaller card is close: replayed there, where their files still lie.

A replay gives back what is cached where memory is short, as the allocator does; so it says yes or no.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from memviz.allocator.replay import source_of
from memviz.allocator.what_if import CardMemory, figures_on
from memviz.analysis.which_device import chosen_device
from memviz.errors import MemvizError
from memviz.ranks.numbers import Rank
from memviz.ranks.places import Place, is_remote, places_of
from memviz.ranks.reduce_rank import trace_at
from memviz.ranks.smaller_card import OnCard, Smaller, asked_bytes, moment_of, step_of, when
from memviz.trace.model import Trace

MOST = 8
"""Files that are read and replayed, those that reserve most; ranks with equal rows need one."""
_When = tuple[int, float]


def replayed(ranks: Sequence[Rank], found: OnCard) -> OnCard:
    """With a yes or no for those that were close, as far as that can be found out."""
    by_number = {rank.number: rank for rank in ranks}
    close = sorted((by_number[number] for number in found.close), key=lambda rank: -rank.row.reserved_peak_bytes)
    ends: dict[object, _When | None] = {}
    told: dict[int, _When | None] = {}
    for rank in close:
        alike = (rank.row.curve, rank.row.reserved_peak_bytes, rank.row.sites)
        if alike not in ends:
            if len(ends) == MOST or (trace := _trace_of(rank)) is None:
                continue
            ends[alike] = _end(trace, rank, found.card)
        told[rank.number] = ends[alike]
    return _with(found, by_number, told) if told else found


def _trace_of(rank: Rank) -> Trace | None:
    """None where it is gone, lies elsewhere, or is another file by now."""
    row = rank.row
    if is_remote(row.place):
        return None
    try:
        now = places_of((row.place,))[0]
        return trace_at(Place(row.place)) if (now.etag, now.size) == (row.etag, row.file_bytes) else None
    except MemvizError:
        return None


def _end(trace: Trace, rank: Rank, card: Smaller) -> _When | None:
    """The step in which it runs out there, and how far into it."""
    device = chosen_device(trace, rank.row.device)
    out = figures_on(source_of(trace, device), None, CardMemory(card.card_bytes, card.overhead_bytes)).oom
    if out is None:
        return None
    return moment_of(rank.row, out.event)


def _with(found: OnCard, ranks: dict[int, Rank], told: dict[int, _When | None]) -> OnCard:
    ends = {number: end for number, end in told.items() if end is not None}
    out = [*found.runs_out, *ends]
    close = tuple(number for number in found.close if number not in told)
    times = {number: ends.get(number) or when(ranks[number].row, found.card) for number in out}
    in_order = tuple(sorted(out, key=lambda number: (*times[number], number)))
    left = max((ranks[number] for number in close), key=lambda rank: rank.row.reserved_peak_bytes, default=None)
    first = in_order[0] if in_order else None if left is None else left.number
    return replace(
        found,
        fits=tuple(sorted((*found.fits, *(number for number, end in told.items() if end is None)))),
        close=close,
        runs_out=in_order,
        first=first,
        first_step=step_of(ranks[in_order[0]].row, times[in_order[0]][0]) if in_order else None,
        lacks_bytes=_lacks(found.card, ranks, first, by_replay=first in ends or not in_order),
        replayed=tuple(sorted(told)),
        cut_short=tuple(number for number in found.cut_short if number in close),
    )


def _lacks(card: Smaller, ranks: dict[int, Rank], first: int | None, *, by_replay: bool) -> int:
    """Of reserved bytes, where live ones alone would have room."""
    if first is None:
        return 0
    row = ranks[first].row
    return max((row.reserved_peak_bytes if by_replay else asked_bytes(row)) - card.usable_bytes, 0)
