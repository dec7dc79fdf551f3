"""Search for the settings that need the least memory: the few that matter, each replayed, best first.

Long recordings are replayed in several processes. A helper is a plain `python -c`: a fork would copy locks of other
threads, and multiprocessing would run the caller's program again.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

from memviz.allocator.caching import rounding, segment_size
from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.event_replay import Progress, part_of
from memviz.allocator.recorded_replay import ensure_replayed
from memviz.allocator.replay_result import Figures
from memviz.allocator.replayer import CardMemory, Replayer, always_had_room
from memviz.allocator.settings import NEWEST, SINCE, Release, Settings
from memviz.trace.model import Action, reserved_after
from memviz.trace.reserved import SLOTS, MiB
from memviz.units import bytes_text, percent_text


@dataclass(frozen=True)
class SettingsTrial(Figures):
    """Peaks are those in memory without end; retries and running out are on the card, where there is one."""

    text: str
    """To paste behind `PYTORCH_CUDA_ALLOC_CONF=`; empty for PyTorch's defaults."""
    is_recorded: bool
    """These are the settings of the recording."""
    is_as_recorded: bool
    """And replayed like this they do what is recorded, to the address."""
    reserved_on_card_bytes: int
    """Peak on the card, where there is one."""
    smallest_card: CardMemory | None
    """Smallest of the usual sizes that suffices; None where none is large enough."""

    @property
    def fits(self) -> bool:
        return self.oom is None


def try_settings(
    replayer: Replayer, settings: Settings, card: CardMemory | None, overhead_bytes: int, progress: Progress | None
) -> SettingsTrial:
    """Return the figures of these settings, on the card and without one."""
    # All of them start from a fresh layout, so that no one is charged with a cache that the others do not have.
    on_card = free = replayer.figures(settings, card, afresh=True, progress=part_of(progress, 0, 3))
    if card is not None and not always_had_room(on_card):
        free = replayer.figures(settings, afresh=True, progress=part_of(progress, 1, 3))
    smallest = replayer.smallest_card(
        settings, overhead_bytes=overhead_bytes, afresh=True, free=free, progress=part_of(progress, 2, 3)
    )
    is_recorded = settings == replayer.recorded
    # Neither start nor end of memory makes a difference to what is recorded.
    is_as_recorded = (
        is_recorded
        and bool(ensure_replayed(replayer).is_exact)
        and not replayer.layout.segments
        and not replayer.releases.was_short
        and (card is None or always_had_room(on_card))
    )
    return SettingsTrial(
        **vars(replace(free, retries=on_card.retries, oom=on_card.oom)),
        text=settings.to_text(),
        is_recorded=is_recorded,
        is_as_recorded=is_as_recorded,
        reserved_on_card_bytes=on_card.peak_reserved_bytes,
        smallest_card=smallest,
    )


WORTH_HELP = 200_000
"""Events. A helper takes half a second to begin, in which this process replays as many."""
_MOST_HELPERS = 3
"""Processes besides this one. Each holds the recording's columns, some 40 bytes an event."""
_ONE_SEARCH = threading.Lock()
"""Helpers serve one visitor's search at a time; the other searches run alone."""
_HELPER = "from memviz.allocator.search import help_out; help_out()"


def try_in_processes(
    replayer: Replayer,
    wanted: Sequence[Settings],
    card: CardMemory | None,
    overhead_bytes: int,
    progress: Progress | None = None,
    *,
    helpers: int | None = None,
) -> list[SettingsTrial]:
    """Return the trials in the order of `wanted`. `helpers` is how many extra processes; None: as many as pay."""
    work = _Work(replayer, list(wanted), card, overhead_bytes)
    count = _helpers_that_pay(replayer, len(wanted)) if helpers is None else helpers
    if count and _ONE_SEARCH.acquire(blocking=False):
        try:
            with _running_helpers(work, count):
                work.do_rest(progress)
        finally:
            _ONE_SEARCH.release()
    # All of it without helpers, else what one had begun when it ended.
    work.do_rest(progress)
    return [work.done[number] for number in range(len(wanted))]


def _helpers_that_pay(replayer: Replayer, settings: int) -> int:
    if len(replayer.device.events) < WORTH_HELP:
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, settings - 1, _MOST_HELPERS)


