"""A stack as JSON: innermost frame first, as torch has it."""

from __future__ import annotations

from typing import Any

from memviz.trace.model import Trace


def frames_json(trace: Trace, stack: int) -> list[dict[str, Any]]:
    frames, strings = trace.stacks.frames, trace.strings
    return [
        {"name": strings[frames.name[i]], "filename": strings[frames.filename[i]], "line": int(frames.line[i])}
        for i in trace.stacks.of(stack)
    ]
