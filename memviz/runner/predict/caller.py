"""Whose line it is: what a refusal names, and which of torch's own files asks for a value."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch

OURS = str(Path(__file__).parent)
_RUNNER = str(Path(OURS).parent)
_WORKLOADS = str(Path(_RUNNER) / "workloads")
TORCH = str(Path(torch.__file__).parent)
RELAYS = tuple(
    str(Path(TORCH) / each)
    for each in ("_ops.py", "overrides.py", "utils/_python_dispatch.py", "_library/", "utils/_device.py", "library.py")
)
"""How a call comes from torch's functions to us, and goes on from there: on a card nobody would see it."""
_PYTHON = sysconfig.get_path("stdlib")
_INSTALLED = ("site-packages", "dist-packages")
_LONGEST_LINE = 80


def frames() -> Iterator[FrameType]:
    """Of whoever called into torch, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith((OURS, *RELAYS)):
            yield frame
        frame = frame.f_back


def line_of_caller() -> str:
    """'train.py, line 12: `if loss < 3:`', and through which library it came, if any; empty where nobody's is known."""
    library = ""
    for frame in frames():
        name = frame.f_code.co_filename
        if name.startswith(TORCH):
            continue
        if _is_driver(name):
            break
        if not _is_installed(name):
            return f"{_line(frame)}{library}"
        library = library or f" (by way of {_line(frame)})"
    return library.removeprefix(" (by way of ").removesuffix(")")


def _line(frame: FrameType) -> str:
    name, number = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(name, number, frame.f_globals).strip()
    shown = code if len(code) <= _LONGEST_LINE else f"{code[:_LONGEST_LINE]}..."
    return f"{name}, line {number}" + (f": `{shown}`" if shown else "")


def _is_driver(filename: str) -> bool:
    """What runs a step is not the user's, nor is what called that."""
    return filename.startswith(_RUNNER) and not filename.startswith(_WORKLOADS)


def _is_installed(filename: str) -> bool:
    return any(each in filename for each in _INSTALLED) or filename.startswith((_PYTHON, "<frozen "))


def first_of_torch() -> FrameType | None:
    """The frame that calls the operator, if torch's own files do."""
    frame = next(frames(), None)
    return frame if frame is not None and frame.f_code.co_filename.startswith(TORCH) else None
