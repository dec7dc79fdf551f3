"""Differences from the first trace's peak to the others', by call site: in the terminal or as Markdown.

Two folders are two jobs, compared rank by rank.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memviz.analysis.comparing.changes import Changes, setting_differences
from memviz.analysis.comparing.matching import GROUPINGS
from memviz.analysis.devices import choose_device
from memviz.commands.command import (
    Command,
    add_device,
    add_file,
    add_grouping,
    add_json,
    open_trace,
    print_json,
    print_result_table,
    print_table,
    printable,
)
from memviz.errors import UsageError
from memviz.results.comparison import Comparison, comparison_result
from memviz.results.headline import consecutive_spans, distinct_names, letter, reserved_text
from memviz.text import escape_control_chars
from memviz.trace.model import is_reserved_known
from memviz.units import bytes_text, count_text, delta_text, limit_bytes, parse_bytes, percent_text

if TYPE_CHECKING:
    from memviz.ranks.summary import JobChanges, RankChange

_CAUSES = 3
_LONGEST = 200


def markdown(comparison: Comparison, *, grown: Sequence[int], link: str | None) -> str:
    """`grown` are the numbers of the traces that grew by more than allowed."""
    changes = comparison.found
    parts = [f"### {plain(str(comparison.headline))}", "", *_peaks(changes), ""]
    for number in range(1, len(changes.moments)):
        parts += [*_markdown_causes(changes, number), ""]
    for number in grown:
        parts += [f"**The peak of {letter(number)} grew by more than allowed.**", ""]
    if link:
        parts += [f"[Open it in memviz]({link})", ""]
    return "\n".join(parts)


def _peaks(comparison: Changes) -> list[str]:
    rows = [
        _markdown_row("", "trace", "live at the peak", "peak reserved", "change from A"),
        _markdown_row("---", "---", *["---:"] * 3),
    ]
    for number, moment in enumerate(comparison.moments):
        device = f", device {moment.which.name}" if moment.which.is_one_of_several else ""
        sizes = bytes_text(moment.live_bytes), reserved_text(moment.live_bytes, moment.reserved_peak_bytes)
        change = "baseline" if number == 0 else _change(comparison, number, ", {}")
        rows.append(_markdown_row(letter(number), code(moment.source + device), *sizes, change))
    return rows


def _markdown_causes(comparison: Changes, number: int) -> list[str]:
    """Those that change the peak most; what they leave is a row, so that all add up."""
    rows = sorted((row for row in comparison.rows if row.delta(number)), key=lambda row: -abs(row.delta(number)))[
        :_CAUSES
    ]
    if not rows:
        return [f"The peaks of A and {letter(number)} hold the same allocations."]
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


def print_comparison(comparison: Comparison, top: int | None) -> None:
    print(f"{printable(str(comparison.headline))}\n")
    for number, moment in enumerate(comparison.found.moments):
        change = "" if number == 0 else f", {_change(comparison.found, number)}"
        device = f", device {moment.which.name}" if moment.which.is_one_of_several else ""
        in_file = is_reserved_known(moment.live_bytes, moment.reserved_peak_bytes)
        reserved = f"peak reserved {bytes_text(moment.reserved_peak_bytes)}" if in_file else "reserved not known"
        live = f"{bytes_text(moment.live_bytes)} live at the peak{change}"
        print(f"{letter(number)}  {printable(moment.source)}{device}: {live}; {reserved}")
    print()
    print_result_table(comparison.table(top))
    for setting in setting_differences([trace for trace, _ in comparison.sides]):
        if setting.is_known_to_differ:
            values = ("unknown" if value is None else value or "not set" for value in setting.values)
            print(f"\n{printable(setting.name)}: {printable(', '.join(values))}")


def _change(comparison: Changes, number: int, share_form: str = " ({})") -> str:
    before = comparison.moments[0].live_bytes
    share = share_form.format(percent_text(comparison.delta(number), before)) if before else ""
    return f"{delta_text(comparison.delta(number))}{share}"


def share_or_bytes(text: str) -> tuple[float, str]:
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage or a size, such as 5% or 200MiB") from None


def _report_exceeded(comparison: Changes, grown: Sequence[int], ran_out: Sequence[int]) -> None:
    for i in grown:
        grew = f"the peak of {comparison.moments[i].source} grew by {_change(comparison, i)}"
        print(f"memviz: {grew}, more than allowed", file=sys.stderr)
    for i in ran_out:
        moment, baseline = comparison.moments[i], comparison.moments[0]
        event = count_text(moment.ran_out_at or 0)
        message = f"{moment.source} ran out of memory at event {event}, but {baseline.source} did not"
        print(f"memviz: {message}", file=sys.stderr)


def _link(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s()<>\\]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL such as https://host/page")
    return text


_TABLE = ".parquet"
_JOB_GROUPINGS = ("site", "category")
"""Rows of ranks hold no others."""


def _is_job(path: Path) -> bool:
    return path.is_dir() or path.suffix == _TABLE


def _diff_jobs(args: argparse.Namespace) -> int:
    """Compare two folders, or tables that `ranks -o` wrote, of one snapshot per rank."""
    # Files are compared without the libraries that folders need.
    from memviz.commands.ranks import read_job
    from memviz.ranks.gather import Gathering
    from memviz.ranks.summary import job_changes
    from memviz.results.ranks import jobs_json

    _check_jobs(args.files, args.by)
    jobs = [read_job(Gathering((str(path),), args.device)) for path in args.files]
    changes, top = job_changes(*jobs), args.top or None
    names = _job_names([path.resolve() for path in args.files])
    refused: list[str] = [] if args.max_growth is None else _jobs_exceeded(changes, args.max_growth, names)
    lost = changes.alone(0) if args.max_growth is not None else ()
    if args.json:
        print_json(jobs_json(changes, names, args.by, top))
    elif args.markdown:
        print(_jobs_markdown(changes, names, args.by, refused, args.link))
    else:
        _print_jobs(changes, args, names, top)
    for line in refused:
        print(f"memviz: {printable(line)}", file=sys.stderr)
    if lost and not refused:
        raise UsageError(f"Cannot check {_numbers(lost, 'r')} of {names[0]}: no snapshot in {names[1]}.")
    return GREW if refused else 0


def _job_names(paths: Sequence[Path]) -> list[str]:
    """Return the folders' own names, or those from the first folder on in which they differ."""
    parts = [path.parts for path in paths]
    depth = next((depth for depth in range(1, min(map(len, parts))) if parts[0][-depth] != parts[1][-depth]), 1)
    return distinct_names(["/".join(names[-depth:]) for names in parts])


