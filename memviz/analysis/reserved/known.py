"""Whether a recording tells what was reserved: a profile of the host does not, nor does a list of events alone."""

from __future__ import annotations

from memviz.analysis.timeline import timeline
from memviz.trace.model import DeviceTrace
from memviz.trace.reserved_bytes import is_reserved_known


def tells_reserved(device: DeviceTrace) -> bool:
    """Of the whole recording: a moment at which nothing is live says nothing of that."""
    line = timeline(device)
    return is_reserved_known(line.peak_bytes, line.reserved_peak_bytes)
