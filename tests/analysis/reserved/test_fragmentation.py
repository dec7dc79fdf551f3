from pathlib import Path

import numpy as np
import pytest

from memviz.analysis.segments import Fragmentation, fragmentation_at, fragmentation_over
from memviz.analysis.timeline import timeline
from tests.real import each_real_file, read_once, requires_real
from tests.simulated_allocator import Allocator
from tests.traces import MiB, alloc, block, read, segment, trace_of

BASE = 0x7000_0000_0000

# A large segment half in use, one that is wholly free, and an expandable one with a hole.
MIXED = read(
    [
        segment(
            BASE,
            20 * MiB,
            [block(BASE, 8 * MiB, 7 * MiB), block(BASE + 10 * MiB, 2 * MiB, None, "active_pending_free")],
        ),
        segment(2 * BASE, 12 * MiB, []),
        segment(3 * BASE, 40 * MiB, [block(3 * BASE, 15 * MiB)], is_expandable=True),
    ]
)


def check_sum(figures: Fragmentation, reserved: int) -> None:
    parts = figures.live + figures.waiting + figures.cached + figures.rounding
    assert parts == figures.reserved == reserved
    assert (figures.unknown, figures.outside) == (0, 0)


def test_each_byte_has_one_name() -> None:
    assert fragmentation_at(MIXED, MIXED.devices[0], -1) == Fragmentation(
        event=-1,
        reserved=72 * MiB,
        live=22 * MiB,
        waiting=2 * MiB,
        rounding=1 * MiB,
        free_segments=12 * MiB,
        free_remainders=10 * MiB,
        free_pages=25 * MiB,
        unknown=0,
        outside=0,
    )


def test_a_segment_that_cannot_be_placed_is_named_unknown() -> None:
    # Both segments claim the same addresses.
    trace = read([segment(BASE, 2 * MiB, []), segment(BASE, 2 * MiB, [])])
    figures = fragmentation_at(trace, trace.devices[0], -1)
    assert (figures.reserved, figures.free_segments, figures.unknown) == (4 * MiB, 2 * MiB, 2 * MiB)


def test_live_bytes_without_a_segment_are_outside() -> None:
    trace = trace_of([alloc(BASE, 1000)])
    figures = fragmentation_at(trace, trace.devices[0], 0)
    assert (figures.reserved, figures.live, figures.outside) == (0, 0, 1000)


@pytest.mark.parametrize("expandable", [False, True])
def test_figures_add_up_to_reserved_at_every_event(expandable: bool) -> None:
    allocator = Allocator(expandable=expandable)
    sizes = [700, 3 * MiB, 25 * MiB, 1_000_000, 11 * MiB]
    held = [allocator.malloc(size, stream) for stream in (0, 7) for size in sizes]
    for address in held[::2]:
        allocator.free(address, later=address == held[2])
    allocator.empty_cache()
    trace = read(allocator.snapshot())
    device = trace.devices[0]
    for figures in fragmentation_over(trace, device, range(-1, len(device.events))):
        check_sum(figures, timeline(device).reserved[figures.event + 1])


@requires_real
@each_real_file
def test_figures_of_real_files_add_up(path: Path) -> None:
    trace = read_once(path)
    for device in trace.devices:
        for figures in fragmentation_over(trace, device, np.linspace(-1, len(device.events) - 1, 12).astype(int)):
            check_sum(figures, timeline(device).reserved[figures.event + 1])
            assert figures.live + figures.waiting == timeline(device).live[figures.event + 1]
