"""What leaves Compare as a file: the comparison as a page, and its table of differences."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import Any

from memviz.analysis.comparing.changes import Changes, changes
from memviz.analysis.comparing.matching import Pair
from memviz.errors import UsageError
from memviz.trace.formats.write_tables import safe, write_tables
from memviz.ui.compare.state import LETTERS
from memviz.ui.saved.report import report_page


def comparison_file(sides: Sequence[Pair], kind: str, by: str) -> dict[str, Any]:
    if kind == "html":
        return {"name": "comparison.html", "type": "text/html;charset=utf-8", "text": report_page(sides, by)}
    if kind == "csv":
        text = changes_csv(changes(sides, by))
        return {"name": f"comparison-by-{by}.csv", "type": "text/csv;charset=utf-8", "text": text}
    raise UsageError(f"A comparison cannot be saved as {kind!r}.")


def changes_csv(comparison: Changes) -> str:
    """Every row, every trace, all digits, and the peaks they add up to."""
    rows, others = comparison.rows, range(1, len(comparison.moments))
    peaks = [moment.live_bytes for moment in comparison.moments]
    columns: dict[str, list[Any]] = {
        comparison.by: [*(safe(row.thing.label) for row in rows), "peak"],
        "function": [*(safe(row.thing.function) for row in rows), ""],
        "operator": [*(safe(row.thing.operator) for row in rows), ""],
        "mostly": [*(row.kind for row in rows), ""],
    }
    for number, peak in enumerate(peaks):
        columns[f"{LETTERS[number]}_bytes"] = [*(row.bytes[number] for row in rows), peak]
        columns[f"{LETTERS[number]}_allocations"] = [*(row.counts[number] for row in rows), _sum(comparison, number)]
    for other in others:
        columns[f"{LETTERS[other]}_minus_A_bytes"] = [*(row.delta(other) for row in rows), comparison.delta(other)]
    file = StringIO(newline="")
    write_tables(file, [columns])
    return file.getvalue()


def _sum(comparison: Changes, number: int) -> int:
    return sum(row.counts[number] for row in comparison.rows)
