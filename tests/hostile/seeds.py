"""Seeds of the fuzzer: small snapshots that together cover every part of the format."""

from __future__ import annotations

import gzip
import json
import pickle
from typing import Any

from tests.traces import MiB, alloc, block, event, frame, free, segment, snapshot

BASE = 0x7000_0000_0000
LABELS = {"category": "AAAA", "module": "AAAAAAAAAAAAAAAA", "phase": "AAAA"}


def objects() -> list[Any]:
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
        unknown=[{"more": None, "real": 1.5, "raw": b"bytes"}],
    )
    named = {
        **snapshot([alloc(BASE, 5), *free(BASE, 5)]),
        "memviz": {
            "version": 1,
            "about": {"origin": "predicted", "on": "a card", "facts": {"model": "x"}},
            "modules": [""],
            "devices": [{"kind": "gpu", "device": 0, "events": LABELS}],
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


def files() -> list[bytes]:
    made = [pickle.dumps(each, protocol) for each in objects() for protocol in (0, 2, 4)]
    plain = [json.dumps(each, default=str).encode() for each in objects()]
    return [*made, *plain, *(gzip.compress(each, 1, mtime=0) for each in (*made[1::3], plain[0]))]
