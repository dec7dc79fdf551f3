"""What the model would have written into the history, as columns."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from memviz.allocator.blocks import Block, PoolId
from memviz.trace.model import Action, Ints8

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
_FREED = bytes((Action.FREE_REQUESTED, Action.FREE_COMPLETED))


class ModelHistory:
    """Grows by one entry a call of `add`, which is what an allocator's `record` wants."""

    __slots__ = ("action", "address", "cause", "now", "pool", "size", "stream")

    def __init__(self) -> None:
        self.action = array("B")
        self.address = array("Q")
        self.size = array("q")
        self.stream = array("Q")
        self.pool: list[PoolId] = []
        self.cause = array("q")
        self.now = -1
        """The recorded event that is being replayed; every entry remembers it as its cause."""

    def __len__(self) -> int:
        return len(self.action)

    def add(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        self.action.append(action)
        self.address.append(address)
        self.size.append(size)
        self.stream.append(stream)
        self.pool.append(pool)
        self.cause.append(self.now)

    def add_free(self, event: int, block: Block) -> None:
        """Asked for, and complete with the next event."""
        pool = block.pool.owner.id
        self.action.extend(_FREED)
        self.address.extend((block.address, block.address))
        self.size.extend((block.requested, block.requested))
        self.stream.extend((block.stream, block.stream))
        self.pool.extend((pool, pool))
        self.cause.extend((event, event + 1))

    def add_columns(
        self, *, action: Bytes, address: Words, size: Ints8, stream: Words, pool: Sequence[PoolId], cause: Ints8
    ) -> None:
        self.action.frombytes(action.tobytes())
        self.address.frombytes(address.tobytes())
        self.size.frombytes(size.tobytes())
        self.stream.frombytes(stream.tobytes())
        self.pool.extend(pool)
        self.cause.frombytes(cause.tobytes())

    def entries(self, first: int) -> list[tuple[int, int, int]]:
        """Action, address and size of the entries from `first` on."""
        return list(zip(self.action[first:], self.address[first:], self.size[first:], strict=True))

    def set_causes(self, first: int, events: range) -> None:
        """Of the entries from `first` on."""
        self.cause[first : first + len(events)] = array("q", events)

    def causes(self) -> Ints8:
        return np.array(self.cause, dtype=np.int64)
