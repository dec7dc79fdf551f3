"""The peak, the live set at any event, and failed requests."""

from hypothesis import given

from memviz.analysis.groups import Group, Groups
from memviz.analysis.peak import FailedRequest, LiveSet, at, failed_requests, peak
from memviz.analysis.timeline import timeline
from tests.analysis.replays import sound_traces
from tests.real import each_real_file, expected, read_once, requires_real
from tests.traces import MiB, alloc, block, event, frame, free, segment, trace_of

LINE = frame("f", "train.py", 3)


def test_the_peak_is_the_live_set_at_its_first_event():
    events = [
        alloc(1, 10, frames=[LINE], time_us=100),
        event("free_requested", 1, 10, time_us=101),
        alloc(2, 30, frames=[LINE], time_us=102),
        event("free_completed", 1, 10, time_us=103),
    ]
    final = [segment(0, 512, [block(0x2, 30, 30), block(0x100, 100, 60)])]
    trace = trace_of(events, final)
    site = Group("/train.py:3 f", "train.py:3 f", 40, 2, 0, 2)
    before = Group("no stack recorded", "no stack recorded", 60, 1)
    assert peak(trace, trace.devices[0]) == LiveSet(
        device="0",
        event=2,
        time_us=102,
        live_bytes=100,
        waiting_bytes=10,
        reserved_bytes=512,
        live=Groups("site", (before, site), 100, 3),
    )
    without_events = trace_of([], [segment(0, 512, [block(0, 256, 200)])])
    found = peak(without_events, without_events.devices[0])
    assert (found.event, found.time_us, found.live_bytes, found.reserved_bytes) == (-1, None, 200, 512)


def test_the_live_set_at_an_event_by_size():
    trace = trace_of([alloc(1, 10), free(1, 10), alloc(2, 30)])
    found = at(trace, trace.devices[0], 1, "size", top=1)
    assert (found.live_bytes, found.waiting_bytes) == (10, 10)
    assert [group.label for group in found.live.groups] == ["10 B each"]


@given(sound_traces())
def test_the_live_set_adds_up_to_the_timeline(trace):
    device = trace.devices[0]
    for e in range(-1, len(device.events)):
        found = at(trace, device, e)
        assert found.live_bytes == found.live.bytes == int(timeline(device).live[e + 1])


@requires_real
@each_real_file
def test_real_peaks_add_up_to_the_bytes_counted_independently(path):
    trace, counted = read_once(path), expected()[path.name]
    for row in counted["devices"]:
        device = next(each for each in trace.devices if each.device == row["dev"])
        found = peak(trace, device, top=5)
        assert sum(group.bytes for group in found.live.groups) + found.live.rest_bytes == row["peak_active"]


def test_failed_requests_in_order_with_or_without_a_stack():
    oom = {"action": "oom", "stream": 0}
    first = {**oom, "size": 900 * MiB, "device_free": 3 * MiB, "frames": [LINE]}
    trace = trace_of([first, alloc(1, 10), {**oom, "size": 7, "device_free": 0}], [segment(0, 512, [])])
    found = failed_requests(trace, trace.devices[0])
    assert found == (
        FailedRequest(0, None, 900 * MiB, 3 * MiB, live_bytes=0, reserved_bytes=512, site="train.py:3 f"),
        FailedRequest(2, None, 7, 0, live_bytes=10, reserved_bytes=512, site=""),
    )
    assert failed_requests(trace, trace.devices[0], slice(-1, None)) == found[1:]