def _check_jobs(files: Sequence[Path], by: str) -> None:
    single = next((path for path in files if not _is_job(path)), None)
    if single is not None:
        other = next(path for path in files if _is_job(path))
        raise UsageError(
            f"{other} is a job of several ranks, {single} is not. Compare two folders, or files of one rank each."
        )
    if len(files) != 2:
        raise UsageError(f"diff compares two jobs, not {len(files)}. Name the baseline first.")
    if by not in _JOB_GROUPINGS:
        raise UsageError(
            f"Jobs are compared by {' or '.join(_JOB_GROUPINGS)}. For {by}, compare the files of one rank."
        )


def _jobs_exceeded(changes: JobChanges, allowed: tuple[float, str], names: Sequence[str]) -> list[str]:
    """Return lines on the ranks that grew by more than allowed, and on those that alone ran out of memory."""
    grown = [change for change in changes.ranks if change.delta_bytes > limit_bytes(allowed, change.peaks[0])]
    lines = []
    if grown:
        most = max(grown, key=lambda change: change.delta_bytes)
        share = f" ({percent_text(most.delta_bytes, most.peaks[0])})" if most.peaks[0] else ""
        which = _numbers([change.ranks[0] for change in grown])
        also = f", most on rank {most.ranks[0]}" if len(grown) > 1 else ""
        lines.append(f"{which} grew by more than allowed{also}: {delta_text(most.delta_bytes)}{share}")
    if ran_out := changes.ran_out():
        lines.append(f"{_numbers(ran_out)} ran out of memory in {names[1]}, but not in {names[0]}")
    return lines


def _numbers(ranks: Sequence[int], initial: str = "R") -> str:
    from memviz.results.ranks import ranks_text

    return f"{initial}{ranks_text(ranks)[1:]}"


def _print_jobs(changes: JobChanges, args: argparse.Namespace, names: Sequence[str], top: int | None) -> None:
    from memviz.results.ranks import jobs_headline, ranks_text

    print(printable(str(jobs_headline(changes, names))))
    for side, (path, job) in enumerate(zip(args.files, changes.jobs, strict=True)):
        origins = ", ".join(sorted({rank.row.origin for rank in job.ranks})[:_CAUSES])
        numbers = ranks_text([rank.number for rank in job.ranks])
        print(printable(f"{letter(side)}  {path}: {numbers}, {origins}"))
    changed = sorted((one for one in changes.ranks if one.delta_bytes), key=lambda one: -abs(one.delta_bytes))
    _print_changes("ranks", changed[:top], args.by, changes.total)
    if 1 < len(changes.groups) < len(changed):
        _print_changes("ranks equal in A and B", changes.groups[:top], args.by, changes.total)
    print()
    rows, rest = changes.total.rows(args.by, top)
    cells = [[delta_text(row.delta_bytes), row.words] for row in rows]
    cells += [[delta_text(rest), "(all others)"]] if rest else []
    cells.append([delta_text(changes.total.delta_bytes), "sum"])
    print_table(["B - A", f"{args.by}, all ranks"], cells, number_columns=1)
    for failed in (failed for job in changes.jobs for failed in job.failed):
        print(f"\n! {printable(failed.place)}\n  {printable(failed.reason)}")


