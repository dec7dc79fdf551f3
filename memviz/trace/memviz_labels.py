"""Labels that memviz's own runs add to a snapshot, under one top-level key that other viewers ignore.

    "memviz": {
        "version": 1,
        "about": {"origin": "predicted", "on": "NVIDIA H200", "facts": {"model": "..."}},
        "modules": ["", "layers.0.mlp", ...],
        "devices": [{"kind": "gpu", "device": 0, "events": LABELS, "blocks": LABELS, "taken_over": TAKEN_OVER,
                     "holders": HOLDERS, "host": HOST}, ...],
        "holders": ["losses", "losses[3] (local of train, train.py:12)", ...],
    }
    LABELS = {"category": text, "module": text, "phase": text}
    TAKEN_OVER = {"events": FOUND, "blocks": FOUND, "spans": {"phase": text, "step": text, "first": text}}
    FOUND = {"category": text, "certainty": text, "phase": text, "is_known": text}
    HOLDERS = {"event": text, "address": text, "kind": text, "owner": text, "chain": text, "place": text}
    HOST = {"event": text, "total": text, "pinned": text, "requested": text, "loaded": text}

Each LABELS column is the base64 text of one little-endian array over the device's events (or final blocks): uint8,
int32 into `modules`, uint8. Text, because JSON has no bytes and because the pickle reader inside PyTorch's own page
stops at an opcode for bytes. TAKEN_OVER, which an estimate inherits from its recording, is written so too: uint8, but
for the spans' step (int32) and first event (int64). HOLDERS has a row for each moment and allocation: int64, int64,
uint8, and three int32 into the texts of `holders`. HOST has int64 only: see `HostBytes`.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from memviz.errors import TraceError
from memviz.trace.collect import name_of
from memviz.trace.intern import Interner, bounded, valid_unicode
from memviz.trace.model import (
    About,
    Category,
    Columns,
    DeviceTrace,
    HolderKind,
    Holders,
    HostBytes,
    Ints4,
    Labels,
    Phase,
    Purposes,
    Spans,
    TakenOver,
    Trace,
)


def to_text(column: npt.NDArray[Any]) -> str:
    return base64.b64encode(column.tobytes()).decode("ascii")


def from_text(value: Any, dtype: Any, count: int, values: int) -> Any:
    """Return the column of `count` numbers, each checked to be at least 0 and less than `values`."""
    raw = _decode_base64(value)
    if len(raw) != count * np.dtype(dtype).itemsize:
        raise TraceError("Its labels (under the key 'memviz') do not match its events.")
    column = np.frombuffer(raw, dtype=dtype).astype(np.dtype(dtype).newbyteorder("="))
    if count and (column.min() < 0 or column.max() >= values):
        raise TraceError("Its labels (under the key 'memviz') have unknown values.")
    return column


def _decode_base64(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise TraceError("Its labels (under the key 'memviz') are not base64.") from None


CERTAINTIES = 4
"""How many `analysis.purpose` has."""
_MOST_SPANS = 3
"""That begin with one event: all phases may, where a noted one holds no event."""


_CATEGORY, _PHASE = (np.uint8, len(Category)), (np.uint8, len(Phase))
_PURPOSES = {"category": _CATEGORY, "certainty": (np.uint8, CERTAINTIES), "phase": _PHASE, "is_known": (np.uint8, 2)}
_SPANS = {"phase": _PHASE, "step": ("<i4", np.iinfo(np.int32).max), "first": ("<i8", 0)}
"""Type of each column, and how many values it may name; 0: as many as there are events."""


def dump_columns(columns: Columns, types: Mapping[str, tuple[Any, int]]) -> dict[str, str]:
    return {name: to_text(column.astype(types[name][0])) for name, column in columns.columns()}


def _read_columns(value: dict[str, Any], types: Mapping[str, tuple[Any, int]], count: int, events: int = 0) -> Any:
    return [from_text(value.get(name), np.dtype(kind), count, most or events) for name, (kind, most) in types.items()]


def read_taken_over(value: Any, events: int, blocks: int) -> TakenOver | None:
    """None where a file has none, or not all of it."""
    parts = [value.get(name) if type(value) is dict else None for name in ("events", "blocks", "spans")]
    of_events, of_blocks, spans = (part if type(part) is dict else None for part in parts)
    if of_events is None or of_blocks is None or spans is None:
        return None
    return TakenOver(_purposes(of_events, events), _purposes(of_blocks, blocks), _spans(spans, events))


def _purposes(value: dict[str, Any], count: int) -> Purposes:
    category, certainty, phase, is_known = _read_columns(value, _PURPOSES, count)
    return Purposes(category, certainty, phase, is_known.astype(np.bool_))


def _spans(value: dict[str, Any], events: int) -> Spans:
    spans = Spans(*_read_columns(value, _SPANS, len(_decode_base64(value.get("phase"))), events))
    is_in_order = (spans.first[1:] >= spans.first[:-1]).all()
    if len(spans) > _MOST_SPANS * events or (spans.phase == Phase.UNKNOWN).any() or not is_in_order:
        raise TraceError("Its phases (under the key 'memviz') do not follow one another.")
    return spans


_HOLDER_TEXTS = ("owner", "chain", "place")
_HOLDERS = {"kind": (np.uint8, len(HolderKind)), **dict.fromkeys(_HOLDER_TEXTS, ("<i4", 0))}
_MOMENTS = dict.fromkeys(("event", "address"), ("<i8", 0))
_MOST_HOLDER_TEXTS = 1 << 20


def _dump_holders(holders: Holders, used: Ints4) -> dict[str, str]:
    texts = {name: np.searchsorted(used, getattr(holders, name)) for name in _HOLDER_TEXTS}
    return dump_columns(replace(holders, **texts), {**_MOMENTS, **_HOLDERS})


def _read_holders(value: Any, events: int, texts: Ints4) -> Holders | None:
    """None where a file has none."""
    if type(value) is not dict or not len(texts):
        return None
    count = len(_decode_base64(value.get("kind")))
    event = from_text(value.get("event"), np.dtype("<i8"), count, events + 1)
    kind, *codes = _read_columns(value, _HOLDERS, count, len(texts))
    address = np.frombuffer(_decode_base64(value.get("address")), dtype="<i8").astype(np.int64)
    if len(address) != count or (event[1:] < event[:-1]).any():
        raise TraceError("Its holders (under the key 'memviz') do not match its events.")
    return Holders(event, address, kind, *(texts[column] for column in codes))


_MOST_BYTES = 1 << 60
_HOST = {"event": ("<i8", 0), **dict.fromkeys(("total", "pinned", "requested", "loaded"), ("<i8", _MOST_BYTES))}


def _read_host(value: Any, events: int) -> HostBytes | None:
    """None where a file has none."""
    if type(value) is not dict:
        return None
    count = len(_decode_base64(value.get("event"))) // np.dtype("<i8").itemsize
    host = HostBytes(*_read_columns(value, _HOST, count, events + 1))
    if (host.event[1:] < host.event[:-1]).any():
        raise TraceError("Its host memory (under the key 'memviz') does not match its events.")
    return host if count else None


KEY = "memviz"
_VERSION = 1
COUNTED_TIMES = "times"
"""Fact of a prediction, and of its replays: no clock ran."""
HOLDERS_CUT_FACT = "holders cut"
"""Fact of a trace: at how many moments the search for holders was ended by its time limit."""
RANK_FACT, WORLD_FACT, MESH_FACT, LOCAL_WORLD_FACT = "rank", "world_size", "mesh", "local_world_size"
"""Facts of one process of many; the mesh as 'pp=1,dp=0', and how many processes its machine has."""
CARD_FACT = "card"
"""Fact of a replay: the card of its recording, as `About.on` has the settings."""
CHILDREN_FACT = "child processes"
"""Fact of a trace: '4 with 1048576 bytes of their own, 4096 bytes of batches'; of a prediction, data loader workers."""
_CHILDREN = re.compile(r"(\d{1,6}) with (?:(\d{1,18})|unknown) bytes of their own, (\d{1,18}) bytes of batches")


@dataclass(frozen=True)
class ChildMemory:
    """Host memory that child processes add to their parent's, at the highest moment that was looked at."""

    count: int = 0
    own_bytes: int | None = 0
    """Shared with no other process; None where the system does not say."""
    batch_bytes: int = 0
    """Batches of data loaders on their way to the parent."""

    @property
    def bytes(self) -> int | None:
        return None if self.own_bytes is None else self.own_bytes + self.batch_bytes

    @property
    def facts(self) -> dict[str, str]:
        own = "unknown" if self.own_bytes is None else self.own_bytes
        text = f"{self.count} with {own} bytes of their own, {self.batch_bytes} bytes of batches"
        return {CHILDREN_FACT: text} if self.count else {}

    @classmethod
    def of(cls, facts: Mapping[str, str]) -> Self:
        """Read them from a trace's facts, which may come from a file."""
        found = _CHILDREN.fullmatch(facts.get(CHILDREN_FACT, ""))
        return cls() if found is None else cls(int(found[1]), int(found[2]) if found[2] else None, int(found[3]))


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
    held_by = _list(value, "holders")[:_MOST_HOLDER_TEXTS]
    texts = np.array([interner.string(text) for text in held_by], dtype=np.int32)
    devices = tuple(
        _labelled(device, given.get((device.kind, device.device)), table, texts) for device in trace.devices
    )
    about = _about(trace.about, value.get("about"))
    if about.origin == "predicted" or COUNTED_TIMES in about.facts:
        devices = tuple(replace(device, is_timed=False) for device in devices)
    return replace(trace, devices=devices, about=about)


