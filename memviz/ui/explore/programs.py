"""One snapshot as programs ask for it: `/summary` and `/peak`, and `/report` of one or more."""

from __future__ import annotations

from typing import Any

import gradio as gr

from memviz.analysis import peak as peaks
from memviz.analysis.as_json import live_json
from memviz.analysis.groups import GROUPINGS
from memviz.errors import UsageError
from memviz.headlines.summary_as_json import summary_json
from memviz.ui.saved.report import check_count, report_page
from memviz.ui.shell.exports import page_file
from memviz.ui.shell.programs import grouping_of, in_words, open_upload, row_count, sound_answer
from memviz.ui.shell.turns import IN_TURN, in_turn


def build() -> None:
    """Endpoints need components for what goes in and out; people never see these."""
    file, files = gr.File(label="file"), gr.File(label="files", file_count="multiple")
    by = gr.Dropdown(list(GROUPINGS), value="site", label="by")
    top = gr.Number(20, precision=0, label="top")
    answer, page = gr.JSON(label="answer"), gr.File(label="page")
    gr.Button().click(in_turn(summary), [file], answer, api_name="summary", **IN_TURN)
    gr.Button().click(in_turn(peak), [file, by, top], answer, api_name="peak", **IN_TURN)
    gr.Button().click(in_turn(report), [files], page, api_name="report", **IN_TURN)


def summary(file: str) -> dict[str, Any]:
    """What a PyTorch memory snapshot holds: bytes live at the start, at the peak and at the end, and notes.

    Args:
        file: A snapshot, a pickle or JSON, plain or gzipped.
    """
    with in_words():
        return sound_answer(summary_json(open_upload(file)[0]))


def peak(file: str, by: str = "site", top: int = 20) -> dict[str, Any]:
    """What the peak of a snapshot is made of, largest first; rows and rest add up to the byte.

    Args:
        file: A snapshot.
        by: What a row is: site, line, stack, category, module, phase, annotation, stream, pool or size.
        top: How many rows.
    """
    with in_words():
        grouping, rows = grouping_of(by), row_count(top)
        trace, device = open_upload(file)
        return sound_answer(live_json(trace, device, peaks.peak(trace, device, grouping, top=rows), "peak_bytes"))


def report(files: list[str]) -> str:
    """One self-contained HTML page about one or more snapshots, the first as the baseline.

    Args:
        files: Snapshots.
    """
    with in_words():
        return _report(files)


def _report(files: object) -> str:
    if not isinstance(files, list) or not files:
        raise UsageError("files are a list of snapshots, one at least.")
    check_count(len(files))
    return page_file("report.html", report_page([open_upload(file) for file in files]))
