"""Bytes by line of source: what passed through it, and what it took itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memviz.analysis.callstacks.frames import DEFAULT_RULE, LAST_PYTHON_KIND, SiteRule, frame_kinds
from memviz.analysis.callstacks.sites import sites
from memviz.analysis.lifetimes import lifetimes
from memviz.analysis.sums import sum_by
from memviz.trace.model import Columns, DeviceTrace, Ints4, Ints8, Trace


@dataclass(frozen=True, eq=False)
class SourceLines(Columns):
    """Lines of Python, by file, then line."""

    filename: Ints4
    """Text, as recorded."""
    line: Ints4
    bytes: Ints8
    """Allocations with this line anywhere in their stack, each counted once."""
    own_bytes: Ints8
    """Allocations whose call site this line is."""
    count: Ints8


def source_lines(trace: Trace, device: DeviceTrace, rows: Ints8, *, rule: SiteRule = DEFAULT_RULE) -> SourceLines:
    """`rows` are rows of `lifetimes`."""
    all_rows, stacks = lifetimes(device), trace.stacks
    stack = all_rows.stack[rows]
    has = stack >= 0
    sizes = sum_by(stack[has], all_rows.size[rows][has], len(stacks))
    counts = np.bincount(stack[has], minlength=len(stacks))
    frames = stacks.frames
    lines, line_of_frame = np.unique(
        np.column_stack([frames.filename, frames.line]).reshape(-1, 2), axis=0, return_inverse=True
    )
    owner = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    shown = (frame_kinds(trace, rule) <= LAST_PYTHON_KIND)[stacks.indices] & (counts[owner] > 0)
    pairs = np.unique(owner[shown] * len(lines) + line_of_frame[stacks.indices[shown]])
    through, line = pairs // max(len(lines), 1), pairs % max(len(lines), 1)
    site = sites(trace, rule).frame[:-1]
    own = sum_by(line_of_frame[site[site >= 0]], sizes[site >= 0], len(lines))
    used = np.unique(line)
    return SourceLines(
        filename=lines[used, 0],
        line=lines[used, 1],
        bytes=sum_by(line, sizes[through], len(lines))[used],
        own_bytes=own[used],
        count=sum_by(line, counts[through], len(lines))[used],
    )
