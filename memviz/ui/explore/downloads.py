"""What leaves Explore as a file: a report, all allocations, the snapshot without paths, and whole tables."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from memviz.analysis.allocations import write_allocations
from memviz.analysis.breakdown import Breakdown
from memviz.headlines.names import trace_name
from memviz.trace.formats.write_snapshot import write_pickle
from memviz.trace.formats.write_tables import safe, write_tables
from memviz.trace.model import DeviceTrace, Trace
from memviz.trace.strip import strip_paths
from memviz.ui.saved.report import report_page
from memviz.ui.shell.exports import file_stem, file_with

EXPORTS = {
    "report": "Report as one HTML page",
    "allocations": "All allocations as CSV",
    "snapshot": "Snapshot without paths",
}


def export_file(trace: Trace, device: DeviceTrace, kind: str) -> str:
    ending = {"report": ".html", "allocations": "-allocations.csv"}.get(kind, "-stripped.pickle")
    name = file_stem(trace_name(trace.about.source)) + ending
    return file_with(name, lambda path: _write(path, trace, device, kind))


def _write(path: Path, trace: Trace, device: DeviceTrace, kind: str) -> None:
    if kind == "report":
        path.write_text(report_page([(trace, device)]), encoding="utf-8", errors="replace")
    elif kind == "allocations":
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as table:
            write_allocations(trace, table)
    else:
        with path.open("wb") as file:
            write_pickle(strip_paths(trace), file)


def groups_csv(breakdown: Breakdown, unit: str = "bytes") -> str:
    """All of a table of groups, to the byte; or to the byte times event, where those were counted."""
    groups = breakdown.groups.groups
    mostly = [breakdown.dominant[group.key] for group in groups]
    file = StringIO(newline="")
    write_tables(
        file,
        [
            {
                breakdown.groups.by: [safe(group.label) for group in groups],
                "kind": [group.kind for group in mostly],
                f"kind_{unit}": [group.bytes for group in mostly],
                "blocks": [group.count for group in groups],
                unit: [group.bytes for group in groups],
            }
        ],
    )
    return file.getvalue()
