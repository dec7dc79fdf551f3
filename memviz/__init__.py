"""PyTorch's GPU memory, explained: `with memviz.recording("run.pickle", model=model):` records it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memviz.runner.record.recording import recording

__all__ = ["recording"]


def __getattr__(name: str) -> Any:
    """Only when asked for: the command line starts before torch could be imported."""
    if name != "recording":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from memviz.runner.record.recording import recording

    return recording
