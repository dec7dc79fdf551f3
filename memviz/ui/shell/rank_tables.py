"""Tables of ranks that visitors brought, in memory, under keys that nobody can guess."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass

from memviz.ranks.together import Ranks

MOST = 32
"""Of all visitors; what was not looked at for longest goes first. A row takes some 8 KB."""
MOST_RANKS = 65_536
"""Of all of them together."""


@dataclass(frozen=True)
class NamedRanks:
    name: str
    job: Ranks


class RankTables:
    def __init__(self) -> None:
        self._kept: OrderedDict[str, NamedRanks] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: str, job: Ranks) -> str:
        key = f"ranks-{secrets.token_urlsafe(18)}"
        with self._lock:
            self._kept[key] = NamedRanks(name, job)
            while len(self._kept) > 1 and (len(self._kept) > MOST or self._ranks > MOST_RANKS):
                self._kept.popitem(last=False)
        return key

    @property
    def _ranks(self) -> int:
        return sum(len(named.job.ranks) for named in self._kept.values())

    def get(self, key: str) -> NamedRanks | None:
        with self._lock:
            named = self._kept.get(key)
            if named is not None:
                self._kept.move_to_end(key)
            return named

    def drop(self, key: str) -> None:
        with self._lock:
            self._kept.pop(key, None)
