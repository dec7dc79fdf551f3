"""Bytes live, waiting and reserved after each event."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.timeline import RunningTotal, Timeline, timeline
from memviz.trace.model import DeviceTrace, Events, State
from tests.analysis.replays import Replay, any_events, any_segments, sound_traces
from tests.real import each_real_file, expected, read_once, requires_real
from tests.traces import alloc, block, event, free, segment, trace_of


def of(*events, segments=None) -> Timeline:
    return timeline(trace_of(list(events), segments).devices[0])


@pytest.mark.parametrize(
    ("events", "segments", "columns"),
    [
        ([alloc(1, 10), free(1, 10)], None, ([0, 10, 10, 0], [0, 0, 10, 0], [0, 0, 0, 0])),
        ([free(0x20, 30)], [(100, 70)], ([100, 100, 70], [0, 30, 0], [512, 512, 512])),
        ([alloc(0x20, 5)], [(100, 70, "active_pending_free")], ([70, 75], [70, 70], [512, 512])),
        ([], [(256, 200)], ([200], [0], [512])),
    ],
    ids=["alloc and free", "live before the first event", "waiting at the end", "no events"],
)
def test_live_waiting_and_reserved_bytes_after_each_event(events, segments, columns):
    final = segments and [segment(0, 512, [block(0x10, *segments[0])])]
    assert of(*events, segments=final) == Timeline(*(np.array(each, dtype=np.int64) for each in columns))


def test_reserved_bytes_are_counted_back_from_the_final_segments():
    events = [event("segment_map", 0, 100), event("segment_unmap", 0, 40), event("segment_alloc", 900, 50)]
    after = of(*events, event("segment_free", 500, 7), segments=[segment(0, 60, []), segment(900, 50, [])])
    assert after.reserved.tolist() == [7, 107, 67, 117, 110]


def test_reserved_bytes_are_never_less_than_nothing_without_final_segments():
    assert of(event("segment_alloc", 0, 100), event("segment_free", 0, 100)).reserved.tolist() == [0, 100, 0]
    assert of(event("segment_alloc", 0, 100)).reserved.tolist() == [0, 100]


@pytest.mark.parametrize(
    ("events", "found"), [([alloc(1, 10), free(1, 10), alloc(2, 10)], (10, 0, 0, 10)), ([free(1, 10)], (10, -1, 10, 0))]
)
def test_the_peak_is_the_first_event_at_the_most_live_bytes_or_before_all(events, found):
    after = of(*events)
    assert (after.peak_bytes, after.peak_event, after.start_bytes, after.end_bytes) == found


def spans(device: DeviceTrace, start: str) -> list[int]:
    """Sums over the rows that have begun and not ended, event by event."""
    rows = lifetimes(device)
    begin = getattr(rows, start)
    return [int(rows.size[(begin <= e) & (rows.end > e)].sum()) for e in range(-1, len(device.events))]


@given(any_events(), any_segments())
def test_every_sum_is_that_of_the_rows_alive(events, segments):
    if not events and not segments:
        return
    device = trace_of(events, segments).devices[0]
    after = timeline(device)
    assert after.live.tolist() == spans(device, "start")
    assert after.waiting.tolist() == spans(device, "free_requested")
    assert min(after.live.min(), after.waiting.min(), after.reserved.min()) >= 0
    assert (after.waiting <= after.live).all()


@given(any_events(), any_segments())
def test_the_end_is_what_a_plain_replay_has_live(events, segments):
    if not events and not segments:
        return
    device = trace_of(events, segments).devices[0]
    replay = Replay(device).run()
    assert timeline(device).end_bytes == sum(life.size for life in replay.lives if life.end == replay.never)


@given(sound_traces())
def test_a_sound_trace_ends_with_its_active_blocks(trace):
    device = trace.devices[0]
    active = device.blocks.state != State.INACTIVE
    assert timeline(device).end_bytes == int(device.blocks.requested[active].sum())
    assert timeline(device).reserved[-1] == int(device.segments.size.sum())


@requires_real
@each_real_file
def test_real_files_have_the_bytes_that_were_counted_independently(path):
    counted = expected()[path.name]
    for device in read_once(path).devices:
        after, number = timeline(device), str(device.device)
        assert after.reserved[-1] == counted["reserved_end"][number]
        assert after.end_bytes == counted["live_end"][number]
        for row in (each for each in counted["devices"] if each["dev"] == device.device):
            assert (after.start_bytes, after.peak_bytes) == (row["init_active"], row["peak_active"])


def rows(device: DeviceTrace, begin: int, end: int) -> Events:
    return Events(**{name: column[begin:end] for name, column in device.events.columns()})


@given(cuts=st.lists(st.integers(1, 1199), max_size=5, unique=True), columns=st.integers(1, 50))
def test_its_peak_is_the_peak_however_the_events_come(cuts, columns):
    events = [each for i in range(600) for each in (alloc(512 * (i % 40), i + 1), free(512 * (i % 40), i + 1))]
    device = trace_of(events).devices[0]
    total = RunningTotal()
    edges = [0, *sorted(cuts), len(device.events)]
    for begin, end in zip(edges, edges[1:], strict=False):
        total.watch(rows(device, begin, end), 7)
    largest = total.largest(columns)
    assert total.events == len(device.events)
    assert 0 < len(largest) <= columns
    assert largest.max() == timeline(device).live[1:].max()


def test_what_was_there_before_is_counted_from_the_lowest_point():
    device = trace_of([free(512, 100), alloc(512, 30), free(512, 30), free(1024, 50)]).devices[0]
    total = RunningTotal()
    total.watch(device.events, 0)
    assert total.largest(100).tolist() == [150]
    assert timeline(device).live.max() == 150


def test_of_several_devices_the_one_with_most_events_is_shown():
    small, large = trace_of([alloc(512, 999)]).devices[0], trace_of([alloc(512, 1), alloc(1024, 2)]).devices[0]
    total = RunningTotal()
    assert total.largest(5).tolist() == []
    total.watch(small.events, 1)
    total.watch(large.events, 2)
    assert (total.events, int(np.max(total.largest(5)))) == (2, 3)
