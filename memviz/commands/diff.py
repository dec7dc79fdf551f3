"""Differences from the first trace's peak to the others', by call site: in the terminal or as Markdown."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from typing import Any

from memviz.analysis.comparing.changes import Changes, changes, setting_differences, summarize_comparison
from memviz.analysis.comparing.matching import GROUPINGS, Pair
from memviz.analysis.which_device import chosen_device
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_grouping,
    add_json,
    open_trace,
    print_json,
    print_table,
    printable,
)
from memviz.errors import UsageError
from memviz.headlines.compare import compare, compared_json
from memviz.headlines.headline import escape_control_chars
from memviz.headlines.names import letter, reserved_text
from memviz.trace.model import Trace, is_reserved_known
from memviz.units import bytes_text, count_text, delta_text, parse_bytes, percent_text

_CAUSES = 3
_LONGEST = 200


def markdown(sides: Sequence[Pair], comparison: Changes, *, grown: Sequence[int], link: str | None) -> str:
    """`grown` are the numbers of the traces that grew by more than allowed."""
    parts = [f"### {plain(str(compare(summarize_comparison(sides))))}", "", *_peaks(comparison), ""]
    for number in range(1, len(comparison.moments)):
        parts += [*_markdown_causes(comparison, number), ""]
    for number in grown:
        parts += [f"**The peak of {letter(number)} grew by more than is allowed.**", ""]
    if link:
        parts += [f"[Open it in memviz]({link})", ""]
    return "\n".join(parts)


def _peaks(comparison: Changes) -> list[str]:
    rows = [
        _markdown_row("", "trace", "live at the peak", "reserved at most", "against A"),
        _markdown_row("---", "---", *["---:"] * 3),
    ]
    for number, moment in enumerate(comparison.moments):
        device = f", device {moment.which.name}" if moment.which.is_one_of_several else ""
        sizes = bytes_text(moment.live_bytes), reserved_text(moment.live_bytes, moment.reserved_peak_bytes)
        rows.append(
            _markdown_row(letter(number), code(moment.source + device), *sizes, _peak_change(comparison, number))
        )
    return rows


def _peak_change(comparison: Changes, number: int) -> str:
    if number == 0:
        return "baseline"
    before = comparison.moments[0].live_bytes
    share = f", {percent_text(comparison.delta(number), before)}" if before else ""
    return f"{delta_text(comparison.delta(number))}{share}"


def _markdown_causes(comparison: Changes, number: int) -> list[str]:
    """Those that change the peak most; what they leave is a row, so that all add up."""
    rows = sorted((row for row in comparison.rows if row.delta(number)), key=lambda row: -abs(row.delta(number)))[
        :_CAUSES
    ]
    if not rows:
        return [f"Nothing is held differently at the peaks of A and {letter(number)}."]
    head = _markdown_row(f"from A to {letter(number)}", "A", letter(number), "change")
    lines = [head, _markdown_row("---", *["---:"] * 3)]
    lines += [_markdown_cells(code(row.thing.name), row.bytes[0], row.bytes[number]) for row in rows]
    peaks = [moment.live_bytes for moment in comparison.moments]
    rest = [peaks[side] - sum(row.bytes[side] for row in rows) for side in (0, number)]
    if any(rest):
        lines.append(_markdown_cells("everything else", *rest))
    return [*lines, _markdown_cells("**peak**", peaks[0], peaks[number])]


def _markdown_cells(name: str, before: int, after: int) -> str:
    return _markdown_row(name, bytes_text(before), bytes_text(after), delta_text(after - before))


def _markdown_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def code(text: str) -> str:
    """A code span of one line. Its fence is longer than any run of backticks inside."""
    line = escape_control_chars(text, keep="")[:_LONGEST].replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}"


def plain(text: str) -> str:
    """Text in which nothing is markup, a mention or a link."""
    return re.sub(r"([\\`*_{}\[\]()<>#|~])", r"\\\1", escape_control_chars(text, keep="")).replace("@", "&#64;")


GREW = 1
"""Exit status of a peak that grew more than allowed, or of a trace that ran out of memory where the first did not."""


def diff(
    traces: Sequence[Trace], device: str | None = None, by: str = "site", top: int | None = None
) -> dict[str, Any]:
    """Return the output of `python -m memviz diff --json`; for more than two traces it is under `comparisons`."""
    sides = _pairs(traces, device)
    return compared_json(sides, changes(sides, by, with_kinds=False), top)


def _pairs(traces: Sequence[Trace], device: str | None) -> list[Pair]:
    return [(trace, chosen_device(trace, device)) for trace in traces]


def _print(sides: Sequence[Pair], comparison: Changes, top: int | None) -> None:
    print(f"{printable(str(compare(summarize_comparison(sides))))}\n")
    for number, moment in enumerate(comparison.moments):
        change = "" if number == 0 else f", {_change(comparison, number)}"
        device = f", device {moment.which.name}" if moment.which.is_one_of_several else ""
        is_known = is_reserved_known(moment.live_bytes, moment.reserved_peak_bytes)
        reserved = f"{bytes_text(moment.reserved_peak_bytes)} reserved at most" if is_known else "reserved not known"
        live = f"{bytes_text(moment.live_bytes)} at the peak{change}"
        print(f"{letter(number)}  {printable(moment.source)}{device}: {live}; {reserved}")
    print()
    _print_rows(comparison, top)
    for setting in setting_differences([trace for trace, _ in sides]):
        if setting.is_known_to_differ:
            values = ("not said" if value is None else value or "not set" for value in setting.values)
            print(f"\n{printable(setting.name)}: {printable(', '.join(values))}")


def _print_rows(comparison: Changes, top: int | None) -> None:
    others = range(1, len(comparison.moments))
    rows = [_cells(row.bytes, [row.delta(other) for other in others], row.thing.name) for row in comparison.rows[:top]]
    rest = comparison.after(top)
    if any(rest.counts):
        rows.append(_cells(rest.bytes, [rest.delta(other) for other in others], "(all others)"))
    peaks = [moment.live_bytes for moment in comparison.moments]
    rows.append(_cells(peaks, [comparison.delta(other) for other in others], "peak"))
    letters = [letter(number) for number in range(len(comparison.moments))]
    head = [*letters, *(f"{other} - A" for other in letters[1:]), comparison.by]
    print_table(head, rows, left=len(head) - 1)


def _cells(sizes: Sequence[int], deltas: Sequence[int], name: str) -> list[str]:
    return [*map(bytes_text, sizes), *map(delta_text, deltas), name]


def _change(comparison: Changes, number: int) -> str:
    before = comparison.moments[0].live_bytes
    share = f" ({percent_text(comparison.delta(number), before)})" if before else ""
    return f"{delta_text(comparison.delta(number))}{share}"


def _allowed(text: str) -> tuple[float, str]:
    """'5%' of the baseline's peak, or bytes ('200MiB')."""
    try:
        if not text.strip().endswith("%"):
            return parse_bytes(text), "bytes"
        share = float(text.strip().removesuffix("%")) / 100
        # Of neither would any growth ever be too much, and less than none is no growth.
        if not math.isfinite(share) or share < 0:
            raise ValueError
        return share, "share"
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a percentage nor a size, such as 5% or 200MiB") from None


