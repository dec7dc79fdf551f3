"""Recorded holders of allocations: the variable, container or autograd graph that kept each alive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.cache import cached
from memviz.analysis.lifetimes import lifetimes
from memviz.trace.model import DeviceTrace, HolderKind, Ints8, Trace


@dataclass(frozen=True)
class HeldBy:
    kind: HolderKind
    owner: str
    chain: str
    event: int
    """How many events came before the moment at which it was noted."""


def held_by(trace: Trace, device: DeviceTrace, row: int) -> HeldBy | None:
    """Return what kept a row of `lifetimes` alive when that was noted last; None if it never was."""
    at = int(holder_rows(device)[row])
    if device.holders is None or at < 0:
        return None
    holders, strings = device.holders, trace.strings
    kind, event = HolderKind(int(holders.kind[at])), int(holders.event[at])
    return HeldBy(kind, strings[holders.owner[at]], strings[holders.chain[at]], event)


@cached
def holder_rows(device: DeviceTrace) -> Ints8:
    """Return, for each row of `lifetimes`, the last row of the device's holders that is about it, or -1."""
    rows, holders = lifetimes(device), device.holders
    found = np.full(len(rows), -1, dtype=np.int64)
    if holders is None or not len(rows):
        return found
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
    # In the order of moments, so the last one stays; but a variable that once had it says more than that none has now.
    for chosen in (is_live, is_live & (holders.kind < HolderKind.UNCOLLECTED_CYCLE)):
        found[row[chosen]] = np.flatnonzero(chosen)
    return found
