"""`export` writes a trace again, as a snapshot that other viewers open or as a table; `report` writes a page."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from memviz.analysis.allocations import write_allocations
from memviz.analysis.devices import choose_device
from memviz.commands.command import Command, add_device, add_file, open_trace
from memviz.errors import UsageError
from memviz.trace.model import Trace
from memviz.trace.strip import strip_paths
from memviz.trace.write import replacing, write_events, write_json, write_pickle, write_stacks

_FORMATS = {"pickle": "pickle", "pkl": "pickle", "json": "json", "csv": "csv"}
_TABLES: dict[str, Callable[[Trace, TextIO], None]] = {
    "allocations": write_allocations,
    "events": write_events,
    "stacks": write_stacks,
}

_USUAL_TABLE = "allocations"


def _export(args: argparse.Namespace) -> int:
    kind = args.format or _format_of(args.output)
    if args.table is not None and kind != "csv":
        name = args.output.name
        raise UsageError(f"--table needs a CSV file, but {name} is {kind}. Drop --table, or name a .csv file.")
    trace = open_trace(args.file)
    if args.device is not None:
        trace = replace(trace, devices=(choose_device(trace, args.device),))
    if args.strip_paths:
        trace = strip_paths(trace)
    with replacing(args.output) as file:
        if kind == "pickle":
            write_pickle(trace, file)
        else:
            text = cast(TextIO, _Utf8(file))
            write_json(trace, text) if kind == "json" else _TABLES[args.table or _USUAL_TABLE](trace, text)
    return 0


class _Utf8:
    """A text stream on a binary file, in UTF-8 whatever the locale."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode("utf-8", "backslashreplace"))


def _format_of(path: Path) -> str:
    ending = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if ending not in _FORMATS:
        raise UsageError(f"The format of {path.name} is not clear from its name. Add --format pickle, json or csv.")
    return _FORMATS[ending]


def _add_export_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help=".pickle, .json or .csv; add .gz to compress"
    )
    parser.add_argument(
        "--format", choices=sorted(set(_FORMATS.values())), help="output format (default: from the file name)"
    )
    parser.add_argument("--table", choices=list(_TABLES), help=f"table of a CSV file (default: {_USUAL_TABLE})")
    parser.add_argument("--strip-paths", action="store_true", help="remove folder names, for sharing")
    add_device(parser, "all")


def _report(args: argparse.Namespace) -> int:
    from memviz.ui.saved.report import check_count, report_page

    check_count(len(args.files))
    _check_place(args.output, args.files)
    traces = [open_trace(path) for path in args.files]
    page = report_page([(trace, choose_device(trace, args.device)) for trace in traces])
    with replacing(args.output) as file:
        file.write(page.encode("utf-8", "replace"))
    return 0


def _add_report_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser, many="+")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PAGE.html")
    add_device(parser)


def _check_place(output: Path, files: Sequence[Path]) -> None:
    """Refuse to replace a recording by a page."""
    if any(output.exists() and file.exists() and output.samefile(file) for file in files):
        raise UsageError(f"{output.name} is the recording itself. Choose another file, such as report.html.")
    if output.name.removesuffix(".gz").rpartition(".")[2].lower() in _FORMATS:
        raise UsageError(f"{output.name}: a report is an HTML page. Use a name with .html.")


COMMANDS = {"export": Command(_add_export_arguments, _export), "report": Command(_add_report_arguments, _report)}