def _grown(comparison: Changes, allowed: tuple[float, str] | None) -> list[int]:
    """Numbers of the traces whose peak is higher than the baseline's by more than allowed."""
    if allowed is None:
        return []
    number, kind = allowed
    most = number * comparison.moments[0].live_bytes if kind == "share" else number
    return [i for i in range(1, len(comparison.moments)) if comparison.delta(i) > most]


def _newly_ran_out(comparison: Changes, allowed: tuple[float, str] | None) -> list[int]:
    """Numbers of the traces that ran out of memory where the baseline did not: their peaks are no measure."""
    baseline, *others = comparison.moments
    if allowed is None or baseline.ran_out_at is not None:
        return []
    return [i for i, moment in enumerate(others, 1) if moment.ran_out_at is not None]


def _say_ran_out(comparison: Changes, ran_out: Sequence[int]) -> None:
    for i in ran_out:
        moment, baseline = comparison.moments[i], comparison.moments[0]
        event = count_text(moment.ran_out_at or 0)
        words = f"{moment.source} ran out of memory at event {event}, and {baseline.source} did not"
        print(f"memviz: {words}", file=sys.stderr)


def _say_grown(comparison: Changes, grown: Sequence[int]) -> None:
    for i in grown:
        print(
            f"memviz: the peak of {comparison.moments[i].source} grew by {_change(comparison, i)}, more than allowed",
            file=sys.stderr,
        )


def _link(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s()<>\\]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no address such as https://host/page")
    return text


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser, many="+")
    add_device(parser)
    add_grouping(parser, GROUPINGS, top=20)
    parser.add_argument(
        "--max-growth",
        type=_allowed,
        metavar="5%|200MiB",
        help="end with status 1 if a peak is higher than the first by more, or if a later one alone ran out of memory",
    )
    add_json(parser)
    parser.add_argument("--markdown", action="store_true", help="write a comment for a pull request")
    parser.add_argument("--link", type=_link, metavar="URL", help="where the comment leads to")


def _run(args: argparse.Namespace) -> int:
    if len(args.files) < 2:
        raise UsageError("diff takes two files or more: the baseline first.")
    if args.json and args.markdown:
        raise UsageError("--json or --markdown, not both.")
    sides, top = _pairs([open_trace(path) for path in args.files], args.device), args.top or None
    comparison = changes(sides, args.by, with_kinds=False)
    grown = _grown(comparison, args.max_growth)
    if args.json:
        print_json(compared_json(sides, comparison, top))
    elif args.markdown:
        print(markdown(sides, comparison, grown=grown, link=args.link))
    else:
        _print(sides, comparison, top)
    ran_out = _newly_ran_out(comparison, args.max_growth)
    _say_grown(comparison, grown)
    _say_ran_out(comparison, ran_out)
    return GREW if grown or ran_out else 0


COMMAND = Command(_add_arguments, _run)
