"""What our own runs know and no snapshot has a place for, under one top-level key that other viewers ignore.

    "memviz": {
        "version": 1,
        "about": {"origin": "predicted", "on": "NVIDIA H200", "facts": {"model": "..."}},
        "modules": ["", "layers.0.mlp", ...],
        "devices": [{"kind": "gpu", "device": 0, "events": LABELS, "blocks": LABELS}, ...],
    }
    LABELS = {"category": bytes, "module": bytes, "phase": bytes}

Each LABELS column is one little-endian array over the device's events (or final blocks): uint8, int32 into
`modules`, uint8. In JSON the bytes are base64 text.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import replace
from typing import Any

import numpy as np

from memviz.errors import TraceError
from memviz.trace.intern import Interner
from memviz.trace.model import About, Category, DeviceTrace, Labels, Phase, Trace

KEY = "memviz"
_VERSION = 1
_ORIGINS = ("measured", "predicted", "replayed")


def apply(trace: Trace, value: Any, interner: Interner) -> Trace:
    """The trace with its labels; unchanged where the file has none, or those of a later version."""
    if type(value) is not dict or value.get("version") != _VERSION:
        return trace
    modules = [interner.string(each) for each in value.get("modules", [])] or [0]
    table = np.array(modules, dtype=np.int32)
    given = {(each.get("kind"), each.get("device")): each for each in value.get("devices", []) if type(each) is dict}
    devices = tuple(_labelled(each, given.get((each.kind, each.device)), table) for each in trace.devices)
    return replace(trace, devices=devices, about=_about(trace.about, value.get("about")))


def dump(trace: Trace) -> dict[str, Any] | None:
    """The value of KEY for this trace, or None where there is nothing to say."""
    labelled = [each for each in trace.devices if each.event_labels is not None or each.block_labels is not None]
    about = trace.about
    if not labelled and about.origin == "measured" and not about.on and not about.facts:
        return None
    used = sorted({int(code) for each in labelled for labels in _both(each) for code in np.unique(labels.module)} | {0})
    position = {code: i for i, code in enumerate(used)}
    return {
        "version": _VERSION,
        "about": {"origin": about.origin, "on": about.on, "facts": dict(about.facts)},
        "modules": [trace.strings[code] for code in used],
        "devices": [_dump_device(each, position) for each in labelled],
    }


def _both(device: DeviceTrace) -> list[Labels]:
    return [each for each in (device.event_labels, device.block_labels) if each is not None]


def _dump_device(device: DeviceTrace, position: dict[int, int]) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": device.kind, "device": device.device}
    for key, labels in (("events", device.event_labels), ("blocks", device.block_labels)):
        if labels is not None:
            modules = np.array([position[int(code)] for code in labels.module], dtype="<i4")
            row[key] = {
                "category": labels.category.tobytes(),
                "module": modules.tobytes(),
                "phase": labels.phase.tobytes(),
            }
    return row


def _labelled(device: DeviceTrace, given: Any, modules: Any) -> DeviceTrace:
    if given is None:
        return device
    return replace(
        device,
        event_labels=_labels(given.get("events"), len(device.events), modules) or device.event_labels,
        block_labels=_labels(given.get("blocks"), len(device.blocks), modules) or device.block_labels,
    )


def _labels(value: Any, count: int, modules: Any) -> Labels | None:
    if type(value) is not dict:
        return None
    category = _column(value.get("category"), np.uint8, count, len(Category))
    module = _column(value.get("module"), np.dtype("<i4"), count, len(modules))
    phase = _column(value.get("phase"), np.uint8, count, len(Phase))
    return Labels(category, modules[module], phase)


def _column(value: Any, dtype: Any, count: int, values: int) -> Any:
    raw = _raw(value)
    if len(raw) != count * np.dtype(dtype).itemsize:
        raise TraceError("Its labels (under the key 'memviz') do not match its events.")
    column = np.frombuffer(raw, dtype=dtype).astype(np.dtype(dtype).newbyteorder("="))
    if count and (column.min() < 0 or column.max() >= values):
        raise TraceError("Its labels (under the key 'memviz') name values we do not know.")
    return column


def _raw(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise TraceError("Its labels (under the key 'memviz') are neither bytes nor base64.") from None


def _about(about: About, value: Any) -> About:
    if type(value) is not dict or value.get("origin") not in _ORIGINS:
        return about
    facts = value.get("facts")
    kept = {str(key): str(text) for key, text in facts.items()} if type(facts) is dict else {}
    return replace(about, origin=value["origin"], on=str(value.get("on", ""))[:200], facts=kept)
