"""What our own runs know and no snapshot has a place for, under one top-level key that other viewers ignore.

    "memviz": {
        "version": 1,
        "about": {"origin": "predicted", "on": "NVIDIA H200", "facts": {"model": "..."}},
        "modules": ["", "layers.0.mlp", ...],
        "devices": [{"kind": "gpu", "device": 0, "events": LABELS, "blocks": LABELS, "taken_over": TAKEN_OVER}, ...],
    }
    LABELS = {"category": text, "module": text, "phase": text}
    TAKEN_OVER = {"events": FOUND, "blocks": FOUND, "spans": {"phase": text, "step": text, "first": text}}
    FOUND = {"category": text, "certainty": text, "phase": text, "is_known": text}

Each LABELS column is the base64 text of one little-endian array over the device's events (or final blocks):
uint8, int32 into `modules`, uint8. Text, because JSON has no bytes and because the pickle reader inside
PyTorch's own page stops at an opcode for bytes. What an estimate takes over of its recording is written so too: uint8,
but for the spans' step (int32) and first event (int64).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from memviz.trace.collect import name_of
from memviz.trace.formats.base64_columns import column_of, text_of
from memviz.trace.formats.own_taken_over import dump_taken_over, read_taken_over
from memviz.trace.intern import Interner
from memviz.trace.model import About, Category, DeviceTrace, Ints4, Labels, Phase, Trace
from memviz.trace.texts import bounded, sound

KEY = "memviz"
_VERSION = 1
COUNTED_TIMES = "times"
"""Fact of a prediction, and of its replays: no clock ran."""
RANK_FACT, WORLD_FACT, MESH_FACT = "rank", "world_size", "mesh"
"""Facts of one process of many; the mesh as 'pp=1,dp=0'."""
_MOST_FACTS, _MOST_FACT = 200, 1 << 16
_ORIGINS = ("measured", "predicted", "replayed")


def apply(trace: Trace, value: Any, interner: Interner) -> Trace:
    """The trace with its labels; unchanged where the file has none, or those of a later version."""
    if type(value) is not dict or value.get("version") != _VERSION:
        return trace
    modules = [interner.string(name) for name in _list(value, "modules")] or [0]
    table = np.array(modules, dtype=np.int32)
    rows = [entry for entry in _list(value, "devices") if type(entry) is dict]
    named = [row for row in rows if type(row.get("kind")) is str and type(row.get("device")) is int]
    given = {(entry["kind"], entry["device"]): entry for entry in named}
    devices = tuple(_labelled(device, given.get((device.kind, device.device)), table) for device in trace.devices)
    about = _about(trace.about, value.get("about"))
    if about.origin == "predicted" or COUNTED_TIMES in about.facts:
        devices = tuple(replace(device, is_timed=False) for device in devices)
    return replace(trace, devices=devices, about=about)


def dump(trace: Trace) -> dict[str, Any] | None:
    """The value of KEY for this trace, or None where there is nothing to say."""
    labelled = [device for device in trace.devices if _both(device) or device.taken_over is not None]
    about = trace.about
    if not labelled and about.origin == "measured" and not about.on and not about.facts:
        return None
    modules = [labels.module for device_labels in labelled for labels in _both(device_labels)]
    used = np.unique(np.concatenate([*modules, np.zeros(1, dtype=np.int32)]))
    return {
        "version": _VERSION,
        "about": {"origin": about.origin, "on": about.on, "facts": dict(about.facts)},
        "modules": [trace.strings[code] for code in used],
        "devices": [_dump_device(device_labels, used) for device_labels in labelled],
    }


def _both(device: DeviceTrace) -> list[Labels]:
    return [labels for labels in (device.event_labels, device.block_labels) if labels is not None]


def _dump_device(device: DeviceTrace, used: Ints4) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": device.kind, "device": device.device}
    for key, labels in (("events", device.event_labels), ("blocks", device.block_labels)):
        if labels is not None:
            row[key] = {
                "category": text_of(labels.category),
                "module": text_of(np.searchsorted(used, labels.module).astype("<i4")),
                "phase": text_of(labels.phase),
            }
    if device.taken_over is not None:
        row["taken_over"] = dump_taken_over(device.taken_over)
    return row


def _labelled(device: DeviceTrace, given: Any, modules: Any) -> DeviceTrace:
    if given is None:
        return device
    events = _labels(given.get("events"), len(device.events), modules)
    blocks = _labels(given.get("blocks"), len(device.blocks), modules)
    return replace(
        device,
        event_labels=device.event_labels if events is None else events,
        block_labels=device.block_labels if blocks is None else blocks,
        taken_over=read_taken_over(given.get("taken_over"), len(device.events), len(device.blocks)),
    )


def _labels(value: Any, count: int, modules: Any) -> Labels | None:
    if type(value) is not dict:
        return None
    category = column_of(value.get("category"), np.uint8, count, len(Category))
    module = column_of(value.get("module"), np.dtype("<i4"), count, len(modules))
    phase = column_of(value.get("phase"), np.uint8, count, len(Phase))
    return Labels(category, modules[module], phase)


def _about(about: About, value: Any) -> About:
    if type(value) is not dict or value.get("origin") not in _ORIGINS:
        return about
    facts = value.get("facts")
    pairs = facts.items() if type(facts) is dict else ()
    texts = ((key, text) for key, text in pairs if type(key) is str and type(text) is str)
    kept = {name_of(key): bounded(sound(text), _MOST_FACT) for key, text in islice(texts, _MOST_FACTS)}
    on = value.get("on")
    return replace(about, origin=value["origin"], on=sound(on[:200]) if type(on) is str else "", facts=kept)


def _list(mapping: dict[Any, Any], key: str) -> list[Any]:
    value = mapping.get(key)
    return value if type(value) is list else []
