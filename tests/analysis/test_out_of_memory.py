"""Each failed allocation."""

from __future__ import annotations

from memviz.analysis.groups import Group, Groups
from memviz.analysis.peak import LiveSet, OutOfMemory, out_of_memory
from tests.traces import MiB, alloc, frame, segment, trace_of

LINE = frame("f", "train.py", 3)


def oom(size: int, device_free: int, **more) -> dict:
    return {"action": "oom", "size": size, "device_free": device_free, "stream": 0, **more}


def test_it_says_what_was_asked_what_was_free_and_what_was_live():
    trace = trace_of([alloc(1, 10, frames=[LINE]), oom(900 * MiB, 3 * MiB, frames=[LINE])], [segment(0, 512, [])])
    held = Groups("site", (Group("/train.py:3 f", "train.py:3 f", 10, 1, 0, 0),), 10, 1)
    then = LiveSet("0", 1, None, live_bytes=10, waiting_bytes=0, reserved_bytes=512, live=held)
    assert out_of_memory(trace, trace.devices[0]) == (OutOfMemory(900 * MiB, 3 * MiB, "train.py:3 f", 0, then),)


def test_each_one_counts_and_one_may_lack_a_stack():
    trace = trace_of([oom(5, 1), alloc(1, 10), oom(7, 0)])
    found = out_of_memory(trace, trace.devices[0], top=0)
    assert [(each.asked_bytes, each.then.live_bytes, each.stack) for each in found] == [(5, 0, None), (7, 10, None)]
    assert {each.site for each in found} == {"no stack recorded"}


def test_a_trace_without_any_has_none():
    trace = trace_of([alloc(1, 10)])
    assert out_of_memory(trace, trace.devices[0]) == ()
