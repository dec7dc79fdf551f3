"""Detection of who released memory, and of the amount of memory, from a recording."""

from __future__ import annotations

from typing import Any

import pytest

from memviz.allocator.recorded_replay import ensure_replayed
from memviz.allocator.recorded_requests import Memory, ReleaseCauses
from memviz.allocator.replay import replay, source_of
from memviz.allocator.settings import parse_settings
from memviz.allocator.what_if import figures_on
from memviz.trace.model import Action
from tests.allocator.driver import MiB
from tests.allocator.recording import Recorder

EXPANDABLE = parse_settings("expandable_segments:True")


class Unframed(Recorder):
    """A recorder like torch's with context="state": the history has no stacks."""

    def snapshot(self, last: int | None = None) -> dict[str, Any]:
        found = super().snapshot(last)
        for event in found["device_traces"][0]:
            event.pop("frames", None)
        return found


def looped(run: Recorder, sizes: tuple[int, ...], *, empties: bool = False) -> Recorder:
    held = run.malloc(20 * MiB)
    for size in sizes:
        run.line = 1
        run.cached(size * MiB)
        if empties:
            run.line = 2
            run.allocator.empty_cache()
    run.free(held)
    return run


def freed(run: Recorder) -> ReleaseCauses:
    return ensure_replayed(source_of(run.trace())).freed


SIZES = (30, 50, 40, 60, 40, 30, 50)


@pytest.mark.parametrize("kind", [Recorder, Unframed])
def test_a_program_that_empties_its_cache_did_so_where_memory_was_not_short(kind: type[Recorder]) -> None:
    found = freed(looped(kind(), (60, *SIZES, 60, 20), empties=True))
    assert (found.was_short, found.memory, found.retries) == (False, None, 0)
    assert len(found.emptied) == 10


def test_what_is_cached_and_would_have_served_shows_that_the_program_freed_it() -> None:
    """30 MiB are cached, 30 requested, and a new segment is made, although no more was reserved at other times."""
    run = looped(Unframed(), (30, 30, 30), empties=True)
    found = freed(run)
    assert (len(found.emptied), found.retries) == (3, 0)
    assert figures_on(source_of(run.trace()), EXPANDABLE).peak_reserved_bytes == 60 * MiB


@pytest.mark.parametrize("kind", [Recorder, Unframed])
def test_a_card_that_was_short_bounds_what_the_process_had(kind: type[Recorder]) -> None:
    found = freed(looped(kind(card=100 * MiB), SIZES))
    assert (len(found.short), found.retries, found.memory) == (1, 1, Memory(100 * MiB, 160 * MiB - 1))


def test_a_recording_that_ran_out_says_what_it_had() -> None:
    run = Recorder(card=100 * MiB)
    run.malloc(30 * MiB)
    with pytest.raises(Exception, match="Tried to allocate"):
        run.malloc(80 * MiB)
    assert freed(run).memory == Memory(100 * MiB, 100 * MiB)


def test_stacks_of_the_malloc_say_that_memory_was_short_whatever_was_reserved_before() -> None:
    """Other processes may have taken memory in between; then the amount is not reported."""
    run = Recorder(card=200 * MiB)
    for size in (90, 100):
        run.cached(size * MiB)
    run.line = 2
    run.allocator.empty_cache()
    run.line = 1
    run.allocator.device.memory = 100 * MiB
    run.cached(60 * MiB)
    run.malloc(80 * MiB)
    found = freed(run)
    assert (len(found.emptied), found.retries, found.memory) == (1, 1, None)


def test_other_settings_empty_the_cache_where_the_program_did() -> None:
    run = looped(Unframed(), (60, *SIZES), empties=True)
    ours = replay(run.trace(), settings=EXPANDABLE)
    assert (ours.reserved_end_bytes, ours.peak_reserved_bytes) == (20 * MiB, 80 * MiB)
    ours_actions = ours.trace.devices[0].events.action
    assert ([event["action"] for event in run.events].count("segment_free")) == 8
    assert int((ours_actions == Action.SEGMENT_UNMAP).sum()) == 8
