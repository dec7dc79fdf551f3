"""The data of one timeline in a saved page: the columns that the server sends, of all allocations or the largest.

All traces together stay within a number of characters. What does not fit is left out, and not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memviz.analysis.callstacks.sites import sites
from memviz.analysis.callstacks.stack_tree import NO_FRAMES, fold_plumbing
from memviz.analysis.groups import group_codes
from memviz.analysis.lifetimes import BEFORE, Lifetimes, has_times, lifetimes
from memviz.analysis.purpose.phases import label_of_rows
from memviz.analysis.sums import sum_by
from memviz.analysis.timeline import timeline
from memviz.figures.colouring import MEANINGS, Colouring, colouring
from memviz.figures.packed_timeline import PackedTimeline, as_sent, pack, pack_spans_and_reserved, pack_times
from memviz.text import plain
from memviz.trace.model import Bytes1, DeviceTrace, Ints8, Trace
from memviz.ui.payloads.timelines import groups_piece
from memviz.units import bytes_text, count_text, duration_text

_PARTS = 1200
"""Number of parts of a run in which small allocations are merged by category."""


@dataclass(frozen=True, eq=False)
class SavedSpans:
    start: Ints8
    """Instants: 0 is before the first event."""
    end: Ints8
    size: Ints8
    group: Bytes1
    """Category of each span, as numbered by `colouring`."""
    row: Ints8
    """Row in `lifetimes`; -1 for a span that merges several."""
    note: str = ""
    """Differences from the recording."""


def all_spans(device: DeviceTrace, colours: Colouring) -> SavedSpans:
    rows = lifetimes(device)
    return SavedSpans(rows.start - BEFORE, rows.end - BEFORE, rows.size, colours.group, np.arange(len(rows)))


def largest_spans(device: DeviceTrace, colours: Colouring, most: int) -> SavedSpans:
    """The live bytes of each part of the run stay those of its highest moment, so no peak is lost or lowered."""
    rows = lifetimes(device)
    largest = np.sort(np.argsort(-rows.size, kind="stable")[:most])
    small = np.ones(len(rows), dtype=np.bool_)
    small[largest] = False
    # Parts of the run, and of each the instant with most live bytes. The peak is a part of its own.
    live = timeline(device).live
    peak = int(live.argmax())
    even = np.linspace(0, len(live), min(_PARTS, len(live)) + 1).astype(np.int64)
    edges = np.unique(np.concatenate([even, [peak, peak + 1]]))
    parts = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    moments = np.array([first + int(live[first:last].argmax()) for first, last in parts])
    start, end, size, group = _merge_small(rows, colours, np.flatnonzero(small), edges, moments)
    starts = np.concatenate([rows.start[largest] - BEFORE, start])
    order = np.argsort(starts, kind="stable")
    limit = bytes_text(int(rows.size[small].max(initial=0)))
    return SavedSpans(
        starts[order],
        np.concatenate([rows.end[largest] - BEFORE, end])[order],
        np.concatenate([rows.size[largest], size])[order],
        np.concatenate([colours.group[largest], group])[order],
        np.concatenate([largest, np.full(len(start), -1)])[order],
        f"Of {count_text(len(rows))} allocations the {count_text(len(largest))} largest are drawn one by one. Those of "
        f"{limit} and less are drawn together by category, in {count_text(len(moments))} parts of the run, as high as "
        "at the part's highest moment.",
    )


def _merge_small(
    rows: Lifetimes, colours: Colouring, small: Ints8, edges: Ints8, moments: Ints8
) -> tuple[Ints8, Ints8, Ints8, Bytes1]:
    start, end, size, group = rows.start[small] - BEFORE, rows.end[small] - BEFORE, rows.size[small], colours.group
    spans: list[tuple[npt.NDArray[np.int64], ...]] = []
    for number in range(len(colours.labels)):
        in_group = group[small] == number
        # What begins at or before a moment is there from the first moment that is not before it, and so its end.
        begun = sum_by(np.searchsorted(moments, start[in_group]), size[in_group], len(moments) + 1)
        ended = sum_by(np.searchsorted(moments, end[in_group]), size[in_group], len(moments) + 1)
        live = np.cumsum(begun - ended)[: len(moments)]
        there = np.flatnonzero(live)
        spans.append((edges[there], edges[there + 1], live[there], np.full(len(there), number)))
    starts, ends, sizes, numbers = (np.concatenate(columns) for columns in zip(*spans, strict=True))
    return starts, ends, sizes, numbers.astype(np.uint8)


TOGETHER = "small allocations, drawn together"
_MOST_LABELS = 300_000
"""Characters of all together."""
_NO_GROUP = -1
_LEAST_SPANS = 1000
_TIME_STEPS_US = (1, 16, 256, 4096)


@dataclass(frozen=True)
class SavedPieces:
    pieces: dict[str, Any]
    """Pieces by name, as the server would send them; groups are named `groups` and their meaning."""
    note: str
    has_times: bool


def saved_pieces(trace: Trace, device: DeviceTrace, most: int) -> SavedPieces:
    colours = colouring(trace, device)
    spans = all_spans(device, colours)
    pieces = _needed(trace, device, spans, colours)
    while (size := sum(map(_size, pieces.values()))) > most and len(spans.row) > _LEAST_SPANS:
        alone = int(np.count_nonzero(spans.row >= 0))
        if not alone:
            # The merged spans are the least that can be saved.
            break
        count = int(alone * min(0.9 * most / size, 0.7))
        spans = largest_spans(device, colours, count)
        pieces = _needed(trace, device, spans, colours)
    for name, piece in _optional_pieces(trace, device, spans):
        if size + _size(piece) <= most:
            pieces[name] = piece
            size += _size(piece)
    notes = [spans.note]
    if has_times(device):
        # In the finest steps that fit.
        packed = ((step, pack_times(device, step)) for step in _TIME_STEPS_US)
        step, times = next(((step, times) for step, times in packed if _size(times) <= most - size), (0, None))
        if times is None:
            notes.append("This file has no times.")
        else:
            pieces["times"] = times
            notes.append("" if step == 1 else f"Times are rounded to {duration_text(step)}.")
    sent = {name: as_sent(piece) for name, piece in pieces.items()}
    return SavedPieces(sent, " ".join(filter(None, notes)), "times" in pieces)


def _size(packed: PackedTimeline) -> int:
    return len(packed.body) * 4 // 3


def _needed(trace: Trace, device: DeviceTrace, spans: SavedSpans, colours: Colouring) -> dict[str, PackedTimeline]:
    probable = None
    if colours.probable is not None and len(colours.probable):
        probable = np.asarray((spans.row >= 0) & colours.probable[spans.row])
    own = Colouring(colours.meaning, colours.labels, spans.group, colours.colours, probable)
    # Stacks of spans: 0 is no stack, others are their number plus 1, and the last is for merged spans.
    stack = np.where(spans.row < 0, len(trace.stacks) + 1, lifetimes(device).stack[spans.row] + 1)
    return {
        "timeline": pack_spans_and_reserved(device, spans.start, spans.end, spans.size),
        "groups category": groups_piece(own),
        "stacks": pack({"stack": stack.astype(np.uint32)}),
    }


def _optional_pieces(trace: Trace, device: DeviceTrace, spans: SavedSpans) -> list[tuple[str, PackedTimeline]]:
    """Return the optional pieces, most useful first; merged spans have only their category."""
    # Stacks, folded as in the icicle: their lengths, and their frames innermost first.
    stacks = fold_plumbing(trace)
    columns = {"length": np.diff(stacks.offsets).astype(np.uint32), "frame": stacks.indices.astype(np.uint32)}
    wanted = [("frames", pack(columns, no_frames=NO_FRAMES))]
    if spans.note:
        return wanted
    modules = label_of_rows(device, "module")
    if modules is not None:
        wanted.append(("modules", pack({"module": modules.astype(np.uint32)})))
    meanings = [meaning for meaning in MEANINGS if meaning != "category"]
    return [*wanted, *((f"groups {one}", groups_piece(colouring(trace, device, one))) for one in meanings)]


def site_labels(trace: Trace, device: DeviceTrace) -> dict[str, Any]:
    """Return the site of each number of the piece `stacks`, and labels; too many are cut to those with most bytes."""
    table, rows = sites(trace), lifetimes(device)
    code = np.append(np.roll(table.of_stack, 1), len(table.sites))
    heaviest = np.argsort(-sum_by(table.of_stack[rows.stack], rows.size, len(table.sites)), kind="stable")
    labels, room = [""] * len(table.sites), _MOST_LABELS
    for site in heaviest[:_MOST_LABELS].tolist():
        labels[site] = plain(table.sites[site].label)
        room -= len(labels[site])
        if room < 0:
            break
    return {"code": as_sent(pack({"site": code.astype(np.uint32)})), "labels": [*labels, TOGETHER]}


def light(own: Ints8, key_of: Callable[[int], str], wanted: Set[str]) -> dict[str, Any]:
    """For lighting what belongs to a row of a table: of each own number (a stack's or module's) the place of its key,
    from 1 on, among those that are `wanted`."""
    distinct, places = np.unique(own, return_inverse=True)
    keys = {key: code for code in distinct.tolist() if (key := key_of(code)) in wanted}
    place = np.zeros(len(distinct), dtype=np.uint32)
    place[np.searchsorted(distinct, list(keys.values()))] = np.arange(1, len(keys) + 1)
    return {"keys": list(keys), "place": as_sent(pack({"place": place[places]}))}


def light_by(trace: Trace, device: DeviceTrace, by: str, wanted: Set[str]) -> dict[str, Any]:
    """Sites and lines, of each number of the piece `stacks`; modules, of each of the piece `modules`."""
    if by == "module":
        keyed = group_codes(trace, device, np.zeros(0, dtype=np.int64), by)
        return light(np.arange(len(trace.strings)), lambda code: keyed.name(code)[0], wanted)
    stack, first = np.unique(lifetimes(device).stack, return_index=True)
    keyed = group_codes(trace, device, np.asarray(first, dtype=np.int64), by)
    own = np.full(len(trace.stacks) + 2, _NO_GROUP)
    own[stack + 1] = keyed.codes
    return light(own, lambda code: keyed.name(code)[0] if code != _NO_GROUP else "", wanted)
