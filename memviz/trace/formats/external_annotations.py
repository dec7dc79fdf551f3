"""A snapshot's annotations, dicts or rows that are decoded already -> columns, by device and time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np

from memviz.trace.collect import integers
from memviz.trace.formats.fields import whole_of
from memviz.trace.intern import Interner
from memviz.trace.model import AnnotationRows, Annotations, Ints4, Ints8, Stage
from memviz.trace.unpickle.rows import translated


def annotations_of(rows: Iterable[Any], interner: Interner) -> Annotations:
    """`rows`: of one device, in the order of the file."""
    parts: list[tuple[Ints4, Ints8, Ints8]] = []
    for kind, group in groupby(rows, key=type):
        same = list(group)
        parts += (
            [_from_rows(rows, interner) for rows in same] if kind is AnnotationRows else [_from_dicts(same, interner)]
        )
    empty = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    name, stage, time_us = (np.concatenate(parts_of_column) for parts_of_column in zip(empty, *parts, strict=True))
    order = np.argsort(time_us, kind="stable")
    return Annotations(name=name[order], stage=stage[order].astype(np.uint8), time_us=time_us[order])


def of_devices(rows: AnnotationRows) -> list[tuple[int, AnnotationRows]]:
    """Each device's own."""
    if len(rows) and (rows.device == rows.device[0]).all():
        return [(int(rows.device[0]), rows)]
    return [(number, _chosen(rows, rows.device == number)) for number in np.unique(rows.device).tolist()]


def _chosen(rows: AnnotationRows, mask: Any) -> AnnotationRows:
    return AnnotationRows(**{name: column[mask] for name, column in rows.columns()})


def _from_rows(rows: AnnotationRows, interner: Interner) -> tuple[Ints4, Ints8, Ints8]:
    stage = translated(rows.stage.astype(np.int64), lambda text: _stage(interner.text(text)))
    return rows.name, stage, rows.time_us


def _from_dicts(rows: list[Any], interner: Interner) -> tuple[Ints4, Ints8, Ints8]:
    """By time, before their names get numbers: written and read again, a name keeps its own."""
    unordered = integers([whole_of(row, "time_us", 0) for row in rows], "time_us")
    order = np.argsort(unordered, kind="stable")
    by_time = [rows[index] for index in order.tolist()]
    return (
        np.array([interner.string(entry.get("name", "")) for entry in by_time], dtype=np.int32),
        np.array([_stage(entry.get("stage")) for entry in by_time], dtype=np.int64),
        unordered[order],
    )


def _stage(name: Any) -> Stage:
    return Stage.END if name == "END" else Stage.START
