"""A snapshot changed at random ends in a clear refusal, or in a trace whose bytes add up in every view.

`--hypothesis-profile thorough` tries three thousand changes instead of sixty.
"""

import gzip
import io
import json
import pickle
import pickletools
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache, reduce
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.traces import alloc, block, event, frame, free, segment, snapshot

LIMITS = Limits(memory_bytes=128 * MiB, unpacked_bytes=16 * MiB, seconds=20, events=100_000)
BASE = 0x7000_0000_0000


def snapshots() -> list[Any]:
    """Small snapshots that together have every part of the format."""
    frames = [frame("forward", "model.py", 3), frame("main", "/home/me/train.py", 9), frame("at::_ops::add", "", 0)]
    shown = {"time_us": 5, "compile_context": "N/A", "user_metadata": "step 1", "pool_id": (0, 3)}
    whole = snapshot(
        [
            event("segment_alloc", BASE, 2 * MiB, frames=frames[:1], **shown),
            alloc(BASE, 1000, frames=frames, forward_frames=["a text"], **shown),
            *free(BASE, 1000, frames=frames[1:]),
            {"action": "oom", "device_free": 5 * MiB, "size": 20 * MiB, "stream": 0},
            event("annotate", BASE, 0, user_metadata={"a": 1}),
            event("something new", BASE, 1),
        ],
        [segment(BASE, 2 * MiB, [block(BASE + 512, 512, 400, frames=frames)])],
        allocator_settings={"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "roundup_power2_divisions": {"1": 0}},
        external_annotations=[
            {"name": "ProfilerStep#1", "stage": stage, "device": 0, "time_us": at}
            for stage, at in (("START", 1), ("END", 9))
        ],
        host_traces=[[alloc(BASE, 5)]],
        host_segments=[segment(BASE, 1024, [])],
        unknown=[{"more": None, "real": 1.5}],
    )
    named = {
        **snapshot([alloc(BASE, 5), *free(BASE, 5)]),
        "memviz": {
            "version": 1,
            "about": {"origin": "predicted", "on": "a card", "facts": {"model": "x"}},
            "modules": [""],
            "devices": [
                {"kind": "gpu", "device": 0, "events": {"category": "AAAA", "module": "A" * 16, "phase": "AAAA"}}
            ],
        },
    }
    rows = [
        each
        for i in range(9)
        for each in (
            alloc(BASE + 512 * i, 300 + i, time_us=i, frames=frames[: i % 3], compile_context="N/A"),
            *free(BASE + 512 * i, 300 + i, time_us=i, frames=frames[: i % 2], compile_context="N/A"),
        )
    ]
    old = {"size": 512, "state": "active_allocated", "history": [{"addr": 1, "real_size": 5, "frames": frames}]}
    bare = [{"device": 0, "address": BASE, "total_size": 512, "stream": 0, "blocks": [old]}]
    return [whole, named, snapshot(rows, [segment(BASE, 2 * MiB, [])]), bare]


FILES = [
    *(pickle.dumps(each, protocol) for each in snapshots() for protocol in (0, 2, 4)),
    *(json.dumps(each, default=str).encode() for each in snapshots()),
]
STRANGE = [None, True, -1, 0, 2**31, 2**62, 2**63, 2**64, 2**400, 1.5, float("nan"), "", "alloc", "oom", (), [], {}]
EDITS = {
    "remove": lambda piece, _: b"",
    "repeat": lambda piece, given: piece * (2 + len(given) ** 2),
    "insert": lambda piece, given: given + piece,
    "replace": lambda piece, given: given + piece[len(given) :],
    "flip a bit": lambda piece, given: bytes([piece[0] ^ (1 << len(given) % 8)]) + piece[1:] if piece else piece,
}
OPERATIONS = [code.code.encode("latin-1") for code in pickletools.opcodes]
"""Alone they fit between the operations of a pickle, where most random bytes end the reading at once."""


@cache
def places(raw: bytes) -> tuple[int, ...]:
    """Offsets of the operations of a pickle, or of all bytes."""
    if raw[:1] in (b"{", b"["):
        return tuple(range(len(raw)))
    return tuple(at for _, _, at in pickletools.genops(raw) if at is not None)


@st.composite
def changed_files(draw: st.DrawFn) -> bytes:
    """Return one of the files after one to three changes, between operations or anywhere, as it is or compressed."""
    raw = draw(st.sampled_from(FILES))
    offsets = places(raw) if draw(st.booleans()) else range(len(raw))
    # From the end, since a change moves what follows.
    for at in sorted(draw(st.lists(st.integers(0, len(offsets) - 1), min_size=1, max_size=3)), reverse=True):
        begin, end = offsets[at], offsets[min(at + draw(st.integers(1, 40)), len(offsets) - 1)]
        given = draw(st.sampled_from(OPERATIONS) | st.binary(min_size=1, max_size=8))
        raw = raw[:begin] + EDITS[draw(st.sampled_from(sorted(EDITS)))](raw[begin:end], given) + raw[end:]
    return gzip.compress(raw, 1, mtime=0) if draw(st.booleans()) else raw


@st.composite
def changed_snapshots(draw: st.DrawFn) -> bytes:
    """Return a snapshot, as pickle or JSON, after one or two of its values have become others; most stay traces."""
    root = deepcopy(draw(st.sampled_from(snapshots())))
    for _ in range(draw(st.integers(1, 2))):
        paths = list(values(root))
        *way, key = draw(st.sampled_from(paths))
        holder = value_at(root, way)
        others = st.sampled_from(paths).map(lambda path: value_at(root, path))
        nearby = [holder[key] + step for step in (-1, 1, 512, -512, 1 << 32)] if type(holder[key]) is int else []
        holder[key] = deepcopy(draw(st.sampled_from([*nearby, *STRANGE]) | others))
    return draw(st.sampled_from([pickle.dumps(root), json.dumps(root, default=str).encode()]))


def values(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values inside."""
    inner = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, each in inner:
        yield (*path, key)
        yield from values(each, (*path, key))


def value_at(root: Any, path: Iterable[Any]) -> Any:
    return reduce(lambda value, key: value[key], path, root)


@settings(max_examples=3 * settings().max_examples)
@given(changed_files() | changed_snapshots())
def test_a_changed_file_is_refused_in_words_or_its_bytes_add_up(raw: bytes) -> None:
    try:
        trace = read_trace(io.BytesIO(raw), "a file", len(raw), limits=LIMITS)
        for device in trace.devices[:20]:
            assert_bytes_add_up(trace, device)
        health(trace)
        summary_result(trace)
        assert_reads_as_written(trace)
    except MemvizError as error:
        assert "needs more memory than" not in str(error) and len(str(error)) < 2000, error


def assert_bytes_add_up(trace: Trace, device: DeviceTrace) -> None:
    line, lives = timeline(device), lifetimes(device)
    at_peak = live_rows(device, line.peak_event)
    assert int(lives.size[at_peak].sum()) == line.peak_bytes
    for by in GROUPINGS:
        assert sum(group.bytes for group in peak(trace, device, by).live.groups) == line.peak_bytes, by
    assert int(stack_tree(trace, device, at_peak, most_nodes=50).bytes[0]) == line.peak_bytes
    assert min(each.min(initial=0) for each in (line.live, line.reserved, lives.size)) >= 0
    for at in (-1, line.peak_event, len(device.events) - 1):
        segments_at(trace, device, at)
        fragmentation_at(trace, device, at)


def assert_reads_as_written(trace: Trace) -> None:
    written = io.BytesIO()
    write_pickle(trace, written)
    again = read_trace(io.BytesIO(written.getvalue()), "a file", None)
    sizes = {device.name: device.events.size for device in trace.devices}
    assert all(np.array_equal(device.events.size, sizes[device.name]) for device in again.devices)


def test_unchanged_files_are_traces() -> None:
    """Or else the test above would see refusals alone."""
    for raw in FILES:
        assert read_trace(io.BytesIO(raw), "a file", len(raw), limits=LIMITS).devices
