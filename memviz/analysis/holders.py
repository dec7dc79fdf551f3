"""Recorded holders of allocations: the variable, container or autograd graph that kept each alive."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.purpose.activity import Activity
from memviz.analysis.purpose.phases import phase_spans
from memviz.trace.model import DeviceTrace, HolderKind, Ints8, Trace
from memviz.units import count_text, counted


@dataclass(frozen=True)
class HeldBy:
    kind: HolderKind
    owner: str
    chain: str
    place: str
    """Line of the program that stores it there; empty where none is known."""
    event: int
    """How many events came before the moment at which it was noted."""
    growth: str = ""
    """How its container grew while the program ran, such as `+1 a step`; empty where it did not."""


def held_by(trace: Trace, device: DeviceTrace, row: int) -> HeldBy | None:
    """Return the last recorded holder of a row of `lifetimes`; None if it has none."""
    at = int(holder_rows(device)[row])
    if device.holders is None or at < 0:
        return None
    holders = device.holders
    owner, chain, place = (trace.strings[column[at]] for column in (holders.owner, holders.chain, holders.place))
    growth = container_growth(trace, device, int(holders.owner[at]))
    return HeldBy(HolderKind(int(holders.kind[at])), owner, chain, place, int(holders.event[at]), growth)


_LENGTH = re.compile(r", (?:list|dict|set|deque) of (\d{1,12})$")
_MOST_LOOKED_AT = 64


def container_growth(trace: Trace, device: DeviceTrace, owner: int) -> str:
    """Return by how many items a holder's container grew, by the lengths in its chains; empty if it did not."""
    holders = device.holders
    rows = np.flatnonzero(holders.owner == owner).tolist() if holders is not None else []
    lengths: dict[int, int] = {}
    for row in dict.fromkeys([*rows[:_MOST_LOOKED_AT], *rows[-_MOST_LOOKED_AT:]]):
        if holders is not None and (found := _LENGTH.search(trace.strings[holders.chain[row]])):
            event = int(holders.event[row])
            lengths[event] = max(int(found[1]), lengths.get(event, 0))
    if len(lengths) < 2 or (grown := lengths[max(lengths)] - lengths[min(lengths)]) <= 0:
        return ""
    steps = forwards_between(trace, device, min(lengths), max(lengths))
    if steps:
        each, rest = divmod(grown, steps)
        return f"+{count_text(grown)} in {counted(steps, 'step')}" if rest else f"+{count_text(each)} per step"
    return f"+{count_text(grown)} since event {count_text(min(lengths))}"


def forwards_between(trace: Trace, device: DeviceTrace, first: int, last: int) -> int:
    """Return the number of steps between two events, counted by the forwards that begin a step."""
    begins: dict[int, int] = {}
    for span in phase_spans(trace, device).spans:
        if span.doing == Activity.FORWARD:
            begins.setdefault(span.step, span.first)
    return sum(first <= begin <= last for begin in begins.values())


@cached
def holder_rows(device: DeviceTrace) -> Ints8:
    """Return, for each row of `lifetimes`, the last row of the device's holders that is about it, or -1."""
    found, holders = np.full(len(lifetimes(device)), -1, dtype=np.int64), device.holders
    if holders is None:
        return found
    row = held_rows(device)
    # In the order of moments, so the last one stays; but what led to a cycle says more than that the cycle waits.
    for chosen in (row >= 0, (row >= 0) & (holders.kind != HolderKind.UNCOLLECTED_CYCLE)):
        found[row[chosen]] = np.flatnonzero(chosen)
    return found


@cached
def held_rows(device: DeviceTrace) -> Ints8:
    """Return, for each row of the device's holders, the row of `lifetimes` that it is about, or -1."""
    rows, holders = lifetimes(device), device.holders
    if holders is None or not len(rows):
        return np.full(0 if holders is None else len(holders), -1, dtype=np.int64)
    # An address is used again and again: the allocation there is the last that began before the moment.
    order = np.lexsort((rows.start, rows.address))
    addresses, address_of = np.unique(rows.address, return_inverse=True)
    width = len(device.events) + 2
    keys = address_of[order] * width + rows.start[order] + 1
    known = np.searchsorted(addresses, holders.address)
    exists = addresses[np.minimum(known, len(addresses) - 1)] == holders.address
    place = np.searchsorted(keys, known * width + holders.event + 1, side="left") - 1
    row = order[np.maximum(place, 0)]
    is_live = (rows.address[row] == holders.address) & (rows.start[row] < holders.event)
    is_live &= (rows.end[row] >= holders.event) & exists & (place >= 0)
    return np.where(is_live, row, -1)


@cached
def held_until(device: DeviceTrace) -> Ints8:
    """Return, for each row of the device's holders, how many events came before its end: a free or another holder."""
    rows, row, holders = lifetimes(device), held_rows(device), device.holders
    if holders is None:
        return row
    until = np.where(row >= 0, rows.end[row] + 1, holders.event) if len(rows) else holders.event.copy()
    order = np.lexsort((holders.event, row))
    is_same = row[order[1:]] == row[order[:-1]]
    until[order[:-1][is_same]] = holders.event[order[1:][is_same]]
    return until
