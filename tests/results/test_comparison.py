"""The page, diff, reports and programs give the same sentence, rows and figures."""

import csv
import io
import json
import re
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from memviz.analysis.comparing.changes import changes, summarize_comparison
from memviz.results.comparison import comparison_headline, comparison_result
from memviz.trace.model import Trace
from memviz.ui.compare import programs
from memviz.ui.compare.tab import comparison_files
from memviz.ui.compare.waterfall import change_text, waterfall
from memviz.ui.saved.report import report_page
from memviz.ui.shell.session import Opened
from memviz.units import bytes_text
from tests.house.repository import ROOT
from tests.marks import slow
from tests.real import read_once
from tests.traces import alloc, block, segment, trace_of

PATHS = [ROOT / "sample_traces" / f"{name}.pickle.gz" for name in ("training", "training-checkpointed")]


@cache
def traces() -> list[Trace]:
    return [read_once(path) for path in PATHS]


def sides() -> list[Any]:
    return [(trace, trace.devices[0]) for trace in traces()]


def told(by: str) -> list[tuple[str, int, int]]:
    """Rows of the page: name, bytes in A, bytes in B."""
    steps = waterfall(changes(sides(), by), 1, every_row=True, sort="a").steps
    return [(step.change.thing.name, step.before, step.after) for step in steps if step.change]


@pytest.mark.parametrize("by", ["site", "category", "stack"])
def test_diff_and_programs_have_the_rows_of_the_page(by: str) -> None:
    found = comparison_result(sides(), by).as_json()
    rows = [(row["site" if by == "site" else "key"], row["a_bytes"], row["b_bytes"]) for row in found["rows"]]
    assert sorted(rows) == sorted(told(by))
    assert programs.diff(*map(str, PATHS), by, len(rows)) == found


@pytest.mark.parametrize("by", ["site", *slow("category")])
def test_shared_files_have_the_rows_of_the_page(by: str, tmp_path: Path) -> None:
    files = comparison_files(sides(), by)
    written = {kind: tmp_path / name for kind, (name, _) in files.items()}
    for kind, path in written.items():
        files[kind][1](path)
    assert json.loads(written["json"].read_text()) == comparison_result(sides(), by).as_json()
    table = list(csv.DictReader(io.StringIO(written["csv"].read_text())))
    figures = [(row["A_bytes"], row["B_bytes"]) for row in table]
    assert sorted(figures[:-1]) == sorted((str(before), str(after)) for _, before, after in told(by))
    page = written["page"].read_text(encoding="utf-8")
    shown = {tuple(row[:4]) for row in rows_of(page)}
    changed = [row for row in told(by) if row[1] != row[2]]
    assert changed
    for name, before, after in changed[:8]:
        figures = (bytes_text(count) if count else "–" for count in (before, after))
        assert (name, *figures, change_text(after - before)) in shown


def rows_of(page: str) -> list[list[str]]:
    """Rows of the table from peak to peak, before any script has run."""
    table = page[page.index('mv-table mv-changes"') :].partition("</table>")[0]
    table = re.sub(r" title=\"[^\"]*\"| data-compare-row=\"[^\"]*\"", "", table)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table)]
    return [[" ".join(unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in row] for row in rows]


@pytest.mark.slow
def test_all_say_the_same_sentence() -> None:
    said = comparison_headline(summarize_comparison(sides()))
    assert comparison_result(sides()).as_json()["headline"] == {"answer": said.answer, "reason": said.reason}
    page = unescape(report_page(sides()))
    assert said.answer in page and said.reason in page


@pytest.mark.slow
def test_notes_and_names_of_a_saved_comparison_say_whose_they_are() -> None:
    late = read_once(ROOT / "sample_traces" / "late-start.pickle.gz")
    page = unescape(report_page([sides()[0], (late, late.devices[0])]))
    assert re.search(
        r"B, late-start\.pickle\.gz: [\d,.]+ MiB \(.* allocations\) were allocated before recording started", page
    )
    assert page.count("A snapshot covers PyTorch's allocator only.") == 1
    late = trace_of([alloc(1 << 21, 7)], [segment(0, 1 << 22, [block(0, 512, 500), block(1 << 21, 512, 7)])])
    page = report_page([sides()[0], (late, late.devices[0])], "category")
    assert ["before recording", "–", "500 B", "+500 B"] in [row[:4] for row in rows_of(page)]
    named = [
        replace(trace, about=replace(trace.about, source=f"{name}.pickle.gz"))
        for (trace, _), name in zip(sides(), "xy", strict=True)
    ]
    said = comparison_headline(summarize_comparison([(trace, trace.devices[0]) for trace in named])).answer
    assert [Opened.of("key", trace).name for trace in named] == ["x", "y"]
    assert said.startswith("y peaks") and said.endswith("than x.")
