"""Allocations by their stacks: the program's start on top, each call below its caller, as wide as its bytes."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from memviz.analysis.callstacks.sites import LAST_PYTHON_KIND, FrameKind, frame_kinds, short_native
from memviz.analysis.callstacks.stack_tree import OTHER, ROOT, StackTree, frame_name
from memviz.figures.theme import HOVER_TEXT, Palette, figure, lines, mixed, nothing_to_show, palette, plain, text_on
from memviz.trace.model import Trace
from memviz.units import bytes_text, counted, percent_text

_ROW_HEIGHT = 23


def plot_icicle(result: StackTree, trace: Trace, *, dark: bool = False) -> go.Figure:
    """`trace` is the one whose frames the tree names."""
    total = int(result.bytes[0]) if len(result) else 0
    drawing = figure(dark=dark, title=f"{bytes_text(total)} by call stack, callers on top")
    if not total:
        return nothing_to_show(drawing, "Nothing is live here.")
    colours = palette(dark)
    fills = [_fill(frame, trace, colours) for frame in result.frame.tolist()]
    drawing.add_icicle(
        **_columns(result, trace),
        marker={"colors": fills, "line": {"width": 1, "color": colours.page}},
        textfont={"color": [text_on(fill) for fill in fills]},
        tiling={"orientation": "v", "pad": 0},
        pathbar={"visible": False},
    )
    # A label that does not fit is left out: shrunk, it would be unreadable.
    drawing.update_layout(uniformtext={"minsize": 9, "mode": "hide"})
    heights = [1]
    for parent in result.parent[1:].tolist():
        heights.append(heights[parent] + 1)
    drawing.update_layout(height=70 + _ROW_HEIGHT * max(heights), margin={"l": 8, "r": 8, "b": 8})
    return drawing


def _columns(tree: StackTree, trace: Trace) -> dict[str, Any]:
    frames, sizes, total = tree.frame.tolist(), tree.bytes.tolist(), int(tree.bytes[0])
    rows = zip(frames, sizes, tree.self_bytes.tolist(), tree.count.tolist(), strict=True)
    return {
        "ids": [str(node) for node in range(len(tree))],
        "parents": ["" if parent < 0 else str(parent) for parent in tree.parent.tolist()],
        "labels": [_label(trace, frame) for frame in frames],
        "values": sizes,
        "branchvalues": "total",
        "sort": False,
        "textinfo": "label",
        "hovertext": [
            lines(
                _place(trace, frame),
                f"{bytes_text(size)}, {percent_text(size, total)}",
                counted(count, "allocation") + (f", {bytes_text(own)} of it taken here" if own else ""),
            )
            for frame, size, own, count in rows
        ],
        "hovertemplate": HOVER_TEXT,
    }


def _label(trace: Trace, frame: int) -> str:
    """Label of a frame; functions called `forward` get their file and line."""
    name = plain(frame_name(trace, frame), 50)
    if frame < 0:
        return name
    if not _is_python(trace, frame):
        return plain(short_native(frame_name(trace, frame)), 50)
    path = trace.strings[trace.stacks.frames.filename[frame]].replace("\\", "/")
    return f"{name} {plain(path.rpartition('/')[2], 40)}:{trace.stacks.frames.line[frame]}"


def _place(trace: Trace, frame: int) -> str:
    name, frames = plain(frame_name(trace, frame)), trace.stacks.frames
    if not _is_python(trace, frame):
        return name
    return lines(name, f"{plain(trace.strings[frames.filename[frame]])}:{frames.line[frame]}")


def _is_python(trace: Trace, frame: int) -> bool:
    return frame >= 0 and bool(frame_kinds(trace)[frame] <= LAST_PYTHON_KIND)


def _fill(frame: int, trace: Trace, colours: Palette) -> str:
    """User frames are highlighted by shade; hue means a category, and a node may hold several."""
    if frame == ROOT:
        return colours.fill
    if frame < 0:
        return colours.before if frame != OTHER else mixed(colours.before, colours.page, 0.5)
    own = frame_kinds(trace)[frame] == FrameKind.USER
    return mixed(colours.ink_3, colours.page, 0.45 if own else 0.75)
