"""The properties of any input bytes: a clear refusal, or a Trace whose bytes add up in every view."""

from __future__ import annotations

import io
import time

import numpy as np

from memviz.analysis.callstacks.stack_tree import stack_tree
from memviz.analysis.groups import GROUPINGS
from memviz.analysis.health import health
from memviz.analysis.lifetimes import lifetimes, live_rows
from memviz.analysis.peak import peak
from memviz.analysis.segments import fragmentation_at, segments_at
from memviz.analysis.timeline import timeline
from memviz.errors import MemvizError
from memviz.results.summary import summary_result
from memviz.trace.limits import Limits, MiB
from memviz.trace.load import read_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.trace.write import write_pickle

LIMITS = Limits(memory_bytes=128 * MiB, unpacked_bytes=16 * MiB, seconds=20, events=100_000)
MOST_SECONDS = 5.0
_MOST_WORDS = 2000


class Finding(Exception):
    """A property of the answer does not hold."""


def check(raw: bytes, *, is_quick: bool = False) -> bool:
    """Read the bytes and return whether they are a trace; `is_quick` skips the analyses.

    Raises:
        Finding: Something does not hold; any other exception is a finding too.
    """
    started = time.thread_time()
    try:
        trace = read_trace(io.BytesIO(raw), "a file", len(raw), limits=LIMITS)
        if not is_quick:
            for device in trace.devices[:20]:
                adds_up(trace, device)
            health(trace)
            summary_result(trace)
            again(trace)
    except MemvizError as error:
        if "needs more memory than" in str(error) or len(str(error)) > _MOST_WORDS:
            raise Finding(str(error)[:200]) from None
        return False
    finally:
        if time.thread_time() - started > MOST_SECONDS:
            raise Finding(f"It took {time.thread_time() - started:.1f} s of processor time.")
    return True


def adds_up(trace: Trace, device: DeviceTrace) -> None:
    line, lives = timeline(device), lifetimes(device)
    at_peak = live_rows(device, line.peak_event)
    _same("live at the peak", int(lives.size[at_peak].sum()), line.peak_bytes)
    for by in GROUPINGS:
        found = peak(trace, device, by).live
        _same(f"groups by {by}", sum(group.bytes for group in found.groups), line.peak_bytes)
    _same("icicle", int(stack_tree(trace, device, at_peak, most_nodes=50).bytes[0]), line.peak_bytes)
    if (line.live < 0).any() or (line.reserved < 0).any() or (lives.size < 0).any():
        raise Finding("Less than nothing is live or reserved.")
    for event in (-1, line.peak_event, len(device.events) - 1):
        segments_at(trace, device, event)
        fragmentation_at(trace, device, event)


def again(trace: Trace) -> None:
    """Written and read again it is the same."""
    out = io.BytesIO()
    write_pickle(trace, out)
    read = read_trace(io.BytesIO(out.getvalue()), "a file", None)
    if len(read.devices) > len(trace.devices):
        raise Finding("Written again it has more devices.")
    mine = {device.name: device for device in trace.devices}
    for device in read.devices:
        if not np.array_equal(device.events.size, mine[device.name].events.size):
            raise Finding("Written again its events have other sizes.")


def _same(what: str, found: int, expected: int) -> None:
    if found != expected:
        raise Finding(f"{what}: {found} bytes instead of {expected}.")
