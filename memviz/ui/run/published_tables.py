"""The published tables, computed once while the page is up: they are the same for everybody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from memviz.runner.jobs.worker_process import rows_of


class PublishedTables:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[str, list[dict[str, Any]]] = {}
        self._computing: dict[str, threading.Lock] = {}

    def rows(self, seed: str) -> Iterator[tuple[list[dict[str, Any]], bool]]:
        """The rows known by now, and whether they are all. Who asks while others compute waits for them."""
        with self._lock:
            computing = self._computing.setdefault(seed, threading.Lock())
        with computing:
            rows = self._done.get(seed)
            if rows is None:
                rows = []
                for row in rows_of(seed):
                    rows.append(row)
                    yield list(rows), False
                self._done[seed] = rows
        yield list(rows), True
