"""Whether anybody still looks at what goes on: what nobody asks after ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Attention:
    """Of all who ask. Whoever waits for news looks all the while, however late a busy machine lets them ask again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looking = 0
        self._last = time.monotonic()

    @contextmanager
    def paid(self) -> Iterator[None]:
        with self._lock:
            self._looking += 1
        try:
            yield
        finally:
            with self._lock:
                self._looking -= 1
                self._last = time.monotonic()

    def missing(self, now: float) -> float:
        """Seconds for which nobody has looked. `now` is of the monotonic clock."""
        with self._lock:
            return 0.0 if self._looking else now - self._last
