"""Frames of a stack as people read them: `linear.py:36 forward`."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.analysis.cache import cached_on
from memviz.analysis.callstacks.frames import LAST_PYTHON_KIND, FrameKind, frame_kinds
from memviz.analysis.callstacks.sites import with_line
from memviz.analysis.callstacks.stack_tree import frame_name
from memviz.trace.model import Trace

_PARTS = 2
"""Of a path, from its end: one is too often `__init__.py`."""


@dataclass(frozen=True)
class FrameWords:
    function: str
    place: str
    """`modules/linear.py:36`; empty below Python."""
    path: str
    """The whole place, as recorded."""
    is_own: bool
    """A person's own, not a library's."""


def frame_words(trace: Trace, frame: int) -> FrameWords:
    """`frame` may be one of the negative ones of `analysis.stacks`."""
    return cached_on(trace, (frame_words, frame), lambda: _worded(trace, frame))


def _worded(trace: Trace, frame: int) -> FrameWords:
    function = frame_name(trace, frame)
    if frame < 0:
        return FrameWords(function, "", "", is_own=False)
    kind = frame_kinds(trace)[frame]
    if kind > LAST_PYTHON_KIND:
        return FrameWords(function, "", trace.strings[trace.stacks.frames.name[frame]], is_own=False)
    line = int(trace.stacks.frames.line[frame])
    path = trace.strings[trace.stacks.frames.filename[frame]]
    tail = "/".join([part for part in path.replace("\\", "/").split("/") if part][-_PARTS:])
    return FrameWords(function, with_line(tail, line), with_line(path, line), is_own=bool(kind == FrameKind.USER))
