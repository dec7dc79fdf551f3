"""The table of differences as CSV: every row, every trace, all digits, and the peaks they add up to."""

from __future__ import annotations

from io import StringIO
from typing import Any

from memviz.analysis.comparing.changes import Changes
from memviz.trace.formats.write_tables import safe, write_tables
from memviz.ui.compare.compare_state import LETTERS


def changes_csv(found: Changes) -> str:
    rows, others = found.rows, range(1, len(found.moments))
    peaks = [moment.live_bytes for moment in found.moments]
    columns: dict[str, list[Any]] = {
        found.by: [*(safe(row.thing.label) for row in rows), "peak"],
        "function": [*(safe(row.thing.function) for row in rows), ""],
        "operator": [*(safe(row.thing.operator) for row in rows), ""],
        "mostly": [*(row.kind for row in rows), ""],
    }
    for number, peak in enumerate(peaks):
        columns[f"{LETTERS[number]}_bytes"] = [*(row.bytes[number] for row in rows), peak]
        columns[f"{LETTERS[number]}_allocations"] = [*(row.counts[number] for row in rows), _sum(found, number)]
    for other in others:
        columns[f"{LETTERS[other]}_minus_A_bytes"] = [*(row.delta(other) for row in rows), found.delta(other)]
    file = StringIO(newline="")
    write_tables(file, [columns])
    return file.getvalue()


def _sum(found: Changes, number: int) -> int:
    return sum(row.counts[number] for row in found.rows)
