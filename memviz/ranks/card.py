"""Ranks on a smaller card: which would run out first.

Live bytes must fit: a rank whose live peak does not fit runs out. Cached bytes can partly be released, so where only
the reserved bytes do not fit the rows say "close", and a replay of that rank's file decides. A rank that ran out when
it was recorded needed more than its peak, by an amount that its row does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from memviz.allocator.replayer import CardMemory, FitWord, Replayer
from memviz.analysis.devices import choose_device
from memviz.errors import MemvizError
from memviz.ranks.numbers import Rank
from memviz.ranks.places import Place, is_remote, places_of
from memviz.ranks.reduce_rank import trace_at
from memviz.ranks.row import RankRow
from memviz.trace.model import Trace, is_reserved_known
from memviz.units import count_text


@dataclass(frozen=True)
class FirstStep:
    number: int
    words: str
    """'in step 3', 'before step 1'."""


@dataclass(frozen=True)
class OnCard:
    card: CardMemory
    fits: tuple[int, ...]
    close: tuple[int, ...]
    runs_out: tuple[int, ...]
    """Ranks by the step at which they run out and how far into it, then by the bytes they lack, most first."""
    first: int | None
    """The first of those that run out; else of those that are close, the one that lacks most."""
    first_step: FirstStep | None
    """In which it has no more; None where that is only close, where all fit, or where its recording has no steps."""
    lacks_bytes: int
    """Live bytes of the first rank beyond the card's memory; reserved ones if only these lack room, 0 if unknown."""
    replayed: tuple[int, ...] = ()
    """Ranks that were close by their rows, and of which a replay of their requests says whether they fit."""
    cut_short: tuple[int, ...] = ()
    """Ranks among the close ones whose recording ended in an OOM."""


def fit_on_card(ranks: Sequence[Rank], card: CardMemory) -> OnCard:
    words = {rank.number: fit(rank.row, card) for rank in ranks}
    close = [rank for rank in ranks if words[rank.number] == "close"]
    close.sort(key=lambda rank: (-rank.row.reserved_peak_bytes, rank.number))
    out = [rank for rank in ranks if words[rank.number] == "no"]
    out.sort(key=lambda rank: (*step_of_first_excess(rank.row, card), -needed_live_bytes(rank.row), rank.number))
    first = next(iter([*out, *close]), None)
    needs = 0 if first is None else needed_live_bytes(first.row) if out else first.row.reserved_peak_bytes
    return OnCard(
        card=card,
        fits=tuple(rank.number for rank in ranks if words[rank.number] == "yes"),
        close=tuple(sorted(rank.number for rank in close)),
        runs_out=tuple(rank.number for rank in out),
        first=None if first is None else first.number,
        first_step=step_of(out[0].row, step_of_first_excess(out[0].row, card)[0]) if out else None,
        lacks_bytes=max(needs - card.usable_bytes, 0),
        cut_short=tuple(sorted(rank.number for rank in close if rank.row.ran_out)),
    )


def fit(row: RankRow, card: CardMemory) -> FitWord:
    if needed_live_bytes(row) > card.usable_bytes:
        return "no"
    if row.ran_out:
        return "close"
    is_known = is_reserved_known(row.peak_bytes, row.reserved_peak_bytes)
    return "yes" if is_known and row.reserved_peak_bytes <= card.usable_bytes else "close"


def needed_live_bytes(row: RankRow) -> int:
    """The most that was to be live at once, with what was asked for in vain."""
    return max([row.peak_bytes, *(one.live_bytes + one.requested_bytes for one in row.ran_out)])


def step_of_first_excess(row: RankRow, card: CardMemory) -> tuple[int, float]:
    """The number of the step in which live bytes first go beyond, or would have, and how far into it."""
    curve, usable = row.curve, card.usable_bytes
    live = (at for at, live in enumerate(curve.live) if live > usable)
    times = [
        (curve.parts[place // curve.columns].number, place % curve.columns / curve.columns) for place in islice(live, 1)
    ]
    asked = (one.event for one in row.ran_out if one.live_bytes + one.requested_bytes > usable)
    return min([*times, *(step_and_share_of(row, event) for event in islice(asked, 1))])


def step_of(row: RankRow, number: int) -> FirstStep | None:
    """A part without a name is no step, but what comes before the first one or after the last."""
    parts = row.curve.parts
    place = next(place for place, part in enumerate(parts) if part.number == number)
    if parts[place].name:
        return FirstStep(number, f"in step {count_text(number)}")
    if len(parts) == 1:
        return None
    is_before = place + 1 < len(parts)
    beside = parts[place + 1 if is_before else place - 1].number
    return FirstStep(number, f"{'before' if is_before else 'after'} step {count_text(beside)}")


def step_and_share_of(row: RankRow, event: int) -> tuple[int, float]:
    """The number of its step, and how far into it."""
    parts = row.curve.parts
    part = next((part for part in parts if event <= part.last_event), parts[-1])
    return part.number, (event - part.first_event) / max(part.last_event - part.first_event + 1, 1)


MOST = 8
"""Files that are read and replayed, those that reserve most; ranks with equal rows need one."""
_When = tuple[int, float]


def replay_close_ranks(ranks: Sequence[Rank], found: OnCard) -> OnCard:
    """With a yes or no for those that were close, as far as that can be found out."""
    by_number = {rank.number: rank for rank in ranks}
    close = sorted((by_number[number] for number in found.close), key=lambda rank: -rank.row.reserved_peak_bytes)
    end_of_row: dict[object, _When | None] = {}
    replayed: dict[int, _When | None] = {}
    for rank in close:
        alike = (rank.row.curve, rank.row.reserved_peak_bytes, rank.row.sites)
        if alike not in end_of_row:
            if len(end_of_row) == MOST or (trace := _trace_of(rank)) is None:
                continue
            out = Replayer(trace, choose_device(trace, rank.row.device)).figures(None, found.card).oom
            end_of_row[alike] = None if out is None else step_and_share_of(rank.row, out.event)
        replayed[rank.number] = end_of_row[alike]
    return _with_replays(found, by_number, replayed) if replayed else found


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


def _with_replays(found: OnCard, ranks: dict[int, Rank], replayed: dict[int, _When | None]) -> OnCard:
    ends = {number: end for number, end in replayed.items() if end is not None}
    out = [*found.runs_out, *ends]
    close = tuple(number for number in found.close if number not in replayed)
    times = {number: ends.get(number) or step_of_first_excess(ranks[number].row, found.card) for number in out}
    in_order = tuple(sorted(out, key=lambda number: (*times[number], number)))
    left = max((ranks[number] for number in close), key=lambda rank: rank.row.reserved_peak_bytes, default=None)
    first = ranks[in_order[0]] if in_order else left
    lacks_bytes = 0
    if first is not None:
        decided_by_replay = first.number in ends or not in_order
        needs = first.row.reserved_peak_bytes if decided_by_replay else needed_live_bytes(first.row)
        lacks_bytes = max(needs - found.card.usable_bytes, 0)
    return replace(
        found,
        fits=tuple(sorted((*found.fits, *(number for number, end in replayed.items() if end is None)))),
        close=close,
        runs_out=in_order,
        first=None if first is None else first.number,
        first_step=step_of(ranks[in_order[0]].row, times[in_order[0]][0]) if in_order else None,
        lacks_bytes=lacks_bytes,
        replayed=tuple(sorted(replayed)),
        cut_short=tuple(number for number in found.cut_short if number in close),
    )
