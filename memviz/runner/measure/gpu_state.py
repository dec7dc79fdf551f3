"""State of this machine's GPUs: which can be measured on, other processes on them, and clock limits.

`python -m memviz.runner.measure.gpu_state` prints the GPUs as JSON in a process of its own, since a driver that was
started holds memory of every card until its process ends.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from memviz.errors import UsageError
from memviz.runner.measure.accelerator import Accelerator, find_accelerator
from memviz.units import bytes_text

_WAITING = ("CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING", "AMD_SERIALIZE_KERNEL")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The second is the name with drivers before 535."""
_HELD_BACK = {
    0x04: "its power limit",
    0x08: "a hardware slowdown",
    0x20: "its temperature",
    0x40: "its temperature (hardware)",
    0x80: "a power brake",
}
_MiB = 1 << 20


class Disturbances:
    """Create before the driver starts: all listed processes are then foreign."""

    def __init__(self, accelerator: Accelerator, environment: Mapping[str, str] = os.environ) -> None:
        self._accelerator = accelerator
        self._environment = environment
        self._listed = accelerator.ask_driver("--query-compute-apps=gpu_uuid,pid,used_memory")

    def notes(self, index: int = 0) -> Iterator[str]:
        """Yield notes on measured seconds; call right after the measurement."""
        card = uuid_of(self._accelerator, index)
        yield from self._others(card)
        yield from self._clock(card)
        for name in _WAITING:
            if self._environment.get(name, "0") not in ("", "0"):
                yield f"{name} is set: every kernel is waited for, so these seconds are longer than without it."

    def _others(self, card: str) -> Iterator[str]:
        rows = [[cell.strip() for cell in line.split(",")] for line in (self._listed or "").splitlines()]
        others = [row[1:] for row in rows if len(row) == 3 and row[0] == card and row[1] != str(os.getpid())]
        if others:
            used_bytes = sum(int(memory) for _, memory in others if memory.isdigit()) * _MiB
            count = "Another process was" if len(others) == 1 else f"{len(others)} other processes were"
            size_text = f" with {bytes_text(used_bytes)}" if used_bytes else ""
            pids = ", ".join(pid for pid, _ in others)
            yield f"{count} on this card{size_text} when the run began (pid {pids}): its seconds may be theirs too."

    def _clock(self, card: str) -> Iterator[str]:
        if not card:
            return
        now, _, top = (self._ask(card, "clocks.sm,clocks.max.sm") or "").partition(",")
        if now.strip().isdigit() and top.strip().isdigit():
            clock = f"{int(now):,} of at most {int(top):,} MHz"
            yield f"The card's clock right after the timing: {clock}.{self._held(card)}"

    def _held(self, card: str) -> str:
        text = next(filter(None, (self._ask(card, name) for name in _REASONS)), "")
        try:
            bits = int(text.strip(), 16)
        except ValueError:
            return ""
        reasons = [reason for bit, reason in _HELD_BACK.items() if bits & bit]
        return f" It was held back by {' and '.join(reasons)}." if reasons else ""

    def _ask(self, card: str, fields: str) -> str | None:
        return self._accelerator.ask_driver(f"--query-gpu={fields}", "-i", card)


def uuid_of(accelerator: Accelerator, index: int) -> str:
    """Return the driver's UUID, since torch numbers GPUs differently; empty where torch does not know it."""
    try:
        uuid = str(accelerator.api.get_device_properties(index).uuid)
    except (AttributeError, RuntimeError):
        return ""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def visible_gpus() -> dict[str, Any]:
    """Their names and the driver's own words for them, or why there is none."""
    try:
        accelerator = find_accelerator()
        accelerator.start()
    except UsageError as error:
        return {"gpus": [], "why": str(error).split(" Recording needs")[0]}
    return {"gpus": gpus_of(accelerator), "why": ""}


def gpus_of(accelerator: Accelerator) -> list[dict[str, str]]:
    """All that can be chosen by a word of the driver's; the first, where there is no such word."""
    gpus = [
        {"name": accelerator.name_of(index), "uuid": uuid_of(accelerator, index)}
        for index in range(accelerator.count())
    ]
    chosen = [gpu for gpu in gpus if gpu["uuid"]] if accelerator.kind == "cuda" else []
    return chosen or gpus[:1]


if __name__ == "__main__":
    json.dump(visible_gpus(), sys.stdout)
