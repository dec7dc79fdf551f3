"""A trace written again: as a snapshot that other viewers open, or as a table."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from memviz.analysis.allocations import write_allocations
from memviz.analysis.which_device import chosen_device
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


def export(trace: Trace, path: str | os.PathLike[str], *, format: str | None = None, table: str | None = None) -> None:
    """Writes a pickle that PyTorch's own viewer opens, JSON of the same shape, or one of the tables as CSV.

    Args:
        path: Its ending says the format, and `.gz` behind it packs the file.
        format: pickle, json or csv, where the ending does not say it.
        table: Of a CSV: allocations (the default), events or stacks.
    """
    path = Path(path)
    kind = format or _format_of(path)
    if table is not None and kind != "csv":
        raise UsageError(
            f"A table is written as CSV, and {path.name} would be {kind}. Leave the table away, or name a .csv."
        )
    with replacing(path) as file:
        if kind == "pickle":
            write_pickle(trace, file)
            return
        text = cast(TextIO, _Utf8(file))
        write_json(trace, text) if kind == "json" else _TABLES[table or _USUAL_TABLE](trace, text)


class _Utf8:
    """Text onto a binary file, whatever the locale says."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        return self._file.write(text.encode("utf-8", "backslashreplace"))


def _format_of(path: Path) -> str:
    ending = path.name.removesuffix(".gz").rpartition(".")[2].lower()
    if ending not in _FORMATS:
        raise UsageError(f"{path.name} does not say which format to write. Add --format pickle, json or csv.")
    return _FORMATS[ending]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help=".pickle, .json or .csv; .gz packs it"
    )
    parser.add_argument(
        "--format", choices=sorted(set(_FORMATS.values())), help="where the file's ending does not say it"
    )
    parser.add_argument("--table", choices=list(_TABLES), help=f"of a CSV (default: {_USUAL_TABLE})")
    parser.add_argument("--strip-paths", action="store_true", help="for sharing: leave no folder of yours in it")
    add_device(parser, "all")


def _run(args: argparse.Namespace) -> int:
    trace = open_trace(args.file)
    if args.device is not None:
        trace = replace(trace, devices=(chosen_device(trace, args.device),))
    if args.strip_paths:
        trace = strip_paths(trace)
    export(trace, args.output, format=args.format, table=args.table)
    return 0


COMMAND = Command(_add_arguments, _run)
