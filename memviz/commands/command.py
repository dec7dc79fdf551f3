"""Shared by commands: opening a file, choosing a device, printing a result."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from memviz.commands.terminal import progress
from memviz.errors import UsageError
from memviz.text import escape_control_chars
from memviz.trace.load import load_trace
from memviz.trace.model import Trace
from memviz.units import parse_bytes

if TYPE_CHECKING:
    from memviz.results.result import Table
    from memviz.runner.request import Request

Value = TypeVar("Value")


@dataclass(frozen=True)
class Command:
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    takes_over: bool = False
    """True for a command that runs another program, whose streams, signals and exit status it takes on."""


def add_file(parser: argparse.ArgumentParser, *, many: str | None = None, help: str = "snapshots") -> None:
    if many:
        parser.add_argument("files", metavar="FILE", nargs=many, type=Path, help=help)
    else:
        parser.add_argument("file", metavar="FILE", type=Path, help="a snapshot")


_FIRST_DEVICE = "the one that ran out of memory, else the one with the highest peak"


def add_device(parser: argparse.ArgumentParser, default: str = _FIRST_DEVICE) -> None:
    parser.add_argument("--device", metavar="N", help=f"device number, or host0 for pinned memory (default: {default})")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="write JSON instead of text")


def add_grouping(parser: argparse.ArgumentParser, groupings: Sequence[str]) -> None:
    parser.add_argument("--by", choices=groupings, default="site", help="group rows by this (default: %(default)s)")
    add_top(parser)


def add_top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--top", type=count, default=20, metavar="N", help="rows to show, 0 for all (default: %(default)s)"
    )


def count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


def add_platform(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--platform", choices=("linux", "wsl", "windows"), default="linux",
        help="platform whose driver orders segment addresses, which decide between cached blocks of equal size "
        "(default: %(default)s)",
    )  # fmt: skip


def add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory", metavar="SIZE",
        help="memory of the card, such as 48GiB: for an unlisted card, or to override the memory of --card",
    )  # fmt: skip


def add_host_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host-memory", default="", metavar="SIZE", help="host memory, such as 64GiB: report whether the program fits"
    )


def add_parallel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpus", type=positive, default=1, metavar="N",
        help="predict one rank per class of equal ranks among N GPUs, sharded unless --parallel is given (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--parallel", action="append", default=[], metavar="AXIS=N",
        help="parallelism along data, shard, tensor or pipeline; offload=cpu keeps shards on the CPU; repeatable",
    )  # fmt: skip


def add_knobs(parser: argparse.ArgumentParser, help_with: str) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="KNOB=VALUE", help="set a knob of the workload; repeatable"
    )
    metavar = "NAME[:KNOB=VALUE,...]"
    parser.add_argument(
        "--with", dest="optimizations", action="append", default=[], metavar=metavar, help=help_with
    )  # fmt: skip


def add_optimizer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--optimizer", choices=("none", "sgd", "adamw", "adamw-fused", "adamw-for-loop"), default="none",
        help="optimizer that steps after backward (default: %(default)s, no optimizer step)",
    )  # fmt: skip


def add_script(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--module", action="store_true", help="run a module instead of a file")
    parser.add_argument("script", metavar="SCRIPT", help="script file, or module with -m")
    parser.add_argument("arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="arguments of the script")


def request_of(args: argparse.Namespace, **more: Any) -> Request:
    """The request of `run` or `fit`; `more` are options that only one of them has."""
    from memviz.allocator.context import DEFAULT_CARD
    from memviz.predictor.cards import card_text
    from memviz.runner.config_source import with_config
    from memviz.runner.request import Request, parse_name_and_knobs

    axes = dict(pair(text, "--parallel takes AXIS=N, such as --parallel tensor=2") for text in args.parallel)
    request = Request(
        workload=args.workload,
        settings=dict(map(pair, args.set)),
        optimizations=tuple(map(parse_name_and_knobs, args.optimizations)),
        card=card_text(args.card, args.memory) or DEFAULT_CARD,
        optimizer=args.optimizer,
        platform=args.platform,
        host_memory=args.host_memory,
        parallel={**({"gpus": str(args.gpus)} if args.gpus > 1 else {}), **axes},
        **more,
    )
    return with_config(request)


def pair(text: str, how: str = "--set takes KNOB=VALUE, such as --set batch=2") -> tuple[str, str]:
    knob, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"{how}, not {text}.")
    return knob.strip(), value.strip()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


@contextmanager
def shown_progress(words: Callable[[int, int], str]) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback that shows how much is done: on a terminal only, and gone when the work is done."""
    try:
        yield (lambda done, total: progress(words(done, total))) if sys.stderr.isatty() else None
    finally:
        progress("")


def percent(done: int, total: int) -> str:
    return f"{100 * done // max(total, 1)} %"


def open_trace(path: Path) -> Trace:
    with shown_progress(lambda *parts: f"Reading {path.name} {percent(*parts)}") as show:
        return load_trace(path, progress=show)


def option(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    """Read an option by `parse`, whose refusals argparse shows."""

    def parsed(text: str) -> Value:
        try:
            return parse(text)
        except (ValueError, UsageError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


byte_count = option(parse_bytes)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=True)
    print()


def printable(text: str) -> str:
    """Text from a file as one line of a terminal, whatever is in it."""
    return escape_control_chars(text, keep="")


def print_result_table(table: Table) -> None:
    print_table(table.head, [[*row.numbers, row.label] for row in table.rows], number_columns=len(table.head) - 1)


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, number_columns: int) -> None:
    """The first columns are numbers, aligned right; the rest is text."""
    cells = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        padded = [row[i].rjust(widths[i]) if i < number_columns else row[i].ljust(widths[i]) for i in range(len(head))]
        print("  ".join(padded).rstrip())
