"""Files made from the trace that is looked at, for saving."""

from __future__ import annotations

import tempfile
from pathlib import Path

from memviz.analysis.write_allocations import write_allocations
from memviz.figures.report import report_page
from memviz.trace.formats.write_snapshot import write_pickle
from memviz.trace.model import DeviceTrace, Trace
from memviz.trace.strip import strip_paths

EXPORTS = {
    "report": "Report as one HTML page",
    "allocations": "All allocations as CSV",
    "snapshot": "Snapshot without paths",
}


def export_file(trace: Trace, device: DeviceTrace, kind: str) -> str:
    """In a folder of its own that nobody can guess; the page's cache takes the file over and cleans it away."""
    folder = Path(tempfile.mkdtemp(prefix="memviz-"))
    stem = "".join(each if each.isalnum() or each in "-_." else "_" for each in trace.about.source.partition(".")[0])
    name = stem.strip(".")[:80] or "trace"
    if kind == "report":
        path = folder / f"{name}.html"
        path.write_text(report_page([(trace, device)]), encoding="utf-8", errors="replace")
    elif kind == "allocations":
        path = folder / f"{name}-allocations.csv"
        with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as table:
            write_allocations(trace, table)
    else:
        path = folder / f"{name}-stripped.pickle"
        with path.open("wb") as file:
            write_pickle(strip_paths(trace), file)
    return str(path)
