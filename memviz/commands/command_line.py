"""Arguments read, a command chosen and run, and its errors shown in one place."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from memviz.commands.terminal import (
    FAILED,
    INTERRUPTED,
    NOT_WRITTEN,
    READER_GONE,
    discard_output,
    harmless_streams,
    open_streams,
    status_of,
)
from memviz.errors import MemvizError, library_needed
from memviz.memory import without_collection
from memviz.text import escape_control_chars

if TYPE_CHECKING:
    from memviz.commands.command import Command

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
_MODULES = {**dict.fromkeys(("summary", "peak", "at", "findings"), "explore"), "report": "export"}
"""Modules of commands that share one; each other command has a module of its name."""


def columns_of_terminal() -> int:
    """Like `shutil.get_terminal_size`, which would import three compressors."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80 if sys.__stdout__ else 80
    except (OSError, ValueError):
        return 80


class _Help(argparse.HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns_of_terminal() - 2)


def parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser with the arguments of the given command, or of all commands."""
    top = argparse.ArgumentParser(prog=PROGRAM, description=DESCRIPTION, epilog=EPILOG, formatter_class=_Help)
    top.add_argument("--version", action="version", version=f"memviz {VERSION}")
    choices = top.add_subparsers(prog=PROGRAM, dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        child = choices.add_parser(name, help=summary, description=summary, formatter_class=_Help)
        if arguments is None or name == next((word for word in arguments if not word.startswith("-")), ""):
            command = load_command(name)
            command.add_arguments(child)
            child.set_defaults(run=command.run, takes_over=command.takes_over)
    return top


def load_command(name: str) -> Command:
    with without_collection():
        command: Command = import_module(f"memviz.commands.{_MODULES.get(name, name)}").COMMANDS[name]
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    stdout = sys.stdout
    open_streams()
    args = argparse.Namespace()
    argv = sys.argv[1:] if arguments is None else arguments

    def parse_and_run() -> int:
        parser(argv).parse_args(argv, args)
        return 0 if args.takes_over else int(args.run(args))

    with harmless_streams():
        status = status_of(parse_and_run)
        if status in (READER_GONE, NOT_WRITTEN):
            discard_output()
    if getattr(args, "takes_over", False) and not status:
        # The script's output, its signals and its exit status are its own.
        sys.stdout = stdout
        return _run_script(args)
    return status


def _run_script(args: argparse.Namespace) -> int:
    try:
        status: int = args.run(args)
    except MemvizError as error:
        print(f"memviz: {escape_control_chars(str(error))}", file=sys.stderr)
        return FAILED
    except ModuleNotFoundError as error:
        needed = library_needed(error)
        if needed is None:
            raise
        print(f"memviz: {needed}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status