def dump(trace: Trace) -> dict[str, Any] | None:
    """The value of KEY for this trace, or None where there is nothing to say."""
    devices = trace.devices
    labelled = [one for one in devices if one.labels or one.taken_over or one.holders or one.host]
    about = trace.about
    if not labelled and about.origin == "measured" and not about.on and not about.facts:
        return None
    modules = [labels.module for device in labelled for labels in device.labels]
    used = np.unique(np.concatenate([*modules, np.zeros(1, dtype=np.int32)]))
    held = [getattr(device.holders, name) for device in labelled if device.holders for name in _HOLDER_TEXTS]
    texts = np.unique(np.concatenate([*held, np.zeros(0, dtype=np.int32)]))
    return {
        "version": _VERSION,
        "about": {"origin": about.origin, "on": about.on, "facts": dict(about.facts)},
        "modules": [trace.strings[code] for code in used],
        "devices": [_dump_device(device_labels, used, texts) for device_labels in labelled],
        **({"holders": [trace.strings[code] for code in texts]} if held else {}),
    }


def _dump_device(device: DeviceTrace, used: Ints4, texts: Ints4) -> dict[str, Any]:
    row: dict[str, Any] = {"kind": device.kind, "device": device.device}
    for key, labels in (("events", device.event_labels), ("blocks", device.block_labels)):
        if labels is not None:
            used_here = replace(labels, module=np.searchsorted(used, labels.module).astype(np.int32))
            row[key] = dump_columns(used_here, _label_types(len(used)))
    if device.taken_over is not None:
        row["taken_over"] = {
            "events": dump_columns(device.taken_over.events, _PURPOSES),
            "blocks": dump_columns(device.taken_over.blocks, _PURPOSES),
            "spans": dump_columns(device.taken_over.spans, _SPANS),
        }
    if device.holders:
        row["holders"] = _dump_holders(device.holders, texts)
    if device.host:
        row["host"] = dump_columns(device.host, _HOST)
    return row


