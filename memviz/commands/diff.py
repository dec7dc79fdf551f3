"""From the first trace's peak to the others': which places hold how many bytes more or less."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from memviz.analysis.as_json import diff_json
from memviz.analysis.compare import Comparison, compare
from memviz.analysis.groups import GROUPINGS
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_grouping,
    add_json,
    choose_device,
    open_trace,
    print_json,
    print_table,
    printable,
)
from memviz.errors import UsageError
from memviz.trace.model import Trace
from memviz.units import bytes_text, delta_text, parse_bytes, percent_text

GREW = 1
"""Exit status of a peak that grew more than allowed."""


def diff(
    traces: Sequence[Trace], device: str | None = None, by: str = "site", top: int | None = None
) -> dict[str, Any]:
    """As `python -m memviz diff --json` writes it; of more than two traces under `comparisons`."""
    return diff_json(compare([(each, choose_device(each, device)) for each in traces], by, top=top))


def _print(found: Comparison) -> None:
    for number, moment in enumerate(found.moments):
        change = "" if number == 0 else f", {_change(found, number)}"
        reserved = bytes_text(moment.reserved_peak_bytes)
        print(
            f"{_letter(number)}  {printable(moment.source)}: {bytes_text(moment.live_bytes)} at the peak{change}; "
            f"{reserved} reserved"
        )
    letters = [_letter(number) for number in range(len(found.moments))]
    changes = [f"{each} - A" for each in letters[1:]]
    rows = [[*map(bytes_text, row.bytes), *map(delta_text, row.delta_bytes[1:]), row.label] for row in found.rows]
    if any(found.rest_counts):
        rows.append([*map(bytes_text, found.rest_bytes), *map(delta_text, found.rest_delta_bytes[1:]), "(all others)"])
    totals = [each.live_bytes for each in found.moments]
    rows.append([*map(bytes_text, totals), *map(delta_text, found.delta_bytes[1:]), "peak"])
    print()
    print_table([*letters, *changes, found.by], rows, left=len(letters) + len(changes))
    for setting in found.settings:
        print(f"\n{printable(setting.name)}: {printable(', '.join(str(each) for each in setting.values))}")


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else f"#{number + 1}"


def _change(found: Comparison, number: int) -> str:
    before = found.moments[0].live_bytes
    return f"{delta_text(found.delta_bytes[number])} ({percent_text(found.delta_bytes[number], before)})"


def _allowed(text: str) -> tuple[float, str]:
    """'5%' of the baseline's peak, or bytes ('200MiB')."""
    try:
        if text.strip().endswith("%"):
            return float(text.strip().removesuffix("%")) / 100, "share"
        return parse_bytes(text), "bytes"
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a percentage nor a size, such as 5% or 200MiB") from None


def _grew_too_much(found: Comparison, allowed: tuple[float, str]) -> bool:
    number, kind = allowed
    most = number * found.moments[0].live_bytes if kind == "share" else number
    grown = [i for i in range(1, len(found.moments)) if found.delta_bytes[i] > most]
    for i in grown:
        print(
            f"memviz: the peak of {found.moments[i].source} grew by {_change(found, i)}, more than allowed",
            file=sys.stderr,
        )
    return bool(grown)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser, many="+")
    add_device(parser)
    add_grouping(parser, list(GROUPINGS), top=20)
    parser.add_argument(
        "--max-growth",
        type=_allowed,
        metavar="5%|200MiB",
        help="end with status 1 if a peak is higher than the first by more",
    )
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    if len(args.files) < 2:
        raise UsageError("diff takes two files or more: the baseline first.")
    traces = [open_trace(path) for path in args.files]
    pairs = [(each, choose_device(each, args.device)) for each in traces]
    found = compare(pairs, args.by, top=args.top or None)
    print_json(diff_json(found)) if args.json else _print(found)
    return GREW if args.max_growth and _grew_too_much(found, args.max_growth) else 0


COMMAND = Command("diff", "From one peak to another: what holds more, what less.", _add_arguments, _run)
