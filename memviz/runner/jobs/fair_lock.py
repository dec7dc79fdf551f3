"""Who may use the device now: one at a time, and in turn between those who ask.

Those who wait stand in a ring, each with what they wait for in the order asked. Whoever had a turn goes to its end, and
whoever is new comes in there. So one who asks for fifty turns waits behind each other's next one, and nobody gains by a
new name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class _Place:
    owner: object


class Line:
    """A queue for one device. Nobody in particular, as the empty name, is somebody else each time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ring: dict[object, list[_Place]] = {}
        """By owner, who is next first."""
        self._inside: _Place | None = None

    @contextmanager
    def turn(
        self,
        tell: Callable[[int], None] | None = None,
        give_up: Callable[[], bool] | None = None,
        *,
        owner: str = "",
    ) -> Iterator[bool]:
        """True once it is this one's turn; False if it gave up. `tell` hears how many are before it."""
        me = _Place(owner or object())
        with self._changed:
            self._ring.setdefault(me.owner, []).append(me)
        try:
            yield self._wait(me, tell, give_up)
        finally:
            with self._changed:
                self._leave(me)
                self._changed.notify_all()

    def _wait(self, me: _Place, tell: Callable[[int], None] | None, give_up: Callable[[], bool] | None) -> bool:
        told = -1
        while True:
            if give_up is not None and give_up():
                return False
            with self._changed:
                before = self._before(me)
                if not before:
                    self._take(me)
                    self._inside = me
                    return True
                if before == told:
                    self._changed.wait(timeout=0.2)
                    continue
            if tell is not None:
                tell(before)
            told = before

    def _before(self, me: _Place) -> int:
        """Turns until mine, if nobody else comes: who is inside, my own earlier ones, and as many of each other's."""
        mine = self._ring[me.owner].index(me)
        owners = list(self._ring)
        if self._inside is not None and self._inside.owner in self._ring:
            # They go to the end when they come out.
            owners.remove(self._inside.owner)
            owners.append(self._inside.owner)
        at = owners.index(me.owner)
        others = (min(len(self._ring[owner]), mine + (place < at)) for place, owner in enumerate(owners) if place != at)
        return mine + sum(others) + (self._inside is not None)

    def _take(self, me: _Place) -> None:
        places = self._ring[me.owner]
        places.remove(me)
        if not places:
            del self._ring[me.owner]

    def _leave(self, me: _Place) -> None:
        if self._inside is not me:
            self._take(me)
            return
        self._inside = None
        if me.owner in self._ring:
            self._ring[me.owner] = self._ring.pop(me.owner)
