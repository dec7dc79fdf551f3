"""What a saved page keeps of one trace for its timeline: the same columns that the page's server sends.

All together they stay within `most` characters. What does not fit is left out, and the page does not offer it.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from memviz.analysis.callstacks.frames import DEFAULT_RULE
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.callstacks.stack_tree import NO_FRAMES, fold_plumbing
from memviz.analysis.groups import keyed_by
from memviz.analysis.lifetimes import has_times, lifetimes
from memviz.analysis.purpose.phases import label_of_rows
from memviz.analysis.sums import sum_by
from memviz.figures.colouring import MEANINGS, Colouring, colouring
from memviz.figures.packed_timeline import PackedTimeline, as_sent, pack, pack_spans, pack_times
from memviz.trace.model import Bools, DeviceTrace, Ints8, Trace
from memviz.ui.html.plain import plain
from memviz.ui.payloads.timeline_pieces import groups_piece
from memviz.ui.saved.spans import SavedSpans, all_spans, largest_spans
from memviz.units import duration_text

TOGETHER = "small allocations, drawn together"
_MOST_LABELS = 300_000
"""Characters of all together."""
_NO_GROUP = -1
_LEAST_SPANS = 1000
_TIME_STEPS_US = (1, 16, 256, 4096)


@dataclass(frozen=True)
class Kept:
    pieces: dict[str, Any]
    """By name, as the server would send them; of groups `groups` and their meaning."""
    note: str
    has_times: bool


def saved_pieces(trace: Trace, device: DeviceTrace, most: int) -> Kept:
    colours = colouring(trace, device)
    spans = all_spans(device, colours)
    pieces = _needed(trace, device, spans, colours)
    while (size := sum(map(_size, pieces.values()))) > most and len(spans.row) > _LEAST_SPANS:
        alone = int(np.count_nonzero(spans.row >= 0))
        if not alone:
            # What stands for all others together is the least that can be kept.
            break
        count = int(alone * min(0.9 * most / size, 0.7))
        spans = largest_spans(device, colours, count)
        pieces = _needed(trace, device, spans, colours)
    for name, piece in _wanted(trace, device, spans):
        if size + _size(piece) <= most:
            pieces[name] = piece
            size += _size(piece)
    notes = [spans.note]
    if has_times(device):
        times, note = _times(device, most - size)
        notes.append(note)
        if times is not None:
            pieces["times"] = times
    sent = {name: as_sent(piece) for name, piece in pieces.items()}
    return Kept(sent, " ".join(filter(None, notes)), "times" in pieces)


def _times(device: DeviceTrace, room: int) -> tuple[PackedTimeline | None, str]:
    """As fine as there is room for."""
    for step in _TIME_STEPS_US:
        packed = pack_times(device, step)
        if _size(packed) <= room:
            return packed, "" if step == 1 else f"Times are kept in steps of {duration_text(step)}."
    return None, "Times are not kept in this file."


def _size(packed: PackedTimeline) -> int:
    return len(packed.body) * 4 // 3


def _needed(trace: Trace, device: DeviceTrace, spans: SavedSpans, colours: Colouring) -> dict[str, PackedTimeline]:
    own = Colouring(colours.meaning, colours.labels, spans.group, colours.colours, _probable(colours, spans))
    return {
        "timeline": pack_spans(device, spans.start, spans.end, spans.size),
        "groups category": groups_piece(own),
        "stacks": _stacks(trace, device, spans),
    }


def _probable(colours: Colouring, spans: SavedSpans) -> Bools | None:
    if colours.probable is None or not len(colours.probable):
        return None
    return np.asarray((spans.row >= 0) & colours.probable[spans.row])


def _stacks(trace: Trace, device: DeviceTrace, spans: SavedSpans) -> PackedTimeline:
    """Of each span: 0 for an allocation without a stack, else its number and 1; the last one stands for many."""
    count = len(trace.stacks)
    stack = np.where(spans.row < 0, count + 1, lifetimes(device).stack[spans.row] + 1)
    return pack({"stack": stack.astype(np.uint32)})


def _frames(trace: Trace) -> PackedTimeline:
    """Of each stack, folded as the icicle has it: its length, and its frames innermost first."""
    stacks = fold_plumbing(trace, DEFAULT_RULE)
    columns = {"length": np.diff(stacks.offsets), "frame": stacks.indices}
    return pack({name: column.astype(np.uint32) for name, column in columns.items()}, no_frames=NO_FRAMES)


def _wanted(trace: Trace, device: DeviceTrace, spans: SavedSpans) -> list[tuple[str, PackedTimeline]]:
    """What is good to have, the best first; of spans that stand for many, only the category is known."""
    wanted = [("frames", _frames(trace))]
    if not spans.note:
        modules = label_of_rows(device, "module")
        if modules is not None:
            wanted.append(("modules", pack({"module": modules.astype(np.uint32)})))
        wanted += [
            (f"groups {meaning}", groups_piece(colouring(trace, device, meaning)))
            for meaning in MEANINGS
            if meaning != "category"
        ]
    return wanted


def site_labels(trace: Trace, device: DeviceTrace) -> dict[str, Any]:
    """Of each number of the piece `stacks` its site's, and the labels; of too many, of the sites with most bytes."""
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
        keyed = keyed_by(trace, device, np.zeros(0, dtype=np.int64), by)
        return light(np.arange(len(trace.strings)), lambda code: keyed.name(code)[0], wanted)
    stack, first = np.unique(lifetimes(device).stack, return_index=True)
    keyed = keyed_by(trace, device, np.asarray(first, dtype=np.int64), by)
    own = np.full(len(trace.stacks) + 2, _NO_GROUP)
    own[stack + 1] = keyed.codes
    return light(own, lambda code: keyed.name(code)[0] if code != _NO_GROUP else "", wanted)
