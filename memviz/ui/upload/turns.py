"""Turns at what only a few may do at once: whoever has fewest goes first, so that nobody is kept out by another."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType


class Turns:
    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._changed = threading.Condition()
        self._waiting: list[Turn] = []
        self._working: Counter[str] = Counter()

    def of(self, visitor: str) -> Turn:
        return Turn(self, visitor)

    def take(self, turn: Turn) -> None:
        with self._changed:
            self._waiting.append(turn)
            self._changed.wait_for(lambda: self._free > 0 and self._next() is turn)
            self._waiting.remove(turn)
            self._free -= 1
            self._working[turn.visitor] += 1
            # More may be free, and the next in line slept through it.
            self._changed.notify_all()

    def give(self, turn: Turn) -> None:
        with self._changed:
            self._free += 1
            self._working[turn.visitor] -= 1
            self._working += Counter()
            self._changed.notify_all()

    def _next(self) -> Turn:
        """Of those who wait longest, one of a visitor with the least under way."""
        return min(self._waiting, key=lambda turn: self._working[turn.visitor])


class Turn:
    """One visitor's place in the line; as a semaphore, it can be let go of while there is nothing to do."""

    def __init__(self, turns: Turns, visitor: str) -> None:
        self.visitor = visitor
        self._turns = turns

    def acquire(self) -> None:
        self._turns.take(self)

    def release(self) -> None:
        self._turns.give(self)

    def __enter__(self) -> Turn:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.release()
