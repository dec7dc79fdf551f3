"""Rows of columns, in whatever order; and zeros for what has no row."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from memviz.trace.model import Bools, Columns, Ints8

Rows = TypeVar("Rows", bound=Columns)


def picked(columns: Rows, rows: Ints8) -> Rows:
    """Rows below zero are none."""
    known = rows >= 0
    made = {name: np.zeros(len(rows), dtype=column.dtype) for name, column in columns.columns()}
    for name, column in columns.columns():
        made[name][known] = column[rows[known]]
    return type(columns)(**made)


def first_or_second(is_first: Bools, first: Rows, second: Rows) -> Rows:
    """Row by row."""
    pairs = zip(first.columns(), second.columns(), strict=True)
    return type(first)(**{name: np.where(is_first, mine, theirs) for (name, mine), (_, theirs) in pairs})