def _print_changes(head: str, changes: Sequence[RankChange], by: str, total: RankChange) -> None:
    from memviz.results.ranks import spans_text

    rows = [[*_cells(one), spans_text(consecutive_spans(one.ranks)), _largest(one, by)] for one in changes]
    rows += [[*cells, "(all others)", ""] for cells in _others(changes, total)]
    print()
    rows.append([*_cells(total), "sum", ""])
    print_table(["A", "B", "B - A", head, f"largest {by}"], rows, number_columns=3)


def _others(shown: Sequence[RankChange], total: RankChange) -> list[list[str]]:
    """Return the cells of what the shown ranks leave of the total, where they leave any rank."""
    if sum(len(change.ranks) for change in shown) == len(total.ranks):
        return []
    before, after = (total.peaks[side] - sum(change.peaks[side] for change in shown) for side in (0, 1))
    return [[bytes_text(before), bytes_text(after), delta_text(after - before)]]


def _cells(change: RankChange) -> list[str]:
    return [*map(bytes_text, change.peaks), delta_text(change.delta_bytes)]


def _largest(change: RankChange, by: str) -> str:
    rows, _ = change.rows(by, 1)
    return f"{delta_text(rows[0].delta_bytes)} {rows[0].words}" if rows else ""


def _jobs_markdown(changes: JobChanges, names: Sequence[str], by: str, refused: Sequence[str], link: str | None) -> str:
    from memviz.results.ranks import jobs_headline

    total, shown = changes.total, changes.groups[:_CAUSES]
    head = _markdown_row("ranks", "A", "B", "change", f"largest {by}")
    lines = [f"### {plain(str(jobs_headline(changes, names)))}", "", head, _markdown_row("---", *["---:"] * 3, "---")]
    for change in shown:
        largest = _largest(change, by)
        lines.append(_markdown_row(_numbers(change.ranks), *_cells(change), code(largest) if largest else ""))
    lines += [_markdown_row("everything else", *cells, "") for cells in _others(shown, total)]
    lines += [_markdown_row("**sum**", *_cells(total), ""), ""]
    rows, left = total.rows(by, _CAUSES)
    if rows:
        lines += [_markdown_row(f"{by}, all ranks", "change"), _markdown_row("---", "---:")]
        lines += [_markdown_row(code(row.words), delta_text(row.delta_bytes)) for row in rows]
        lines += [_markdown_row("everything else", delta_text(left))] if left else []
        lines += [_markdown_row("**sum**", delta_text(total.delta_bytes)), ""]
    lines += [f"**{plain(line)}.**\n" for line in refused]
    lines += [f"[Open it in memviz]({link})", ""] if link else []
    return "\n".join(lines)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser, many="+", help="snapshots, baseline first; or two folders with one snapshot per rank")
    add_device(parser)
    add_grouping(parser, GROUPINGS)
    parser.add_argument(
        "--max-growth", type=share_or_bytes, metavar="5%|200MiB",
        help="exit with status 1 if a peak exceeds the first by more, or if only a later trace ran out of memory",
    )  # fmt: skip
    add_json(parser)
    parser.add_argument("--markdown", action="store_true", help="write Markdown for a pull request comment")
    parser.add_argument("--link", type=_link, metavar="URL", help="link to add to the comment")


def _run(args: argparse.Namespace) -> int:
    if len(args.files) < 2:
        raise UsageError("diff takes two or more files, baseline first.")
    if args.json and args.markdown:
        raise UsageError("Use --json or --markdown, not both.")
    if any(map(_is_job, args.files)):
        return _diff_jobs(args)
    traces = [open_trace(path) for path in args.files]
    comparison = comparison_result([(trace, choose_device(trace, args.device)) for trace in traces], args.by)
    changes, top = comparison.found, args.top or None
    grown = ran_out = []
    if args.max_growth is not None:
        most = limit_bytes(args.max_growth, changes.moments[0].live_bytes)
        grown = [i for i in range(1, len(changes.moments)) if changes.delta(i) > most]
        # The peak of a trace that ran out of memory is no measure.
        refused = [i for i, moment in enumerate(changes.moments) if moment.ran_out_at is not None]
        ran_out = refused if 0 not in refused else []
    if args.json:
        print_json(comparison.as_json(top))
    elif args.markdown:
        print(markdown(comparison, grown=grown, link=args.link))
    else:
        print_comparison(comparison, top)
    _report_exceeded(changes, grown, ran_out)
    return GREW if grown or ran_out else 0


COMMANDS = {"diff": Command(_add_arguments, _run)}
