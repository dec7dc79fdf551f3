"""Who may use the device now: one run at a time, in the order asked, whoever asks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Line:
    """A queue for one device. It knows places, not people."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def turn(
        self, tell: Callable[[int], None] | None = None, give_up: Callable[[], bool] | None = None
    ) -> Iterator[bool]:
        """True once it is this one's turn; False if it gave up. `tell` hears how many are before it."""
        me = object()
        with self._changed:
            self._waiting.append(me)
        try:
            yield self._wait(me, tell, give_up)
        finally:
            with self._changed:
                self._waiting.remove(me)
                self._changed.notify_all()

    def _wait(self, me: object, tell: Callable[[int], None] | None, give_up: Callable[[], bool] | None) -> bool:
        told = -1
        while True:
            with self._changed:
                before = self._waiting.index(me)
                if before and before == told:
                    self._changed.wait(timeout=0.2)
                    before = self._waiting.index(me)
            if give_up is not None and give_up():
                return False
            if not before:
                return True
            if tell is not None and before != told:
                tell(before)
            told = before
