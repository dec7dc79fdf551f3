"""What each allocation turns out to be for. Most of it is known only later than the allocation."""

from __future__ import annotations

from memviz.trace.model import Category

_UNKNOWN = int(Category.UNKNOWN)


class Categories:
    """By the number of the allocation.

    What the forward pass allocates is decided by when it is freed: before backward begins it was temporary,
    later it is an activation. The same holds within backward for what a checkpoint computes again.
    """

    def __init__(self) -> None:
        self.of = bytearray()
        self._undecided: set[int] = set()

    def allocated(self, category: Category, *, may_be_kept: bool) -> None:
        """The next number's."""
        if may_be_kept:
            self._undecided.add(len(self.of))
        self.of.append(category)

    def freed(self, number: int) -> None:
        if self.of[number] == _UNKNOWN:
            self.of[number] = Category.TEMPORARY
        self._undecided.discard(number)

    def backward_goes_on(self) -> None:
        """What is alive of the forward pass now was kept for it."""
        for number in self._undecided:
            if self.of[number] == _UNKNOWN:
                self.of[number] = Category.ACTIVATION
        self._undecided.clear()

    def know(self, number: int, category: Category) -> None:
        self.of[number] = category

    def is_known_as(self, number: int, category: Category) -> bool:
        return self.of[number] == category
