"""A second count of a snapshot, from its raw events and segments: no line of `memviz` has a part in it.

It is written for clarity and not for speed: plain loops over plain dicts.
"""

import io
import pickle
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NoReturn

WORKSPACES = ("getNewWorkspace", "getCurrentCUDABlas", "CUDABlasLtWorkspace")
WORKSPACE_SIZE = 8_519_680
ACTIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")


class _PlainValues(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a snapshot holds plain values, and no {module}.{name}")


@dataclass(eq=False)
class Allocation:
    size: int
    start: int
    """Event of the allocation; -1 if before the recording."""
    end: int
    """Event that completes the free; the number of events if never freed."""
    frames: list[dict[str, Any]] = field(default_factory=list)
    address: int = 0

    @cached_property
    def names(self) -> list[str]:
        return [str(frame.get("name", "")) for frame in self.frames]

    def has(self, *parts: str) -> bool:
        return any(part in name for name in self.names for part in parts)

    @cached_property
    def in_forward(self) -> bool:
        return any(name in ("forward", "_call_impl", "_wrapped_call_impl") for name in self.names)

    @cached_property
    def in_backward(self) -> bool:
        files = [str(frame.get("filename", "")) for frame in self.frames]
        return self.has("torch::autograd::Engine", "autograd::Node") or any("/torch/autograd/" in one for one in files)

    @property
    def in_step(self) -> bool:
        return "step" in self.names

    @property
    def is_of_cache(self) -> bool:
        return any("cache" in f"{frame.get('name')} {frame.get('filename')}".lower() for frame in self.frames)

    @property
    def place(self) -> str:
        """model.py:39 forward: the innermost line of the person's own code."""
        for frame in self.frames:
            path = str(frame.get("filename", ""))
            if path.endswith(".py") and not any(part in path for part in ("site-packages", "/lib/python", "<")):
                return f"{path.rsplit('/', 1)[-1]}:{frame['line']} {frame['name']}"
        return ""

    @cached_property
    def is_workspace(self) -> bool:
        return self.size == WORKSPACE_SIZE or self.has(*WORKSPACES)

    @cached_property
    def is_cast(self) -> bool:
        return self.has("at::autocast::cached_cast")

    def live_after(self, event: int) -> bool:
        return self.start <= event < self.end


@dataclass(eq=False)
class Raw:
    events: list[dict[str, Any]]
    allocations: list[Allocation]
    """Allocations in the order of their allocs, those from before the recording first."""
    segments: list[dict[str, Any]]
    live: list[int]
    """Live bytes before the first event, and after each."""
    reserved: list[int]

    @cached_property
    def peak(self) -> tuple[int, int]:
        """Bytes, and the first event after which they are live; -1 where they are before the first."""
        most = max(self.live)
        return most, self.live.index(most) - 1

    def live_after(self, event: int) -> list[Allocation]:
        return [one for one in self.allocations if one.live_after(event)]


@cache
def read_raw(path: Path) -> Raw:
    """The first device that has events, or the only one."""
    root = _PlainValues(io.BytesIO(path.read_bytes())).load()
    traces = root.get("device_traces", [])
    number = next((place for place, events in enumerate(traces) if events), 0)
    events = traces[number] if traces else []
    segments = [one for one in root["segments"] if one.get("device", 0) == number]
    allocations = _allocations(events, segments)
    change = Counter[int]()
    for one in allocations:
        change[max(one.start, -1)] += one.size
        change[one.end] -= one.size
    live, now = [], 0
    for event in range(-1, len(events)):
        now += change[event]
        live.append(now)
    return Raw(events, allocations, segments, live, _reserved(events, segments))


def _blocks(segments: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """Return the active blocks of all segments by address."""
    blocks = []
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] in ACTIVE:
                blocks.append((block.get("address", address), block))
            address += block["size"]
    return blocks


def _requested(block: dict[str, Any]) -> int:
    if "requested_size" in block:
        return int(block["requested_size"])
    return int(block["history"][0]["real_size"]) if block.get("history") else int(block["size"])


def _allocations(events: list[dict[str, Any]], segments: list[dict[str, Any]]) -> list[Allocation]:
    opened: dict[int, Allocation] = {}
    before: list[Allocation] = []
    begun: list[Allocation] = []
    for number, event in enumerate(events):
        address = event.get("addr", 0)
        if event["action"] == "alloc":
            opened[address] = Allocation(event["size"], number, len(events), event.get("frames", []), address)
            begun.append(opened[address])
        elif event["action"] == "free_completed":
            known = opened.pop(address, None)
            if known is None:
                before.append(Allocation(event["size"], -1, number))
            else:
                known.end = number
    for address, block in _blocks(segments):
        if address not in opened:
            frames = block.get("frames") or (block["history"][0].get("frames", []) if block.get("history") else [])
            before.append(Allocation(_requested(block), -1, len(events), frames))
    return before + begun


def _reserved(events: list[dict[str, Any]], segments: list[dict[str, Any]]) -> list[int]:
    signs = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}
    changes = [signs.get(event["action"], 0) * event["size"] for event in events]
    now = sum(segment["total_size"] for segment in segments) - sum(changes)
    reserved = [now]
    for change in changes:
        now += change
        reserved.append(now)
    return reserved


