"""PyTorch's history of allocations, switched on and always off again.

Releases differ in its arguments, which are chosen by the names that the function itself takes: later ones can clear
what an earlier recording left behind.

The history is one for the whole process, and so is its ring buffer: when that is full, the first events are lost.
"""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from memviz.allocator.context import OUTSIDE_FACT
from memviz.errors import UsageError
from memviz.memory import children_memory
from memviz.runner.measure.accelerator import Accelerator, driver_bytes, is_out_of_memory
from memviz.runner.record.log import Counts, counts_of
from memviz.trace.memviz_labels import ChildMemory
from memviz.trace.model import Events, HostBytes

StackKind = Literal["python", "all", "none"]

BYTES_PER_EVENT = 2048
"""Host memory per event, in torch's buffer and again as Python objects of a snapshot. Torch says several KB
where stacks are long and shared by few events; training repeats its stacks."""
FEWEST_EVENTS = 100_000
MOST_EVENTS = 5_000_000

_TRIES = 3
_NOTED = "_heard_by_memviz"

_watched: dict[Callable[..., object], list[Callable[[], None]]] = {}
"""Callbacks by the function that attaches observers. Torch never removes an observer, so there is one per
process and accelerator, and recordings come and go behind it."""
_on: list[str] = []


@dataclass(frozen=True)
class HistorySnapshot:
    snapshot: dict[str, Any]
    counts: Counts | None
    """None where torch does not count allocations (XPU), or where they went on while it was taken."""


