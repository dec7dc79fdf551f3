"""A recorded snapshot on its way to a file: torch's own dict as it is, with our words beside it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from memviz.trace.formats import own_labels
from memviz.trace.formats.replacing import replacing
from memviz.trace.model import DeviceTrace, Stage, Trace

_PROTOCOL = 4
"""The newest that the reader inside PyTorch's own page knows."""


def write_snapshot(path: Path, snapshot: dict[str, Any]) -> None:
    """Whole or not at all."""
    with replacing(path) as file:
        pickle.dump(snapshot, file, protocol=_PROTOCOL)


def own_words(snapshot: dict[str, Any], trace: Trace) -> dict[str, Any]:
    """The snapshot with the trace's labels and annotations. Nothing that torch wrote is left out or changed."""
    rows = [row for each in trace.devices if each.kind == "gpu" for row in _annotations(trace, each)]
    has_more = len(rows) > len(snapshot.get("external_annotations", ()))
    words: dict[str, Any] = {"external_annotations": rows} if has_more else {}
    said = own_labels.dump(trace)
    if said is not None:
        words[own_labels.KEY] = said
    return {**snapshot, **words}


def without_stacks(snapshot: dict[str, Any]) -> dict[str, Any]:
    """As much of it as labels need, which is read several times as fast."""
    traces = [[{key: each[key] for key in _NEEDED if key in each} for each in events] for events in _traces(snapshot)]
    return {**snapshot, "device_traces": traces}


_NEEDED = ("action", "addr", "size", "device_free")


def _traces(snapshot: dict[str, Any]) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = snapshot.get("device_traces", [])
    return found


def _annotations(trace: Trace, device: DeviceTrace) -> list[dict[str, Any]]:
    rows = device.annotations
    columns = (rows.name.tolist(), rows.stage.tolist(), np.asarray(rows.time_us).tolist())
    return [
        {"name": trace.strings[name], "stage": Stage(stage).name, "device": device.device, "time_us": time}
        for name, stage, time in zip(*columns, strict=True)
    ]
