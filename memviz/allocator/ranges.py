"""Questions about many ranges of addresses that grow, each answered in a few steps. All addresses are known before."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable


class FirstRanges:
    """Which of the ranges that hold an address came first."""

    def __init__(self, addresses: Iterable[int]) -> None:
        """`addresses`: all that will ever be asked for."""
        self._addresses = sorted(set(addresses))
        self._leaves = len(self._addresses)
        self._none = 1 << 62
        # A binary tree as an array: the children of a node stand at twice its place and behind that.
        self._first = [self._none] * (2 * self._leaves)

    def put(self, number: int, begin: int, end: int) -> None:
        """The range with this number goes from `begin` to `end`, both included; it may be put again and larger."""
        low = bisect_left(self._addresses, begin) + self._leaves
        high = bisect_right(self._addresses, end) + self._leaves
        while low < high:
            if low & 1:
                self._first[low] = min(self._first[low], number)
                low += 1
            if high & 1:
                high -= 1
                self._first[high] = min(self._first[high], number)
            low, high = low >> 1, high >> 1

    def at(self, address: int) -> int | None:
        place, latest = bisect_left(self._addresses, address) + self._leaves, self._none
        while place:
            latest = min(latest, self._first[place])
            place >>= 1
        return None if latest == self._none else latest


class Begins:
    """How many ranges begin in a stretch of addresses."""

    def __init__(self, addresses: Iterable[int]) -> None:
        """`addresses`: all where one will ever begin."""
        self._addresses = sorted(set(addresses))
        # Each place sums up a stretch that ends at it, as long as the lowest bit of its number (a Fenwick tree).
        self._counts = [0] * (len(self._addresses) + 1)

    def add(self, address: int, count: int = 1) -> None:
        place = bisect_left(self._addresses, address) + 1
        while place < len(self._counts):
            self._counts[place] += count
            place += place & -place

    def between(self, first: int, end: int) -> int:
        """From `first` on, before `end`."""
        return self._below(end) - self._below(first)

    def _below(self, address: int) -> int:
        place, count = bisect_left(self._addresses, address), 0
        while place:
            count += self._counts[place]
            place &= place - 1
        return count
