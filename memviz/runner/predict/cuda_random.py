"""Random number generators of a card: they have seeds and states, and the numbers that they draw are unknown."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from memviz.runner.predict.compat import Patches, StandIn, without_functions
from memviz.runner.predict.named_devices import CUDA_0, NamedDevices
from memviz.runner.predict.program_frames import first_of_library

_RealGenerator: Any = torch._C.Generator
_FIRST_SEED = 67280421310721
"""Seed of a generator that was never seeded."""
_STATE_BYTES = 16
_SEED_BITS = 64
_SAMPLER = "torch/utils/data/sampler.py"
IN_ORDER = "data that a generator of the card shuffles are taken in their order"


class CardGenerator(_RealGenerator):  # type: ignore[misc]
    """To torch a generator of the host; its attributes are those of the card's."""

    device = CUDA_0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._seed, self._offset = _FIRST_SEED, 0

    def manual_seed(self, seed: int) -> Self:
        self._seed, self._offset = int(seed) % (1 << _SEED_BITS), 0
        return self

    def seed(self) -> int:
        self.manual_seed(secrets.randbits(_SEED_BITS - 11))
        return self._seed

    def initial_seed(self) -> int:
        return self._seed

    def get_offset(self) -> int:
        return self._offset

    def set_offset(self, offset: int) -> Self:
        if offset % 4:
            raise RuntimeError("offset must be a multiple of 4")
        self._offset = int(offset)
        return self

    def get_state(self) -> Tensor:
        """Seed and offset, eight bytes each, on the host."""
        whole = self._seed.to_bytes(8, "little") + self._offset.to_bytes(8, "little")
        with without_functions():
            # Checkpoints ask for it at every call.
            return torch.frombuffer(bytearray(whole), dtype=torch.uint8)

    def set_state(self, new_state: Tensor) -> Self:
        if new_state.dtype != torch.uint8 or new_state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if new_state.numel() != _STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
        whole = bytes(new_state.tolist())
        self._seed, self._offset = (int.from_bytes(part, "little") for part in (whole[:8], whole[8:]))
        return self

    def clone_state(self) -> CardGenerator:
        twin = type(self)()
        twin._seed, twin._offset = self._seed, self._offset
        return twin

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, new_state: CardGenerator) -> Self:
        self._seed, self._offset = new_state._seed, new_state._offset
        return self

    def __reduce__(self) -> Any:
        return _rebuild, (self._seed, self._offset)


def _rebuild(seed: int, offset: int) -> CardGenerator:
    return CardGenerator().manual_seed(seed).set_offset(offset)


class AnyGenerator(metaclass=StandIn):
    """In place of `torch.Generator`."""

    real = _RealGenerator
    named: ClassVar[NamedDevices]

    def __new__(cls, device: Any = "cpu") -> Any:
        return CardGenerator() if cls.named.is_own(device, numbers=True) else _RealGenerator(device)


def follow_generators(patches: Patches, named: NamedDevices) -> Callable[[], None]:
    """Return the function that makes the card's generators; torch does so when CUDA is first used."""
    kind = type("Generator", (AnyGenerator,), {"named": named, "__module__": "torch"})
    patches.put(torch, "Generator", kind)
    patches.put(torch.cuda, "default_generators", ())

    def begin() -> None:
        card: Any = torch.cuda
        card.default_generators = tuple(CardGenerator() for _ in range(named.count))

    return begin


def is_for_a_sampler() -> bool:
    """Return whether one of torch's samplers draws the order of its data."""
    frame = first_of_library()
    return frame is not None and Path(frame.f_code.co_filename).as_posix().endswith(_SAMPLER)


def check_generator(generator: Any, out_is_ours: bool) -> None:
    """Raise torch's error unless the generator is on the device of the result."""
    is_ours = isinstance(generator, CardGenerator)
    if is_ours != out_is_ours:
        wanted, given = ("cuda", "cpu") if out_is_ours else ("cpu", "cuda")
        raise RuntimeError(f"Expected a '{wanted}' device type for generator but found '{given}'")
