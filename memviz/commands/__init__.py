"""The command line: one small file per command, and one list of them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memviz.commands.command_line import COMMANDS, main, parser
    from memviz.commands.terminal import FAILED

__all__ = ["COMMANDS", "FAILED", "main", "parser"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("memviz.commands.command_line"), name)
