"""A lock for a few holders that alternates between owners.

Owners with queued turns form a ring; an owner moves to its end after a turn, and a new owner joins there. The next turn
goes to the first owner with the fewest turns under way. An owner of fifty turns waits for each other owner's next one,
and a new name gains nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

_ASKED_EVERY_SECONDS = 0.2


class FairLock:
    """A lock for `at_once` holders, fair between owners. An empty owner name is treated as a new owner each time."""

    def __init__(self, at_once: int = 1) -> None:
        self._at_once = at_once
        self._changed = threading.Condition()
        self._ring: dict[object, list[Turn]] = {}
        """Queued turns of each owner; the owner who is next comes first."""
        self._inside: list[Turn] = []

    def of(self, owner: str) -> Turn:
        """Return a turn of the owner, which can be entered and left repeatedly."""
        return Turn(self, owner)

    @contextmanager
    def turn(
        self,
        tell: Callable[[int], None] | None = None,
        give_up: Callable[[], bool] | None = None,
        *,
        owner: str = "",
        place: Turn | None = None,
    ) -> Iterator[bool]:
        """Yield True once the turn has come, False if it gave up. `tell` is called with the number of turns before it.

        `place` is a turn that may be queued already; without it a new one is made.
        """
        turn = Turn(self, owner) if place is None else place
        try:
            yield self.wait(turn, tell, give_up)
        finally:
            self.leave(turn)

    def wait(
        self, turn: Turn, tell: Callable[[int], None] | None = None, give_up: Callable[[], bool] | None = None
    ) -> bool:
        self.enqueue(turn)
        told = -1
        while give_up is None or not give_up():
            with self._changed:
                if self._try_enter(turn):
                    return True
                before = self._turns_before(turn)
                if before == told or tell is None:
                    self._changed.wait(_ASKED_EVERY_SECONDS if give_up else None)
                    continue
            tell(before)
            told = before
        return False

    def enqueue(self, turn: Turn) -> None:
        """Queue the turn without waiting, for callers that poll `try_enter`. A queued turn keeps its place."""
        with self._changed:
            waiting = self._ring.setdefault(turn.key, [])
            if turn not in waiting:
                waiting.append(turn)

    def try_enter(self, turn: Turn) -> bool:
        with self._changed:
            return self._try_enter(turn)

    def is_used(self) -> bool:
        """Return True if any turn is held."""
        with self._changed:
            return bool(self._inside)

    def waiting(self, owner: object) -> int:
        """Return the number of queued turns of an owner."""
        with self._changed:
            return len(self._ring.get(owner, ()))

    def leave(self, turn: Turn) -> None:
        """Release the turn, or withdraw it if still queued."""
        with self._changed:
            if turn in self._inside:
                self._inside.remove(turn)
                if turn.key in self._ring:
                    self._ring[turn.key] = self._ring.pop(turn.key)
            else:
                self._dequeue(turn)
            self._changed.notify_all()

    def _try_enter(self, turn: Turn) -> bool:
        if len(self._inside) >= self._at_once or self._ring[self._in_order()[0]][0] is not turn:
            return False
        self._dequeue(turn)
        self._inside.append(turn)
        # There may be more places, and the next waiter did not wake for this one.
        self._changed.notify_all()
        return True

    def _in_order(self) -> list[object]:
        """Return the waiting owners, those with the fewest turns under way first."""
        under_way = Counter(turn.key for turn in self._inside)
        return sorted(self._ring, key=under_way.__getitem__)

    def _turns_before(self, turn: Turn) -> int:
        """Count the turns before this one: held ones, its owner's earlier ones, and as many of each other owner."""
        mine, owners = self._ring[turn.key].index(turn), self._in_order()
        at = owners.index(turn.key)
        others = (min(len(self._ring[owner]), mine + (place < at)) for place, owner in enumerate(owners) if place != at)
        return mine + sum(others) + len(self._inside)

    def _dequeue(self, turn: Turn) -> None:
        waiting = self._ring[turn.key]
        waiting.remove(turn)
        if not waiting:
            del self._ring[turn.key]


class Turn:
    """One owner's place in the line, with the methods of a semaphore."""

    def __init__(self, lock: FairLock, owner: str) -> None:
        self.owner = owner
        self.key: object = owner or object()
        self._lock = lock

    def acquire(self) -> None:
        self._lock.wait(self)

    def release(self) -> None:
        self._lock.leave(self)

    def __enter__(self) -> Turn:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, at: TracebackType | None) -> None:
        self.release()
