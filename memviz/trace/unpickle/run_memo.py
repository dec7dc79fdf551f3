"""The memo as far as runs fill it: arrays, because runs fill millions of places."""

from __future__ import annotations

import numpy as np

from memviz.trace.model import Ints4, Ints8

NOTHING, ROW, STACK, TEXT, POOL, FRAME = range(6)


class RunMemo:
    """Kind and code of every place. Also remembers what references outside of runs were found to mean."""

    def __init__(self) -> None:
        self.kind = np.zeros(1024, dtype=np.uint8)
        self.code = np.zeros(1024, dtype=np.int32)

    def at(self, number: int) -> tuple[int, int]:
        if number >= len(self.kind):
            return NOTHING, 0
        return int(self.kind[number]), int(self.code[number])

    def reserve(self, length: int) -> None:
        if length > len(self.kind):
            grown, used = max(length, 2 * len(self.kind)), len(self.kind)
            kind, code = np.zeros(grown, dtype=np.uint8), np.zeros(grown, dtype=np.int32)
            kind[:used], code[:used] = self.kind, self.code
            self.kind, self.code = kind, code

    def put(self, places: Ints8 | int, kind: int, codes: Ints4 | int) -> None:
        self.kind[places] = kind
        self.code[places] = codes
