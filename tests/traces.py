"""Small traces written by hand: the events first, the segments where a test needs them."""

from typing import Any

from memviz.trace.intern import Interner
from memviz.trace.model import About, DeviceTrace, Trace
from memviz.trace.snapshot import read_snapshot

MiB = 1 << 20


def event(action: str, addr: int, size: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, **more}


def alloc(addr: int, size: int, **more: Any) -> dict[str, Any]:
    return event("alloc", addr, size, **more)


def free(addr: int, size: int, **more: Any) -> list[dict[str, Any]]:
    """Both events of a free that no other stream delays."""
    return [event("free_requested", addr, size, **more), event("free_completed", addr, size, **more)]


def frame(name: str, filename: str = "train.py", line: int = 1) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


def block(address: int, size: int, requested: int | None = None, state: str = "active_allocated", **more: Any) -> dict:
    requested_size = size if requested is None else requested
    return {"address": address, "size": size, "requested_size": requested_size, "state": state, "frames": [], **more}


def segment(address: int, size: int, blocks: list[dict], **more: Any) -> dict[str, Any]:
    """Gaps between the blocks are filled with free ones, so that they tile the segment."""
    tiles: list[dict] = []
    at = address
    for each in [*sorted(blocks, key=lambda b: b["address"]), None]:
        upto = address + size if each is None else each["address"]
        if upto > at:
            tiles.append(block(at, upto - at, 0, "inactive"))
        if each is not None:
            tiles.append(each)
            at = each["address"] + each["size"]
    kind = "small" if size <= 2 * MiB else "large"
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "stream": 0,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": tiles,
        **more,
    }


def snapshot(events: list[Any], segments: list[dict] | None = None, **more: Any) -> dict[str, Any]:
    """A snapshot of one device; lists among the events (from `free`) are flattened."""
    flat = [one for each in events for one in (each if isinstance(each, list) else [each])]
    return {"segments": segments or [], "device_traces": [flat], **more}


def trace_of(events: list[Any], segments: list[dict] | None = None, **more: Any) -> Trace:
    return read(snapshot(events, segments, **more))


def ranges(*given: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Annotations of ranges, of which each has a name and the times of its start and its end."""
    return [
        {"name": name, "stage": stage, "device": 0, "time_us": time_us}
        for name, begin, end in given
        for stage, time_us in (("START", begin), ("END", end))
    ]


def device_of(*events: Any, segments: list[dict] | None = None) -> DeviceTrace:
    return trace_of(list(events), segments).devices[0]


def pairs_of(*traces: Trace) -> list[tuple[Trace, DeviceTrace]]:
    """Each trace with its first device, as comparisons take them."""
    return [(trace, trace.devices[0]) for trace in traces]


def read(root: Any) -> Trace:
    return read_snapshot(root, About("measured", source="hand-made"), Interner())
