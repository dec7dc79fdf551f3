"""One self-contained page to keep or to send."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from memviz.analysis.which_device import chosen_device
from memviz.commands.command import Command, add_device, add_file, open_trace
from memviz.trace.formats.replacing import replacing
from memviz.trace.model import Trace
from memviz.ui.saved.report import check_count, report_page


def report(traces: Sequence[Trace], device: str | None = None) -> str:
    """The page as HTML."""
    return report_page([(trace, chosen_device(trace, device)) for trace in traces])


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser, many="+")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PAGE.html")
    add_device(parser)


def _run(args: argparse.Namespace) -> int:
    check_count(len(args.files))
    page = report([open_trace(path) for path in args.files], args.device)
    with replacing(args.output) as file:
        file.write(page.encode("utf-8", "replace"))
    return 0


COMMAND = Command(_add_arguments, _run)