def activations(raw: Raw) -> list[Allocation]:
    """Return the allocations live at the peak that the next backward needs.

    They are freed before another forward or an optimizer step. Weights in half precision are recognized by their
    sizes: there are no more casts of a size than weights of twice that size.
    """
    event = raw.peak[1]
    others = (one for one in raw.allocations if one.start > event and one.frames and not one.in_backward)
    until = min((one.start for one in others if one.in_step or one.in_forward), default=len(raw.events))
    found = [
        one
        for one in raw.live_after(event)
        if one.start >= 0 and one.frames and not (one.in_backward or one.in_step or one.is_workspace)
        and one.end <= until
    ]  # fmt: skip
    copies = autocast_copies(raw)
    return [one for one in found if one not in copies]


@cache
def autocast_copies(raw: Raw) -> set[Allocation]:
    """Return the copies of weights that autocast holds at the peak."""
    made = [one for one in raw.live_after(raw.peak[1]) if one.start >= 0 and one.in_forward and not one.in_backward]
    if not made:
        return set()
    first = min(one.start for one in made)
    there = Counter(one.size for one in raw.allocations if one.start < first <= one.end)
    casts = Counter(one.size for one in made if one.is_cast)
    return {one for one in made if one.is_cast and casts[one.size] <= there[2 * one.size]}


def layers(raw: Raw, held: list[Allocation]) -> tuple[int, bool, list[Allocation]]:
    """Return the number of layers in the forward before the peak, whether their sizes are equal, and their allocations.

    Most stacks come once a layer, and the others a few times; what comes before and behind comes once.
    """
    event = raw.peak[1]
    first = min(one.start for one in held)
    forward = [one for one in raw.allocations if first <= one.start <= event and one.in_forward and not one.in_backward]
    last, copies = max(one.start for one in forward), autocast_copies(raw)
    live = (one for one in raw.allocations if first <= one.start <= last < one.end)
    kept = [one for one in live if one.frames and not one.is_workspace and one not in copies]
    counts = Counter(len(group) for group in group_by_stack(kept).values() if len(group) > 1)
    count = counts.most_common(1)[0][0]
    of_layers = {stack for stack, group in group_by_stack(kept).items() if len(group) % count == 0}
    groups = [group for stack, group in group_by_stack(held).items() if stack in of_layers]
    is_equal = all(len(group) % count == 0 and _repeats([one.size for one in group], count) for group in groups)
    return count, is_equal, [one for group in groups for one in group]


def _repeats(sizes: list[int], count: int) -> bool:
    each = len(sizes) // count
    return all(sizes[at : at + each] == sizes[:each] for at in range(0, len(sizes), each))


def group_by_stack(allocations: list[Allocation]) -> dict[tuple[Any, ...], list[Allocation]]:
    groups: dict[tuple[Any, ...], list[Allocation]] = defaultdict(list)
    for one in allocations:
        groups[tuple((f.get("filename"), f.get("name"), f.get("line")) for f in one.frames)].append(one)
    return groups
