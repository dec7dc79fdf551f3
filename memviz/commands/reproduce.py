"""The tables that memviz grew from, computed now, next to the published figures."""

from __future__ import annotations

import argparse
from typing import Any

from memviz.commands.command import Command, add_json, print_json, print_table
from memviz.commands.terminal import progress
from memviz.errors import UsageError

_NAMES = ("split-feed-forward", "checkpointing", "flat-gradients", "layerwise-casting")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("seed", nargs="?", help=f"one of {', '.join(_NAMES)} (default: all)")
    add_json(parser)


def _run(args: argparse.Namespace) -> int:
    if args.seed not in (None, *_NAMES):
        raise UsageError(f"Unknown table: {args.seed}. Choose one of {', '.join(_NAMES)}.")
    from memviz.runner.published import SEEDS

    everything: list[dict[str, Any]] = []
    for seed in SEEDS:
        if args.seed in (None, seed.name):

            def show(case: str, title: str = seed.title) -> None:
                progress(f"{title}: {case} ...")

            rows = [seed.as_json(row) for row in seed.rows(show)]
            everything += rows
            if not args.json:
                _print(seed, rows)
    if args.json:
        print_json(everything)
    return 0


def _print(seed: Any, rows: list[dict[str, Any]]) -> None:
    progress("")
    print(f"{seed.title}\npublished in {seed.source}; ours: predicted. {seed.window}\n")
    cells = [
        [
            row["case"],
            row["figure"],
            _number(row["published"], row["figure"]),
            _number(row["ours"], row["figure"]),
            "" if row["difference_percent"] is None else f"{row['difference_percent']:+.2f} %",
            row["note"],
        ]
        for row in rows
    ]
    print_table(["case", "figure", "published", "ours", "difference", ""], cells, number_columns=0)
    print()


def _number(value: float | None, figure: str) -> str:
    if value is None:
        return ""
    if "loss" in figure:
        return f"{value:.16g}"
    return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.3f}"


COMMANDS = {"reproduce": Command(_add_arguments, _run)}
