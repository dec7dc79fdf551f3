"""Which pages are open somewhere: each holds a line to the server (Gradio's heartbeat) as long as it is."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_REMEMBERED = 10_000


class OpenPages:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._here: Counter[str] = Counter()
        self._left: dict[str, float] = {}

    @contextmanager
    def of(self, page: str) -> Iterator[None]:
        with self._lock:
            self._here[page] += 1
        try:
            yield
        finally:
            with self._lock:
                self._here[page] -= 1
                if self._here[page] <= 0:
                    del self._here[page]
                    self._left.pop(page, None)
                    self._left[page] = time.monotonic()
                    while len(self._left) > _MOST_REMEMBERED:
                        self._left.pop(next(iter(self._left)))

    def is_here(self, page: str) -> bool:
        with self._lock:
            return page in self._here

    def was_here(self, page: str) -> bool:
        with self._lock:
            return page in self._here or page in self._left

    def is_gone(self, page: str, seconds: float) -> bool:
        """It was here, and left so long ago. Of a program that never held a line nothing is known."""
        with self._lock:
            left = self._left.get(page)
            return page not in self._here and left is not None and time.monotonic() - left >= seconds

    def forget(self, page: str) -> None:
        with self._lock:
            self._left.pop(page, None)
