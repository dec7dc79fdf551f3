"""The command line: one small file per command, and one list of them. What is heavy waits until it is wanted."""

from importlib import import_module

from memviz.commands.help_text import COMMANDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memviz.commands.command_line import main, parser
    from memviz.commands.terminal import FAILED

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
