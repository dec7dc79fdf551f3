"""The command line: one small file per command, one list of them, and one place where errors are shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from memviz.commands import (
    at,
    diff,
    export,
    findings,
    fit,
    open,
    peak,
    predict,
    ranks,
    record,
    replay,
    report,
    reproduce,
    run,
    summary,
)
from memviz.commands.command import Command
from memviz.commands.terminal import (
    FAILED,
    INTERRUPTED,
    NOBODY_READS,
    NOT_WRITTEN,
    harmless,
    harmless_streams,
    let_go_of_output,
    open_streams,
    status_of,
)
from memviz.errors import MemvizError

COMMANDS: tuple[Command, ...] = (
    summary.COMMAND,
    peak.COMMAND,
    findings.COMMAND,
    at.COMMAND,
    diff.COMMAND,
    ranks.COMMAND,
    replay.COMMAND,
    report.COMMAND,
    export.COMMAND,
    open.COMMAND,
    run.COMMAND,
    fit.COMMAND,
    reproduce.COMMAND,
    predict.COMMAND,
    record.COMMAND,
)
_EPILOG = "Every command reads a snapshot of any PyTorch release: a pickle or JSON, plain or gzipped."


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m memviz", description="Explore PyTorch memory snapshots.", epilog=_EPILOG
    )
    choices = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        child = choices.add_parser(command.name, help=command.help, description=command.help)
        command.add_arguments(child)
        child.set_defaults(run=command.run, takes_over=command.takes_over)
    return top


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
    parser().parse_args(arguments, args)
    status: int = 0 if args.takes_over else args.run(args)
    return status


def _taken_over(args: argparse.Namespace) -> int:
    try:
        status: int = args.run(args)
    except MemvizError as error:
        print(f"memviz: {harmless(str(error))}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status