@dataclass
class _Work:
    replayer: Replayer
    wanted: list[Settings]
    card: CardMemory | None
    overhead_bytes: int
    left: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    done: dict[int, SettingsTrial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in range(len(self.wanted)):
            self.left.put(number)

    def next(self) -> int | None:
        try:
            return self.left.get_nowait()
        except queue.Empty:
            return None

    def do_rest(self, progress: Progress | None) -> None:
        count = len(self.wanted)

        def tell(done: int, total: int) -> None:
            # Replays by helpers count too.
            if progress is not None:
                progress(min(len(self.done) * total + done, count * total), count * total)

        while (number := self.next()) is not None:
            self.done[number] = try_settings(self.replayer, self.wanted[number], self.card, self.overhead_bytes, tell)


@contextmanager
def _running_helpers(work: _Work, count: int) -> Iterator[None]:
    """Run helpers: wait for their work, or end them at once where this process gives up."""
    processes = list(start_helpers(count, _HELPER))
    threads: list[threading.Thread] = []
    try:
        # Whether the model is exact for this recording decides what is said of its own settings: known once, for all.
        # Helpers get what replays of figures read: no stacks, no texts, and nothing that was computed for others.
        ensure_replayed(work.replayer)
        bare = copy(work.replayer)
        bare.releases  # noqa: B018 - worked out here, once
        events = work.replayer.device.events
        columns = {name: getattr(events, name) for name in ("action", "address", "size", "stream")}
        device = SimpleNamespace(events=_Columns(**columns))
        bare.device, bare.trace = cast(Any, device), cast(Any, SimpleNamespace(pools=work.replayer.trace.pools))
        order = pickle.dumps((bare, work.card, work.overhead_bytes), pickle.HIGHEST_PROTOCOL)
        for process in processes:
            threads.append(threading.Thread(target=_feed_helper, args=(process, order, work), daemon=True))
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
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    cast(IO[bytes], stream).close()
            process.wait()


def start_helpers(count: int, code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start as many processes that run `code` as the system allows, up to `count`."""
    package = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    with suppress(OSError):
        for _ in range(count):
            yield subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )


def _feed_helper(process: subprocess.Popen[bytes], order: bytes, work: _Work) -> None:
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


class _Columns(SimpleNamespace):
    def __len__(self) -> int:
        return len(self.action)


def help_out() -> None:
    """Run a helper process: answer trials until the input ends."""
    asks, answers = sys.stdin.buffer, sys.stdout.buffer
    replayer, card, overhead_bytes = pickle.load(asks)
    while True:
        try:
            settings = pickle.load(asks)
        except EOFError:
            return
        pickle.dump(try_settings(replayer, settings, card, overhead_bytes, None), answers)
        answers.flush()


def _large_segments(mebibytes: int) -> dict[str, int]:
    """PyTorch lets what may be left of a block follow the size of segments."""
    return {"large_segment_size": mebibytes * MiB, "max_non_split_rounding_size": mebibytes * MiB}


_TRIED: tuple[Mapping[str, Any], ...] = (
    {},
    {"expandable_segments": True},
    {"expandable_segments": False},
    {"max_split_size": None},
    # At 20 the segments of 20 MiB, which most tensors share, would not be split either.
    {"max_split_size": 21 * MiB},
    {"max_split_size": 64 * MiB},
    {"max_split_size": 128 * MiB},
    {"max_split_size": 256 * MiB},
    {"max_split_size": 512 * MiB},
    {"roundup_power2_divisions": (4,) * SLOTS},
    {"roundup_power2_divisions": (8,) * SLOTS},
    {"roundup_power2_divisions": (0,) * SLOTS},
    _large_segments(40),
    {"expandable_segments": True, **_large_segments(12)},
)
"""Changes to the recorded settings: those that helped on real recordings, and the ways back."""


@dataclass(frozen=True)
class Search:
    tried: tuple[SettingsTrial, ...]
    """Trials that fit first, then by peak reserved; among equals the recorded settings, then the simplest change."""
    advised: SettingsTrial
    """The simplest of those that are as good as the best, to one in a hundred."""
    advice: str
    """One sentence."""
    is_placed_anew: bool = False
    """The history starts late: for all of them what was live before is placed into empty memory."""

    @property
    def best(self) -> SettingsTrial:
        return self.tried[0]

    @property
    def recorded(self) -> SettingsTrial:
        return next(outcome for outcome in self.tried if outcome.is_recorded)

    @property
    def saved_by(self) -> SettingsTrial | None:
        """Advised settings that avoid the OOM of the recorded settings; None without an OOM or a way around it."""
        return self.advised if self.advised.fits and not self.recorded.fits else None


def search(
    replayer: Replayer,
    card: CardMemory | None = None,
    *,
    also: Settings | None = None,
    release: Release = NEWEST,
    overhead_bytes: int | None = None,
    progress: Progress | None = None,
) -> Search:
    """Only settings that this release knows, and that can change anything in this recording; and `also`.

    `overhead_bytes` are taken from the cards of the usual sizes; without it as much as from `card`.
    """
    if overhead_bytes is None:
        overhead_bytes = card.overhead_bytes if card else OVERHEAD_BYTES
    wanted = list(dict.fromkeys([*settings_to_try(replayer, release), *([also] if also else [])]))
    recorded_peak = int(reserved_after(replayer.device).max())
    tried = try_in_processes(replayer, wanted, card, overhead_bytes, progress)
    # A program can give memory back where no setting would: then a replay is not what is recorded.
    differs = [one.peak_reserved_bytes != recorded_peak for one in tried]
    tried = [replace(one, is_as_recorded=False) if other else one for one, other in zip(tried, differs, strict=True)]
    tried.sort(key=lambda one: (not one.fits, one.peak_reserved_bytes, not one.is_recorded))
    # Fewer keys are easier to explain, to keep and to take out again.
    best = tried[0]
    enough = 1.01 * best.peak_reserved_bytes
    as_good = [outcome for outcome in tried if outcome.fits == best.fits and outcome.peak_reserved_bytes <= enough]
    advised = min(as_good, key=lambda outcome: (not outcome.is_recorded, outcome.text.count(":")))
    advice, is_anew = _advice_sentence(tried, advised, card), bool(replayer.layout.segments)
    return Search(tuple(tried), advised, advice, is_anew)


def settings_to_try(replayer: Replayer, release: Release = NEWEST) -> list[Settings]:
    recorded, largest = replayer.recorded, _largest_segment(replayer)

    def can_matter(settings: Settings) -> bool:
        keys = [part.partition(":")[0] for part in settings.to_text().split(",") if ":" in part]
        most = settings.max_split_size
        # A limit to splitting that no block reaches changes nothing; blocks in segments that expand may grow to it.
        is_idle = most is not None and most > largest and most != recorded.max_split_size
        return all(SINCE.get(key, (0, 0)) <= release for key in keys) and (not is_idle or settings.expandable_segments)

    wanted = dict.fromkeys(replace(recorded, **changes) for changes in _TRIED)
    return [settings for settings in wanted if settings == recorded or can_matter(settings)]


def _largest_segment(replayer: Replayer) -> int:
    """Return the size of the segment for the largest request, an upper bound of block sizes."""
    events, settings = replayer.device.events, replayer.recorded
    requested = int(events.size[events.action == Action.ALLOC].max(initial=1))
    there = max((block.requested for block in replayer.layout.blocks), default=1)
    round_size = rounding(settings.roundup_power2_divisions)
    return segment_size(round_size(max(requested, there)), settings.large_segment_size)


def _advice_sentence(ranked: list[SettingsTrial], advised: SettingsTrial, card: CardMemory | None) -> str:
    recorded = next(outcome for outcome in ranked if outcome.is_recorded)
    name = advised.text or "PyTorch's default settings"
    if card and advised.peak_requested_bytes > card.usable_bytes:
        left = bytes_text(card.usable_bytes)
        return f"No settings can make it fit: the program has more live at its peak than the {left} available."
    if not advised.fits:
        return "None of the settings tried makes it fit: reduce live memory, or use a larger card."
    if not recorded.fits:
        return f"Set {name}: with it this run fits, and with the recorded settings it runs out of memory."
    # Under a limit the cache fills what there is, so what settings need shows without one.
    where = " without a limit" if card else ""
    if advised.is_recorded:
        return f"Keep the settings: none of those tried reserves noticeably less at its peak{where}."
    saved = percent_text(recorded.peak_reserved_bytes - advised.peak_reserved_bytes, recorded.peak_reserved_bytes)
    return f"Set {name}: at its peak it reserves {saved} less than with the recorded settings{where}."
