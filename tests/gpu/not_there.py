"""For the tests of this folder: a card that is not there; torch's tensors of the processor count as its own."""

from __future__ import annotations

from typing import Any

from tests.runner.fake_gpu import TorchsGpu


class NotThere(TorchsGpu):
    def __init__(self, **known: Any) -> None:
        super().__init__(**known)
        self.fraction = 1.0

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.fraction = fraction