def ring_size(available_bytes: int | None = None) -> int:
    """Events to keep: a quarter of this machine's free memory at most. Torch's buffer grows only as it is filled."""
    free = _available_bytes() if available_bytes is None else available_bytes
    return max(FEWEST_EVENTS, min(MOST_EVENTS, free // 4 // BYTES_PER_EVENT))


def is_recording() -> bool:
    return bool(_on)


class HostSampler:
    """Resident size of this process, its children's own memory and torch's pinned bytes, sampled by a thread."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self._rows: list[tuple[int, int, int]] = []
        """Time in µs, resident bytes, pinned bytes."""
        self._seconds = _SECONDS_BETWEEN_SAMPLES
        self.children = ChildMemory()
        self._look_at_children = 0.0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        def run() -> None:
            self.sample()
            while not self._over.wait(self._seconds):
                self.sample()

        # A predicted card has no time that a sample could be placed at.
        if self._accelerator.clock_us is None and _STATM.exists():
            self._thread = threading.Thread(target=run, name="memviz host memory", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def sample(self) -> None:
        if self._thread is None:
            return
        resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        pinned = 0
        with suppress(Exception):
            pinned = self._accelerator.api.host_memory_stats_as_nested_dict()["allocated_bytes"]["current"]
        self._rows.append((time.time_ns() // 1000, resident, int(pinned)))
        if (begun := time.monotonic()) >= self._look_at_children:
            seen = ChildMemory(*children_memory())
            self.children = max(self.children, seen, key=lambda one: one.bytes or 0)
            # The system walks their page tables, which takes long for many large ones.
            took = time.monotonic() - begun
            self._look_at_children = begun + max(_SECONDS_BETWEEN_CHILDREN, _LOOKS_SHARE * took)
        if len(self._rows) >= _MOST_SAMPLES:
            pairs = zip(self._rows[::2], self._rows[1::2], strict=False)
            self._rows = [max(pair, key=lambda row: row[1]) for pair in pairs]
            self._seconds *= 2

    def over(self, events: Events) -> HostBytes | None:
        """Return the samples over these events; None without samples, or without times of the events."""
        if not self._rows or not len(events) or not events.time_us.any():
            return None
        when, resident, pinned = np.array(sorted(self._rows), dtype=np.int64).T
        event = np.searchsorted(np.maximum.accumulate(events.time_us), when, side="right")
        unknown = np.zeros_like(event)
        return HostBytes.typed(event, resident, pinned, unknown, unknown).thinned(event)


_STATM = Path("/proc/self/statm")
_SECONDS_BETWEEN_SAMPLES = 0.05
_SECONDS_BETWEEN_CHILDREN = 1.0
_LOOKS_SHARE = 100
"""At most one hundredth of the time is spent on them."""
_MOST_SAMPLES = 1 << 14


class RecordedHistory:
    """On from `start` to `stop`; `stop` may be called any number of times, and has to be."""

    def __init__(
        self,
        accelerator: Accelerator,
        *,
        stacks: StackKind = "python",
        max_entries: int | None = None,
        device: int | None = None,
    ) -> None:
        self.accelerator = accelerator
        self.stacks = stacks
        self.max_entries = ring_size() if max_entries is None else max_entries
        if self.max_entries < 1:
            raise UsageError("The history must hold at least one event.")
        self.device = device
        self.at_out_of_memory: HistorySnapshot | None = None
        """State at the latest out-of-memory error, taken before the error was raised."""
        self._counts_then: tuple[Counts | None, ...] = ()
        self.when_out_of_memory: Callable[[HistorySnapshot], None] | None = None
        self.is_on = False
        self.host = HostSampler(accelerator)
        self._outside: dict[int, list[tuple[int, str]]] = {}
        """Bytes that the driver counted beyond PyTorch's segments at each snapshot, by device."""

    def start(self) -> None:
        if _on:
            raise UsageError("A recording is already on; PyTorch has one history per process.")
        self._switch(None)
        _on.append(self.accelerator.kind)
        self.is_on = True
        try:
            self._switch("all")
            self._observe()
            self.host.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Off, and the buffers cleared: the next recording must not begin with this one's events."""
        if not self.is_on:
            return
        self.is_on = False
        self.host.stop()
        _on.clear()
        attach = self.accelerator.attach_observer
        observers = _watched.get(attach, []) if attach else []
        if self._ran_out in observers:
            observers.remove(self._ran_out)
        try:
            self._switch(None)
        except Exception:
            # A device that has failed refuses this too; its error is being raised already.
            return
        except BaseException:
            # Ctrl-C during the call must end the history too.
            with suppress(Exception):
                self._switch(None)
            raise

    def silence(self) -> None:
        """Switch off a history that the program enabled, if torch can tell: it would record until the process ends."""
        is_on = self.accelerator.history_is_on
        if is_on is not None and is_on():
            self._switch(None)

    def take(self) -> HistorySnapshot:
        """With counts that fit it, or with none where other threads go on allocating all the while."""
        for _ in range(_TRIES):
            before = self.counts()
            snapshot: dict[str, Any] = self.accelerator.api.memory._snapshot()
            if self.counts() == before:
                break
        else:
            before = None
        with suppress(Exception):
            self.host.sample()
            reserved: Counter[int] = Counter()
            for segment in snapshot["segments"]:
                reserved[segment["device"]] += segment["total_size"]
            for device, size in reserved.items():
                if (counted := driver_bytes(self.accelerator, device)) is not None:
                    self._outside.setdefault(device, []).append((max(0, counted[0] - size), counted[1]))
        return HistorySnapshot(snapshot, before)

    @property
    def facts(self) -> dict[str, str]:
        """Memory outside PyTorch's allocator as facts of the trace, if the driver or the system reported it."""
        texts = []
        for device, readings in self._outside.items():
            sizes = [size for size, _ in readings]
            count = f"{len(sizes)} reading{'s' * (len(sizes) > 1)} {readings[-1][1]}"
            texts.append(f"{device}: {min(sizes)} to {max(sizes)} bytes, {count}")
        return {**({OUTSIDE_FACT: "; ".join(texts)} if texts else {}), **self.host.children.facts}

    def take_last(self) -> HistorySnapshot:
        """The moment when memory ran out, if nothing was allocated since: what the error let go of is still there."""
        ran_out = self.at_out_of_memory
        return ran_out if ran_out is not None and self.ended_out_of_memory() else self.take()

    def ended_out_of_memory(self) -> bool:
        """On whichever GPU that was, and whichever is this thread's: none of them was given anything since."""
        if self.at_out_of_memory is None:
            return False
        pairs = zip(self._counts_then, self._counts_everywhere(), strict=False)
        return all(then is None or now is None or then.allocs == now.allocs for then, now in pairs)

    def failed(self, error: BaseException) -> None:
        """Handle an error wherever it is caught: libraries that run out of memory notify no observer.

        Only the first time counts, because the propagating error frees more and more.
        """
        if not self.is_on or error.__dict__.get(_NOTED) or not is_out_of_memory(error):
            return
        error.__dict__[_NOTED] = True
        if not self.ended_out_of_memory():
            self._ran_out()

    def counts(self) -> Counts | None:
        return counts_of(self.accelerator.api, self.device)

    def _counts_everywhere(self) -> tuple[Counts | None, ...]:
        """Return the counts of each GPU; None for one that cannot be queried, such as a failed one."""
        counts: list[Counts | None] = []
        for number in range(self.accelerator.count()):
            try:
                counts.append(counts_of(self.accelerator.api, number))
            except RuntimeError:
                counts.append(None)
        return tuple(counts)

    def lost(self, snapshot: HistorySnapshot) -> int:
        """The largest buffer of a device that was full, in events; 0 where no event was lost."""
        longest = max((len(events) for events in snapshot.snapshot.get("device_traces", [])), default=0)
        return longest if longest >= self.max_entries else 0

    def _switch(self, enabled: str | None) -> None:
        record = self.accelerator.api.memory._record_memory_history
        if enabled is None:
            record(enabled=None)
            return
        stacks = "all" if self.stacks == "all" else "python"
        newer = {"clear_history": True, "global_record_annotations": True}
        more = {name: value for name, value in newer.items() if name in inspect.signature(record).parameters}
        context = None if self.stacks == "none" else "all"
        record(enabled=enabled, context=context, stacks=stacks, max_entries=self.max_entries, **more)

    def _observe(self) -> None:
        attach = self.accelerator.attach_observer
        if attach is None:
            return
        if attach not in _watched:
            observers = _watched[attach] = []

            def tell(*_: int) -> None:
                for observer in tuple(observers):
                    observer()

            attach(tell)
        _watched[attach].append(self._ran_out)

    def _ran_out(self) -> None:
        """Runs inside the failing allocation: an error in here would take the place of OutOfMemoryError."""
        try:
            self.at_out_of_memory = None
            self._counts_then = self._counts_everywhere()
            self.at_out_of_memory = self.take()
            if self.when_out_of_memory is not None:
                self.when_out_of_memory(self.at_out_of_memory)
        except Exception:
            return


def _available_bytes() -> int:
    """Return the free memory of this machine, or of its container if that is less."""
    free = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")] if hasattr(os, "sysconf") else []
    group = Path("/sys/fs/cgroup")
    try:
        most, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(max(0, most - used))
    except (OSError, ValueError):
        pass
    return min(free, default=FEWEST_EVENTS * BYTES_PER_EVENT * 4)
