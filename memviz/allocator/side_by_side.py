"""Many settings of one long recording, tried in several processes: each is a replay of its own, and needs only reading.

A helper is a plain `python -c`, since a copy of this process would copy its threads' locks, and multiprocessing would
run the program of whoever asked once more. It gets what replays of figures read, and then one settings after another.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

from memviz.allocator.as_recorded import known
from memviz.allocator.replayer import Progress, Source
from memviz.allocator.settings import Settings
from memviz.allocator.tried import Tried, tried_with
from memviz.allocator.what_if import CardMemory

WORTH_HELP = 200_000
"""Events. A helper takes half a second to begin, in which this process replays as many."""
_MOST_HELPERS = 3
"""Beside this process. Each holds the recording's columns, some 40 bytes an event."""
_ONE_SEARCH = threading.Lock()
"""Of many visitors' searches one has helpers; the others go on alone, as every one did before."""
_HELPER = "from memviz.allocator.side_by_side import help_out; help_out()"


def tried_side_by_side(
    source: Source,
    wanted: Sequence[Settings],
    card: CardMemory | None,
    overhead_bytes: int,
    progress: Progress | None = None,
    *,
    helpers: int | None = None,
) -> list[Tried]:
    """In the order of `wanted`, whoever tried them. `helpers` is how many processes more; by default as many as pay."""
    work = _Work(source, list(wanted), card, overhead_bytes)
    count = _helpers_that_pay(source, len(wanted)) if helpers is None else helpers
    if not count or not _ONE_SEARCH.acquire(blocking=False):
        work.do_rest(progress)
        return work.in_order()
    try:
        with _helped(work, count):
            work.do_rest(progress)
    finally:
        _ONE_SEARCH.release()
    # What a helper had begun when it ended is left.
    work.do_rest(progress)
    return work.in_order()


def _helpers_that_pay(source: Source, settings: int) -> int:
    if len(source.device.events) < WORTH_HELP:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, settings - 1, _MOST_HELPERS)


@dataclass
class _Work:
    source: Source
    wanted: list[Settings]
    card: CardMemory | None
    overhead_bytes: int
    left: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    done: dict[int, Tried] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in range(len(self.wanted)):
            self.left.put(number)

    def next(self) -> int | None:
        try:
            return self.left.get_nowait()
        except queue.Empty:
            return None

    def do_rest(self, progress: Progress | None) -> None:
        while (number := self.next()) is not None:
            part = self._part(progress)
            self.done[number] = tried_with(self.source, self.wanted[number], self.card, self.overhead_bytes, part)

    def _part(self, progress: Progress | None) -> Progress | None:
        """What helpers have done meanwhile counts too."""
        if progress is None:
            return None
        tell, count = progress, len(self.wanted)
        return lambda done, total: tell(min(len(self.done) * total + done, count * total), count * total)

    def in_order(self) -> list[Tried]:
        return [self.done[number] for number in range(len(self.wanted))]


@contextmanager
def _helped(work: _Work, count: int) -> Iterator[None]:
    """What is under way there is waited for; where this process gives up, it is ended at once."""
    processes = list(_started(count))
    threads: list[threading.Thread] = []
    try:
        # Whether the model is exact for this recording decides what is said of its own settings: known once, for all.
        order = pickle.dumps((_bare(known(work.source)), work.card, work.overhead_bytes), pickle.HIGHEST_PROTOCOL)
        for process in processes:
            threads.append(threading.Thread(target=_feed, args=(process, order, work), daemon=True))
            threads[-1].start()
        yield
        for thread in threads:
            thread.join()
    finally:
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join()
        for process in processes:
            _closed(process)


def _started(count: int) -> Iterator[subprocess.Popen[bytes]]:
    """As many as this system lets start."""
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    with suppress(OSError):
        for _ in range(count):
            yield subprocess.Popen(
                [sys.executable, "-c", _HELPER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )


def _closed(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        with suppress(OSError):
            cast(IO[bytes], stream).close()
    process.wait()


def _feed(process: subprocess.Popen[bytes], order: bytes, work: _Work) -> None:
    """Until nothing is left. What a helper that ended did not do is put back."""
    asks, answers = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    number: int | None = None
    try:
        # What could not be written is tried once more where they close, and cannot be written then either.
        with asks, answers:
            asks.write(order)
            while (number := work.next()) is not None:
                pickle.dump(work.wanted[number], asks)
                asks.flush()
                work.done[number] = pickle.load(answers)
    except (OSError, EOFError, pickle.UnpicklingError):
        if number is not None:
            work.left.put(number)


def _bare(source: Source) -> Source:
    """With no more than replays of figures read: no stacks, no texts, and nothing that was computed for others."""
    bare = copy(source)
    bare.freed  # noqa: B018 - worked out here, once
    events = source.device.events
    columns = {name: getattr(events, name) for name in ("action", "address", "size", "stream")}
    device = SimpleNamespace(events=_Columns(**columns))
    bare.device, bare.trace = cast(Any, device), cast(Any, SimpleNamespace(pools=source.trace.pools))
    return bare


class _Columns(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.action)


def help_out() -> None:
    """A helper's whole life: it ends when nobody asks any more."""
    asks, answers = sys.stdin.buffer, sys.stdout.buffer
    source, card, overhead_bytes = pickle.load(asks)
    while True:
        try:
            settings = pickle.load(asks)
        except EOFError:
            return
        pickle.dump(tried_with(source, settings, card, overhead_bytes, None), answers)
        answers.flush()
