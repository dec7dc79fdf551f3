"""Random inputs: the same numbers on every device, and none at all on meta."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class RandomInputs:
    """Draws on the CPU and copies, because each kind of device has a generator of its own."""

    def __init__(self, device: torch.device, seed: int, micro_batch: int = 0) -> None:
        self.device = device
        self._generator = torch.Generator("cpu").manual_seed(1_000_003 * seed + micro_batch)

    def normal(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return self.made(shape, dtype, lambda: self._draw(shape).to(dtype))

    def uniform(self, *shape: int, dtype: torch.dtype) -> Tensor:
        return self.made(
            shape, dtype, lambda: torch.rand(shape, generator=self._generator, dtype=torch.float32, device="cpu")
        )

    def whole(self, below: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return self.made(
            shape, dtype, lambda: torch.randint(below, shape, generator=self._generator, dtype=dtype, device="cpu")
        )

    def made(self, shape: tuple[int, ...], dtype: torch.dtype, make: Callable[[], Tensor]) -> Tensor:
        """Whatever `make` gives on the CPU; on meta only its shape, and nothing is computed."""
        if self.device.type == "meta":
            return torch.empty(shape, dtype=dtype, device=self.device)
        with torch.device("cpu"):
            return make().to(self.device, dtype)

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float32, device="cpu")
