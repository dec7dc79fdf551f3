"""A comparison as a comment for a pull request: one sentence, the peaks, and the three largest causes.

Names come from files, and a comment is read as markup: they stand in code spans that they cannot leave.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from memviz.analysis.comparing.changes import Changes, summarize_comparison
from memviz.analysis.comparing.matching import Pair
from memviz.headlines.compare import compare
from memviz.headlines.headline import escape_control_chars
from memviz.headlines.names import letter, reserved_text
from memviz.units import bytes_text, delta_text, percent_text

_CAUSES = 3
_LONGEST = 200


def markdown(sides: Sequence[Pair], comparison: Changes, *, grown: Sequence[int], link: str | None) -> str:
    """`grown` are the numbers of the traces that grew by more than allowed."""
    parts = [f"### {plain(str(compare(summarize_comparison(sides))))}", "", *_peaks(comparison), ""]
    for number in range(1, len(comparison.moments)):
        parts += [*_causes(comparison, number), ""]
    for number in grown:
        parts += [f"**The peak of {letter(number)} grew by more than is allowed.**", ""]
    if link:
        parts += [f"[Open it in memviz]({link})", ""]
    return "\n".join(parts)


def _peaks(comparison: Changes) -> list[str]:
    rows = [_row("", "trace", "live at the peak", "reserved at most", "against A"), _row("---", "---", *["---:"] * 3)]
    for number, moment in enumerate(comparison.moments):
        device = f", device {moment.which.name}" if moment.which.is_one_of_several else ""
        sizes = bytes_text(moment.live_bytes), reserved_text(moment.live_bytes, moment.reserved_peak_bytes)
        rows.append(_row(letter(number), code(moment.source + device), *sizes, _against(comparison, number)))
    return rows


def _against(comparison: Changes, number: int) -> str:
    if number == 0:
        return "baseline"
    before = comparison.moments[0].live_bytes
    share = f", {percent_text(comparison.delta(number), before)}" if before else ""
    return f"{delta_text(comparison.delta(number))}{share}"


def _causes(comparison: Changes, number: int) -> list[str]:
    """Those that change the peak most; what they leave is a row, so that all add up."""
    rows = sorted((row for row in comparison.rows if row.delta(number)), key=lambda row: -abs(row.delta(number)))[
        :_CAUSES
    ]
    if not rows:
        return [f"Nothing is held differently at the peaks of A and {letter(number)}."]
    head = _row(f"from A to {letter(number)}", "A", letter(number), "change")
    lines = [head, _row("---", *["---:"] * 3)]
    lines += [_cells(code(row.thing.name), row.bytes[0], row.bytes[number]) for row in rows]
    peaks = [moment.live_bytes for moment in comparison.moments]
    rest = [peaks[side] - sum(row.bytes[side] for row in rows) for side in (0, number)]
    if any(rest):
        lines.append(_cells("everything else", *rest))
    return [*lines, _cells("**peak**", peaks[0], peaks[number])]


def _cells(name: str, before: int, after: int) -> str:
    return _row(name, bytes_text(before), bytes_text(after), delta_text(after - before))


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def code(text: str) -> str:
    """A code span of one line. Its fence is longer than any run of backticks inside."""
    line = escape_control_chars(text, keep="")[:_LONGEST].replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    return f"{fence} {line} {fence}"


def plain(text: str) -> str:
    """Text in which nothing is markup, a mention or a link."""
    return re.sub(r"([\\`*_{}\[\]()<>#|~])", r"\\\1", escape_control_chars(text, keep="")).replace("@", "&#64;")