def _labelled(device: DeviceTrace, given: Any, modules: Any, texts: Ints4) -> DeviceTrace:
    if given is None:
        return device
    events = _labels(given.get("events"), len(device.events), modules)
    blocks = _labels(given.get("blocks"), len(device.blocks), modules)
    return replace(
        device,
        event_labels=device.event_labels if events is None else events,
        block_labels=device.block_labels if blocks is None else blocks,
        taken_over=read_taken_over(given.get("taken_over"), len(device.events), len(device.blocks)),
        holders=_read_holders(given.get("holders"), len(device.events), texts),
        host=_read_host(given.get("host"), len(device.events)),
    )


def _labels(value: Any, count: int, modules: Any) -> Labels | None:
    if type(value) is not dict:
        return None
    category, module, phase = _read_columns(value, _label_types(len(modules)), count)
    return Labels(category, modules[module], phase)


def _label_types(modules: int) -> dict[str, tuple[Any, int]]:
    return {"category": _CATEGORY, "module": ("<i4", modules), "phase": _PHASE}


def _about(about: About, value: Any) -> About:
    if type(value) is not dict or value.get("origin") not in _ORIGINS:
        return about
    facts = value.get("facts")
    pairs = facts.items() if type(facts) is dict else ()
    texts = ((key, text) for key, text in pairs if type(key) is str and type(text) is str)
    kept = {name_of(key): bounded(valid_unicode(text), _MOST_FACT) for key, text in islice(texts, _MOST_FACTS)}
    on = value.get("on")
    return replace(about, origin=value["origin"], on=valid_unicode(on[:200]) if type(on) is str else "", facts=kept)


def _list(mapping: dict[Any, Any], key: str) -> list[Any]:
    value = mapping.get(key)
    return value if type(value) is list else []
