"""The source line of a frame, from this machine's own files. Off unless its owner switches it on.

A trace names paths of whatever machine recorded it, or whatever its author wrote into it; the page may be open to
strangers. So no file is ever read because a trace names it. Only where the environment variable
MEMVIZ_SOURCE_ROOT names a folder, and the frame's path, with symbolic links resolved, leads to a Python file
inside that folder, is that one line shown. It is the line as it is now, which may not be what ran.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

VARIABLE = "MEMVIZ_SOURCE_ROOT"
_MOST_BYTES = 4 << 20
_LONGEST = 300


def source_line(filename: str, line: int, environment: Mapping[str, str] = os.environ) -> str:
    """Empty where there is none to show."""
    path = _inside(filename, environment.get(VARIABLE, ""))
    if path is None or line < 1:
        return ""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = next(islice(file, line - 1, line), "")
    except OSError:
        return ""
    return text.strip()[:_LONGEST]


def _inside(filename: str, root: str) -> Path | None:
    if not root or not filename.endswith(".py") or "\0" in filename:
        return None
    try:
        folder = Path(root).resolve(strict=True)
        path = (folder / filename).resolve(strict=True)
        if path.is_relative_to(folder) and path.is_file() and path.stat().st_size <= _MOST_BYTES:
            return path
    except (OSError, RuntimeError):
        return None
    return None
