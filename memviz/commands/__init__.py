"""The command line: one small file per command, and one list of them."""

from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memviz.commands.command_line import main, parser
    from memviz.commands.terminal import FAILED

VERSION = "0.1.0"
PROGRAM = "python -m memviz"
DESCRIPTION = "Explore PyTorch memory snapshots."
COMMANDS = {
    "summary": "Summarize a snapshot: devices, peaks and notes.",
    "peak": "List what is live at the peak.",
    "findings": "List findings about a snapshot, ranked by bytes.",
    "at": "List what is live after an event or at a time.",
    "diff": "Compare peaks: what holds more, what less.",
    "ranks": "Compare many ranks: the highest peak, outliers and their causes.",
    "history": "Show the peak from commit to commit, from files kept by CI.",
    "replay": "Replay with other allocator settings or on another card.",
    "report": "Write a self-contained HTML page.",
    "export": "Convert a trace: normalized, stripped, as JSON or as CSV.",
    "open": "Start the page with these files open.",
    "run": "Run a model with optimizations: predicted for a card, or measured on a GPU.",
    "fit": "Find the cheapest configuration that makes a model fit on a card, predicted.",
    "reproduce": "Compare four published tables with predictions.",
    "predict": "Predict the GPU memory of your script, without a GPU.",
    "record": "Run your script and record its GPU memory as a snapshot.",
}
"""A command is imported when it is used, so no command pays for another's imports."""
EPILOG = "Every command reads a snapshot of any PyTorch release: a pickle or JSON, plain, gzipped or in a zip."

__all__ = ["COMMANDS", "FAILED", "main", "parser"]
_LIVES_IN = {
    "FAILED": "memviz.commands.terminal",
    "main": "memviz.commands.command_line",
    "parser": "memviz.commands.command_line",
}


def __getattr__(name: str) -> "Any":
    if name not in _LIVES_IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LIVES_IN[name]), name)
