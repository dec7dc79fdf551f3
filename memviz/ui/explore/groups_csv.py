"""A table of groups as CSV, all of it and to the byte."""

from __future__ import annotations

from io import StringIO

from memviz.analysis.purpose.dominant import Breakdown
from memviz.trace.formats.write_tables import safe, write_tables


def groups_csv(found: Breakdown) -> str:
    groups = found.groups.groups
    mostly = [found.dominant[each.key] for each in groups]
    file = StringIO(newline="")
    write_tables(
        file,
        [
            {
                found.groups.by: [safe(each.label) for each in groups],
                "kind": [each.kind for each in mostly],
                "kind_bytes": [each.bytes for each in mostly],
                "blocks": [each.count for each in groups],
                "bytes": [each.bytes for each in groups],
            }
        ],
    )
    return file.getvalue()
