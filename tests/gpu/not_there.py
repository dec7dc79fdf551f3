"""For the tests of this folder: a card that is not there; torch's tensors of the processor count as its own."""

from __future__ import annotations

import time
from typing import Any

from tests.runner.fake_gpu import FakeGpu


class Moment:
    """As torch.cuda.Event, by the processor's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, later: Moment) -> float:
        return 1000 * (later.at - self.at)


class NotThere(FakeGpu):
    Event = Moment

    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self.fraction = 1.0

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.fraction = fraction

    def adopt(self, address: int, size: int) -> None:
        super().adopt(address, size)
        self._note()

    def _now(self) -> dict[str, int]:
        adopted = sum(self.adopted.values())
        return {name: size + adopted for name, size in super()._now().items()}
