"""The command line: one small file per command, one list of them, and one place where errors are shown."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from memviz.commands import at, diff, export, open, peak, record, replay, report, reproduce, run, summary
from memviz.commands.command import Command
from memviz.errors import MemvizError

COMMANDS: tuple[Command, ...] = (
    summary.COMMAND,
    peak.COMMAND,
    at.COMMAND,
    diff.COMMAND,
    replay.COMMAND,
    report.COMMAND,
    export.COMMAND,
    open.COMMAND,
    run.COMMAND,
    reproduce.COMMAND,
    record.COMMAND,
)
_EPILOG = "Every command reads a snapshot of any PyTorch release: a pickle or JSON, plain or gzipped."
FAILED = 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m memviz", description="Explore PyTorch memory snapshots.", epilog=_EPILOG
    )
    choices = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        child = choices.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(child)
        child.set_defaults(run=command.run)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except MemvizError as error:
        print(f"memviz: {error}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain once more while it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return status
