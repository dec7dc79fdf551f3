"""Where the address spaces of expandable segments begin and end, as far as a recording shows.

It shows only the pages that are mapped. A segment is used from its beginning on, and pages are mapped where the
part that was ever used ends, or in a gap before that: so a page that is mapped anywhere else begins another
segment. Each ends, at the latest, where the next begins; the driver puts them side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from memviz.allocator.blocks import PoolId
from memviz.allocator.ranges import Begins, FirstRanges
from memviz.allocator.start_layout import StartLayout, StartSegment, unsigned
from memviz.trace.model import Action, DeviceTrace, Trace
from memviz.trace.rounding import SMALL_SEGMENT

Group = tuple[int, PoolId, bool]
"""Stream, pool and whether small: what one address space serves."""


@dataclass(frozen=True)
class AddressSpaces:
    at_start: dict[Group, int]
    """First address of the one that was there before the first event."""
    sizes: dict[int, int]
    """By first address; without the last one, which has no end that is known."""

    def size(self, address: int, wanted: int) -> int:
        """Where nothing ends it, as much as the smallest other one has."""
        return min(wanted, self.sizes.get(address, self._smallest if self.sizes else wanted))

    @cached_property
    def _smallest(self) -> int:
        return min(self.sizes.values())


def ranges_by_group(layout: StartLayout) -> dict[Group, list[StartSegment]]:
    """Mapped ranges of one stream and pool, by address."""
    ranges: dict[Group, list[StartSegment]] = {}
    for segment in layout.segments:
        if segment.is_expandable:
            ranges.setdefault((segment.stream, segment.pool, segment.is_small), []).append(segment)
    return ranges


def address_spaces(trace: Trace, device: DeviceTrace, layout: StartLayout) -> AddressSpaces:
    mapped = _mapped(trace, device)
    finder = _Finder(layout, mapped)
    for group, address, end in mapped:
        finder.see(group, address, end)
    begins = sorted(space.begin for spaces in finder.spaces.values() for space in spaces)
    sizes = {first: after - first for first, after in zip(begins, begins[1:], strict=False)}
    return AddressSpaces({group: finder.spaces[group][0].begin for group in finder.at_start}, sizes)


def _mapped(trace: Trace, device: DeviceTrace) -> list[tuple[Group, int, int]]:
    events = device.events
    maps = np.flatnonzero(events.action == Action.SEGMENT_MAP)
    columns = (unsigned(events.address), events.size, events.stream, events.pool)
    rows = zip(*(column[maps].tolist() for column in columns), strict=True)
    # A small block never needs more than one page.
    return [((stream, trace.pools[pool], size == SMALL_SEGMENT), at, at + size) for at, size, stream, pool in rows]


@dataclass
class _Space:
    begin: int
    used_to: int


class _Finder:
    def __init__(self, layout: StartLayout, mapped: list[tuple[Group, int, int]]) -> None:
        self.spaces: dict[Group, list[_Space]] = {}
        requests: dict[Group, list[int]] = {}
        for group, address, _ in mapped:
            requests.setdefault(group, []).append(address)
        there = ranges_by_group(layout)
        self._of_group = {group: FirstRanges(requests.get(group, ())) for group in (*there, *requests)}
        self._begins = Begins((*(ranges[0].address for ranges in there.values()), *(row[1] for row in mapped)))
        for group, ranges in there.items():
            self._begin(group, ranges[0].address, ranges[-1].end)
        self.at_start = set(there)

    def see(self, group: Group, address: int, end: int) -> None:
        spaces, known = self.spaces.get(group, []), self._of_group[group]
        number = known.at(address)
        if number is not None:
            space = spaces[number]
            space.used_to = max(space.used_to, end)
        elif (
            group in self.at_start and address < spaces[0].begin and not self._begins.between(address, spaces[0].begin)
        ):
            # Its first pages had been given back when the recording began.
            number, space = 0, spaces[0]
            self._begins.add(space.begin, -1)
            self._begins.add(address)
            space.begin = address
        else:
            self._begin(group, address, end)
            return
        known.put(number, space.begin, space.used_to)

    def _begin(self, group: Group, address: int, end: int) -> None:
        spaces = self.spaces.setdefault(group, [])
        self._of_group[group].put(len(spaces), address, end)
        self._begins.add(address)
        spaces.append(_Space(address, end))
