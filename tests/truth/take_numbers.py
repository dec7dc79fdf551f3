"""`python -m tests.truth.take_numbers snapshot.pickle`: the events of a recording as numbers, and nothing else."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from textwrap import fill

from memviz.trace.load import load_trace
from memviz.trace.model import Action, DeviceTrace


def numbers(device: DeviceTrace) -> Iterator[int]:
    """Frees of what was there before the first event are left out."""
    live: dict[int, int] = {}
    count = 0
    events = device.events
    rows = zip(events.action.tolist(), events.size.tolist(), events.address.tolist(), strict=True)
    for action, size, address in rows:
        if action == Action.ALLOC:
            count += 1
            live[address] = count
            yield size
        elif action == Action.FREE_COMPLETED and address in live:
            yield -live.pop(address)


if __name__ == "__main__":
    (device,) = load_trace(sys.argv[1]).devices
    print(fill(" ".join(map(str, numbers(device))), 150))
