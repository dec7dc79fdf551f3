"""Snapshots that the model itself would have dumped: whole histories, and ones that start late."""

from collections.abc import Iterable
from typing import Any

import pytest

from memviz.allocator.blocks import AllocationFailed, Block, Platform, PoolId
from memviz.trace.model import Action, Trace
from tests.allocator.driver import Driver, MiB
from tests.traces import read


class Recorder(Driver):
    """A driver that keeps what torch.cuda.memory would have written down."""

    def __init__(self, settings: str = "", *, card: int | None = None, platform: Platform = "linux") -> None:
        self.events: list[dict[str, Any]] = []
        self.line = 0
        super().__init__(settings, card=card, platform=platform)

    def _record(self, action: Action, address: int, size: int, stream: int, pool: PoolId) -> None:
        super()._record(action, address, size, stream, pool)
        where = "device_free" if action is Action.OOM else "addr"
        entry = {"action": action.name.lower(), where: address, "size": size, "stream": stream, "pool_id": pool}
        frames = [{"name": "step", "filename": "train.py", "line": self.line}]
        self.events.append({**entry, "time_us": len(self.events), "frames": frames})

    def snapshot(self, last: int | None = None) -> dict[str, Any]:
        """Return a snapshot, or with `last` one whose ring buffer kept only the last events."""
        events = self.events if last is None else self.events[len(self.events) - last :]
        settings = self.allocator.settings.to_snapshot()
        return {"segments": [*self._segments()], "device_traces": [events], "allocator_settings": settings}

    def trace(self, last: int | None = None) -> Trace:
        return read(self.snapshot(last))

    def _segments(self) -> Iterable[dict[str, Any]]:
        for head in self.allocator.segments.values():
            run: list[Block] = []
            for block in [*head.chain(), None]:
                if block is not None and block.mapped:
                    run.append(block)
                elif run:
                    yield _segment(run)
                    run = []


def cached(*mebibytes: int, settings: str = "") -> Recorder:
    """Record blocks of these sizes, each freed before the next."""
    run = Recorder(settings)
    for size in mebibytes:
        run.cached(size * MiB)
    return run


def ran_out() -> Recorder:
    """Record 30 MiB on a card of 100, and a request of 80 that fails."""
    run = Recorder(card=100 * MiB)
    run.malloc(30 * MiB)
    with pytest.raises(AllocationFailed, match="Tried to allocate"):
        run.malloc(80 * MiB)
    return run


def _segment(run: list[Block]) -> dict[str, Any]:
    first = run[0]
    return {
        "device": 0,
        "address": first.address,
        "total_size": sum(block.size for block in run),
        "stream": first.stream,
        "segment_type": "small" if first.pool.is_small else "large",
        "segment_pool_id": first.pool.owner.id,
        "is_expandable": first.expandable is not None,
        "frames": [],
        "blocks": [_block(block) for block in run],
    }


def _block(block: Block) -> dict[str, Any]:
    pending = "active_pending_free" if block.in_use else "inactive"
    state = "active_allocated" if block.allocated else pending
    return {"address": block.address, "size": block.size, "requested_size": block.requested, "state": state}
