"""The command line: one small file per command, one list of them, and one place where errors are shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from memviz.commands.terminal import (
    FAILED,
    INTERRUPTED,
    NOBODY_READS,
    NOT_WRITTEN,
    harmless_streams,
    let_go_of_output,
    open_streams,
    status_of,
)
from memviz.errors import MemvizError, library_needed
from memviz.headlines.harmless import harmless

if TYPE_CHECKING:
    from memviz.commands.command import Command

COMMANDS = {
    "summary": "What a snapshot holds, and what to know about it.",
    "peak": "What the peak is made of.",
    "findings": "What is worth knowing about a snapshot, ranked by bytes.",
    "at": "What is live after an event or at a time.",
    "diff": "From one peak to another: what holds more, what less.",
    "ranks": "Many ranks: the highest, who is out of line and why.",
    "replay": "What if: other allocator settings, or another card.",
    "report": "One self-contained page to keep or to send.",
    "export": "Write a trace again: normalised, stripped, as JSON or as CSV.",
    "open": "Start the page, with these files open in it.",
    "run": "Run a model with optimizations: predicted for a card, or measured on a GPU.",
    "fit": "Find the cheapest way to make a model fit on a card, predicted.",
    "reproduce": "The published tables of the four seeds beside ours.",
    "predict": "Run your own script on a GPU that is not there, and say what it would take.",
    "record": "Run your own script with the recording on, and write what it allocated.",
}
"""Each is a file of this folder that is not read before somebody asks for it: nobody pays for what another needs."""
_EPILOG = "Every command reads a snapshot of any PyTorch release: a pickle or JSON, plain or gzipped."


def parser(given: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """With the arguments of the command that is given; of every one where none is."""
    top = argparse.ArgumentParser(
        prog="python -m memviz", description="Explore PyTorch memory snapshots.", epilog=_EPILOG
    )
    choices = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, words in COMMANDS.items():
        child = choices.add_parser(name, help=words, description=words)
        if given is None or name == next((word for word in given if not word.startswith("-")), ""):
            command = command_named(name)
            command.add_arguments(child)
            child.set_defaults(run=command.run, takes_over=command.takes_over)
    return top


def command_named(name: str) -> Command:
    command: Command = import_module(f"memviz.commands.{name}").COMMAND
    return command


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.stdout
    open_streams()
    args = argparse.Namespace()
    with harmless_streams():
        status = status_of(lambda: _parsed_and_run(arguments, args))
        if status in (NOBODY_READS, NOT_WRITTEN):
            let_go_of_output()
    if getattr(args, "takes_over", False) and not status:
        # The script's output, its signals and its exit status are its own.
        sys.stdout = given
        return _taken_over(args)
    return status


def _parsed_and_run(arguments: Sequence[str] | None, args: argparse.Namespace) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    parser(given).parse_args(given, args)
    status: int = 0 if args.takes_over else args.run(args)
    return status


def _taken_over(args: argparse.Namespace) -> int:
    try:
        status: int = args.run(args)
    except MemvizError as error:
        print(f"memviz: {harmless(str(error))}", file=sys.stderr)
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
