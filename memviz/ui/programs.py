"""The page's interface for programs: the same answers as the command line, for `gradio_client` and for agents.

from gradio_client import Client, handle_file
Client(url).predict(handle_file("run.pickle"), api_name="/summary")
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import gradio as gr

from memviz.analysis import peak as peaks
from memviz.analysis.as_json import live_json
from memviz.analysis.changes import changes
from memviz.analysis.groups import GROUPINGS
from memviz.analysis.which_device import chosen_device
from memviz.errors import MemvizError
from memviz.figures.report import report_page
from memviz.headlines.as_json import compared_json, summary_json
from memviz.trace.load import load_trace
from memviz.trace.model import DeviceTrace, Trace
from memviz.ui.presence import presence
from memviz.ui.run_answer import RunAnswers
from memviz.ui.run_asked import run_asked

MOST_ASKED = 96
"""Runs that programs wait for at once. Each takes one of the places that `launch_options` makes, and no thread."""
_PARSE: dict[str, Any] = {"concurrency_id": "parse", "concurrency_limit": 2}


def build(runs: RunAnswers) -> None:
    """Endpoints need components for what goes in and out; people never see these."""
    with gr.Row(visible=False):
        file, other = gr.File(label="file"), gr.File(label="other")
        files = gr.File(label="files", file_count="multiple")
        by = gr.Dropdown(list(GROUPINGS), value="site", label="by")
        top = gr.Number(20, precision=0, label="top")
        answer, page = gr.JSON(label="answer"), gr.File(label="page")
        gr.Button().click(summary, [file], answer, api_name="summary", **_PARSE)
        gr.Button().click(peak, [file, by, top], answer, api_name="peak", **_PARSE)
        gr.Button().click(diff, [file, other, by, top], answer, api_name="diff", **_PARSE)
        gr.Button().click(report, [files], page, api_name="report", **_PARSE)
        workload, card = gr.Textbox(label="workload"), gr.Textbox("", label="card")
        settings, optimizations = gr.JSON({}, label="settings"), gr.JSON([], label="optimizations")
        asked = [workload, settings, optimizations, card]
        # Runs wait for each other in a line of their own, which is fair; Gradio's is not.
        gr.Button().click(Run(runs).run, asked, answer, api_name="run", concurrency_limit=MOST_ASKED)


def summary(file: str) -> dict[str, Any]:
    """What a PyTorch memory snapshot holds: bytes live at the start, at the peak and at the end, and notes.

    Args:
        file: A snapshot, a pickle or JSON, plain or gzipped.
    """
    return summary_json(_open(file)[0])


def peak(file: str, by: str = "site", top: int = 20) -> dict[str, Any]:
    """What the peak of a snapshot is made of, largest first; rows and rest add up to the byte.

    Args:
        file: A snapshot.
        by: What a row is: site, line, stack, category, module, phase, annotation, stream, pool or size.
        top: How many rows.
    """
    trace, device = _open(file)
    return live_json(trace, device, peaks.peak(trace, device, by, top=int(top)), "peak_bytes")


def diff(file: str, other: str, by: str = "site", top: int = 20) -> dict[str, Any]:
    """From the peak of one snapshot to the peak of another; rows and rest add up to the difference.

    Args:
        file: The baseline.
        other: The snapshot to compare with it.
        by: What a row is.
        top: How many rows.
    """
    sides = [_open(file), _open(other)]
    return compared_json(sides, changes(sides, by, with_kinds=False), int(top))


def report(files: list[str]) -> str:
    """One self-contained HTML page about one or more snapshots, the first as the baseline.

    Args:
        files: Snapshots.
    """
    page = report_page([_open(each) for each in files])
    path = Path(tempfile.mkdtemp(prefix="memviz-")) / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")
    return str(path)


class Run:
    def __init__(self, answers: RunAnswers) -> None:
        self._answers = answers

    async def run(
        self,
        workload: str,
        settings: dict[str, Any],
        optimizations: list[dict[str, Any]],
        card: str,
        request: gr.Request,
    ) -> dict[str, Any]:
        """Predicts the memory of a model with optimizations on a card; as `python -m memviz run --json` does.

        Args:
            workload: A name, as `feed_forward` or `ltx_video`.
            settings: Its knobs, as {"batch": 2}.
            optimizations: What to switch on, as [{"name": "checkpointing", "every": 2}].
            card: A part of a card's name, as RTX 4090.
        """
        try:
            return await run_asked(
                self._answers,
                workload,
                settings or {},
                optimizations or [],
                card=card or "",
                owner=request.session_hash or "",
                is_there=presence(),
            )
        except MemvizError as error:
            raise gr.Error(str(error), print_exception=False) from None


def _open(file: str | None) -> tuple[Trace, DeviceTrace]:
    """With the device that ran out of memory, else the one whose memory went highest."""
    if not file:
        raise gr.Error("Name a snapshot file.", print_exception=False)
    try:
        trace = load_trace(file)
    except MemvizError as error:
        raise gr.Error(str(error), print_exception=False) from None
    return trace, chosen_device(trace)
