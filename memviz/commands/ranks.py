"""Many ranks of one program: a folder of snapshots -> who is highest, who is out of line, and why."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from memviz.commands.command import (
    Command,
    add_device,
    add_json,
    add_top,
    byte_count,
    positive,
    print_json,
    print_table,
    printable,
    shown_progress,
)
from memviz.ranks.card import OnCard, fit_on_card, replay_close_ranks
from memviz.ranks.gather import Gathering, gather_ranks
from memviz.ranks.numbers import Rank
from memviz.ranks.summary import NamedDelta, RankSummary
from memviz.results.headline import consecutive_spans, reserved_text
from memviz.results.ranks import card_memory, missing_ranks, ranks_headline, ranks_json, spans_text
from memviz.units import bytes_text, count_text, counted, delta_text, percent_text

_MORE = """\
PLACE is a folder, a glob, one or several files, also on remote file systems of fsspec (s3://, hf://, ssh://);
or a table written by -o, in place of the snapshots.
The rank number comes from the file, else from the file name.
"""


def _print(job: RankSummary, card: OnCard | None, top: int) -> None:
    print(f"{printable(str(ranks_headline(job, card)))}\n")
    _print_ranks(job, top)
    if len(job.groups) > 1:
        print("\nGroups of similar ranks:")
        for group in job.usual_groups[: top or None]:
            peaks = bytes_text(group.peak_bytes)
            if group.least_bytes != group.most_bytes:
                peaks += f" ({bytes_text(group.least_bytes)} to {bytes_text(group.most_bytes)})"
            spans = spans_text(consecutive_spans(group.ranks))
            print(f"  {peaks}: {counted(len(group.ranks), 'rank')}, {spans}")
        _print_rest(len(job.usual_groups), top, "group")
    for one in job.outliers[: top or None]:
        against = f"rank {one.against}, the median of the nearest group"
        print(f"\nRank {one.rank}: {delta_text(one.delta_bytes)} compared with {against}:")
        _print_differences(one.because)
    _print_rest(len(job.outliers), top, "outlier")
    gap = job.imbalance
    if gap.bytes:
        print(f"\nFrom rank {gap.lowest} (lowest) to rank {gap.highest} (highest): {delta_text(gap.bytes)}")
        _print_differences(gap.categories)
    if job.missing:
        print(f"\n{missing_ranks(job)}")
    for failed in job.failed:
        print(f"\n! {printable(failed.place)}\n  {printable(failed.reason)}")


def _print_ranks(job: RankSummary, top: int) -> None:
    """The highest peaks first."""
    in_order = sorted(job.ranks, key=lambda rank: (-rank.row.peak_bytes, rank.number))
    rows = []
    for rank in in_order[: top or None]:
        row = rank.row
        most = row.categories[0] if row.categories else None
        kind = f"{percent_text(most.bytes, row.peak_bytes)} {most.words}" if most else ""
        site = f"{bytes_text(row.sites[0].bytes)} {row.sites[0].label}" if row.sites else ""
        ran_out = f" (out of memory: {bytes_text(row.ran_out[-1].requested_bytes)} requested)" if row.ran_out else ""
        reserved = reserved_text(row.peak_bytes, row.reserved_peak_bytes)
        rows.append([str(rank.number), bytes_text(row.peak_bytes), reserved, kind, f"{site}{ran_out}"])
    print_table(["rank", "peak", "reserved", "largest category", "largest site"], rows, number_columns=3)
    _print_rest(len(in_order), top, "rank")
    for line in _unlike_others(in_order, top):
        print(printable(line))


def _unlike_others(ranks: Sequence[Rank], top: int) -> list[str]:
    """Return lines on ranks whose figures are of one device among several, or of another origin than the others'."""
    usual, _ = Counter(rank.row.origin for rank in ranks).most_common(1)[0]
    lines = []
    for number, row in ((rank.number, rank.row) for rank in ranks[: top or None]):
        if row.device_count > 1:
            lines.append(f"Rank {number} is device {row.device} of {count_text(row.device_count)} devices in its file.")
        if row.origin != usual:
            lines.append(f"Rank {number} is {row.origin}, others are {usual}.")
    return lines


def _print_rest(many: int, top: int, noun: str) -> None:
    left = many - top
    if top and left > 0:
        print(f"... and {count_text(left)} more {noun}{'' if left == 1 else 's'} (--top 0)")


def _print_differences(rows: Sequence[NamedDelta]) -> None:
    for row in rows:
        print(f"  {delta_text(row.delta_bytes):>12}  {printable(row.words)}")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _MORE
    parser.add_argument("places", metavar="PLACE", nargs="+", help="location of the snapshots")
    add_device(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="write the rows, such as ranks.parquet; a second run resumes there",
    )  # fmt: skip
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="read on the workers of this Dask scheduler (tcp://host:8786)"
    )
    parser.add_argument(
        "--processes", type=positive, metavar="N", help="parallel processes on this machine (default: one per core)"
    )
    parser.add_argument(
        "--mesh", default="", metavar="SIZES", help="device mesh, if the files do not contain it: pp=2,dp=4"
    )
    parser.add_argument(
        "--card", metavar="CARD", help="smaller card, by name or size: which ranks would run out of memory first?"
    )
    parser.add_argument("--overhead", type=byte_count, metavar="SIZE", help="memory of that card for the CUDA context")
    add_top(parser)
    add_json(parser)


def read_job(wanted: Gathering) -> RankSummary:
    with shown_progress(lambda done, total: f"Reading {count_text(done)} of {count_text(total)} ranks") as show:
        return gather_ranks(wanted, progress=show)


def _run(args: argparse.Namespace) -> int:
    card = None if args.card is None else card_memory(args.card, args.overhead)
    job = read_job(Gathering(tuple(args.places), args.device, args.output, args.processes, args.scheduler, args.mesh))
    answer = None if card is None else replay_close_ranks(job.ranks, fit_on_card(job.ranks, card))
    print_json(ranks_json(job, answer)) if args.json else _print(job, answer, args.top)
    return 0


COMMANDS = {"ranks": Command(_add_arguments, _run)}
