"""One self-contained page to keep or to send."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from memviz.analysis.which_device import chosen_device
from memviz.commands.command import Command, add_device, add_file, open_trace
from memviz.errors import UsageError
from memviz.trace.model import Trace
from memviz.trace.write import replacing
from memviz.ui.saved.report import check_count, report_page

_OF_RECORDINGS = ("pickle", "pkl", "json", "csv")


def report(traces: Sequence[Trace], device: str | None = None) -> str:
    """The page as HTML."""
    return report_page([(trace, chosen_device(trace, device)) for trace in traces])


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser, many="+")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PAGE.html")
    add_device(parser)


def _check_place(output: Path, files: Sequence[Path]) -> None:
    """A recording is gone once a page has taken its place."""
    if any(output.exists() and file.exists() and output.samefile(file) for file in files):
        raise UsageError(f"{output.name} is the recording itself. Name another file, such as report.html.")
    if output.name.removesuffix(".gz").rpartition(".")[2].lower() in _OF_RECORDINGS:
        raise UsageError(f"{output.name}: a report is a page. Name it .html.")


def _run(args: argparse.Namespace) -> int:
    check_count(len(args.files))
    _check_place(args.output, args.files)
    page = report([open_trace(path) for path in args.files], args.device)
    with replacing(args.output) as file:
        file.write(page.encode("utf-8", "replace"))
    return 0


COMMAND = Command(_add_arguments, _run)
