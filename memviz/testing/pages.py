"""The pages of the tests that were looked at, and one that leads to them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from memviz.testing.gpu_memory import GpuMemory
from memviz.text import tag
from memviz.trace.write import replacing
from memviz.ui.saved.report import report_page
from memviz.units import bytes_text

_LONGEST = 80
_INDEX = "index.html"


def save_page(folder: Path, name: str, memory: GpuMemory) -> str:
    """The file's name. Tests whose names differ only in what no file's name has stay apart."""
    assert memory.trace is not None and memory.device is not None
    folder.mkdir(parents=True, exist_ok=True)
    plain = re.sub(r"[^\w.-]+", "-", name)[-_LONGEST:].strip("-.")
    digest = blake2b(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    path = folder / f"{plain}-{digest}.html"
    with replacing(path) as file:
        file.write(report_page([(memory.trace, memory.device)]).encode("utf-8", "replace"))
    return path.name


def write_index(folder: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write the index page of tests, highest peak first."""
    head = tag("tr", *(tag("th", name) for name in ("test", "outcome", "held at most", "reserved at most", "limit")))
    body = []
    for row in sorted(rows, key=lambda row: (-_number(row["peak_bytes"]), str(row["test"]))):
        sizes = [bytes_text(_number(row["peak_bytes"])), bytes_text(_number(row["reserved_bytes"]))]
        sizes.append("" if row.get("limit_bytes") is None else bytes_text(_number(row["limit_bytes"])))
        cells = (tag("a", row["test"], href=row["page"]), row["outcome"], *sizes)
        body.append(tag("tr", *(tag("td", cell) for cell in cells)))
    style = tag("style", "body{font:14px sans-serif;color-scheme:light dark}td,th{padding:0 1em;text-align:left}")
    table = tag("table", tag("thead", head), tag("tbody", *body))
    page = tag("html", tag("head", tag("meta", charset="utf-8"), tag("title", "GPU memory of tests"), style), table)
    with replacing(folder / _INDEX) as file:
        file.write(f"<!doctype html>{page}".encode("utf-8", "replace"))
    return folder / _INDEX


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0
