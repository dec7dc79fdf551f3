"""Endpoints for one snapshot: `/open`, `/summary`, `/peak`, `/at`, `/find`, `/findings`; `/report` for several."""

from __future__ import annotations

from typing import Any

import gradio as gr
from gradio.route_utils import get_root_url

from memviz.analysis.find import find_sites
from memviz.analysis.groups import GROUPINGS
from memviz.analysis.timeline import timeline
from memviz.errors import UsageError
from memviz.results.findings import findings_result
from memviz.results.live import find_json, live_result
from memviz.results.summary import summary_result
from memviz.ui.saved.report import check_count, report_page
from memviz.ui.shell.gradio_events import IN_TURN, in_turn
from memviz.ui.shell.programs import (
    QUEUE,
    address_of,
    grouping_of,
    json_safe_answer,
    many_files,
    one_file,
    open_upload,
    row_count,
    with_worded_errors,
)
from memviz.ui.shell.temporary_files import file_with, text_writer

_LONGEST_QUERY = 400
_MOST_DEVICES = 64


def build() -> None:
    """Endpoints need components for what goes in and out; people never see these."""
    file, files = one_file("file"), many_files("files")
    by = gr.Dropdown(list(GROUPINGS), value="site", label="by")
    top = gr.Number(20, precision=0, label="top")
    answer, page = gr.JSON(label="answer"), gr.File(label="page")
    gr.Button().click(in_turn(summary), [file], answer, api_name="summary", **IN_TURN)
    gr.Button().click(in_turn(peak), [file, by, top], answer, api_name="peak", **IN_TURN)
    event, query = gr.Number(-1, precision=0, label="event"), gr.Textbox(label="query")
    gr.Button().click(in_turn(open_snapshot), [file], answer, api_name="open", **IN_TURN)
    gr.Button().click(in_turn(at), [file, event, by, top], answer, api_name="at", **IN_TURN)
    gr.Button().click(in_turn(find), [file, query, top], answer, api_name="find", **IN_TURN)
    gr.Button().click(in_turn(findings), [file], answer, api_name="findings", **IN_TURN)
    gr.Button().click(in_turn(report), [files], page, api_name="report", **IN_TURN)


def open_snapshot(file: str, request: gr.Request) -> dict[str, Any]:
    """Begin here: takes a PyTorch memory snapshot and says in a sentence what it shows.

    The answer's `file` names it in every other question, for an hour, without sending it again. A file is named by an
    address: of an upload to this server (POST it as `files` to /gradio_api/upload, and put /gradio_api/file= before the
    path that it answers); a small one may stand in it (data:application/octet-stream;base64,...); others are fetched
    where the owner of this server allows it.

    Args:
        file: A snapshot, by its address.
    """
    with with_worded_errors():
        trace, device = open_upload(file)
        root = get_root_url(request=request.request, route_path=QUEUE, root_path=None)
        return json_safe_answer(
            {
                "file": address_of(file, root),
                "name": trace.about.source,
                "provenance": trace.about.label,
                "device": device.name,
                "devices": [other.name for other in trace.devices][:_MOST_DEVICES],
                "events": len(device.events),
                "peak_bytes": int(timeline(device).peak_bytes),
                "headline": summary_result(trace, device.name).headline.as_json(),
            }
        )


def summary(file: str) -> dict[str, Any]:
    """Sum up a PyTorch memory snapshot: bytes live at the start, at the peak and at the end, and notes.

    Args:
        file: A snapshot, a pickle or JSON, plain or gzipped.
    """
    with with_worded_errors():
        return json_safe_answer(summary_result(open_upload(file)[0]).as_json())


def peak(file: str, by: str = "site", top: int = 20) -> dict[str, Any]:
    """List the parts of a snapshot's peak, largest first; rows and rest add up to the byte.

    Args:
        file: A snapshot.
        by: What a row is: site, line, stack, category, module, holder, phase, annotation, stream, pool or size.
        top: How many rows.
    """
    with with_worded_errors():
        grouping, rows = grouping_of(by), row_count(top)
        trace, device = open_upload(file)
        return json_safe_answer(live_result(trace, device, None, grouping, rows).as_json())


def at(file: str, event: int, by: str = "site", top: int = 20) -> dict[str, Any]:
    """List the memory that is live after one event, largest first; rows and rest add up to the byte.

    Args:
        file: A snapshot.
        event: Its number; -1 is before the first.
        by: What a row is: site, line, stack, category, module, holder, phase, annotation, stream, pool or size.
        top: How many rows.
    """
    with with_worded_errors():
        grouping, rows = grouping_of(by), row_count(top)
        if isinstance(event, bool) or not isinstance(event, int):
            raise UsageError("event must be a whole number.")
        trace, device = open_upload(file)
        return json_safe_answer(live_result(trace, device, event, grouping, rows).as_json())


def find(file: str, query: str, top: int = 20) -> dict[str, Any]:
    """Call sites whose allocations match: how often, and how many bytes of them are live at the peak.

    Args:
        file: A snapshot.
        query: Words of a file, function, module or category, and limits, such as `attention >10MiB <1s`.
        top: How many sites.
    """
    with with_worded_errors():
        rows = row_count(top)
        if not isinstance(query, str) or not 0 < len(query.strip()) <= _LONGEST_QUERY:
            raise UsageError(f"query must be a text of at most {_LONGEST_QUERY} characters, such as attention >10MiB.")
        trace, device = open_upload(file)
        return json_safe_answer(find_json(device, find_sites(trace, device, query, timeline(device).peak_event), rows))


def findings(file: str) -> dict[str, Any]:
    """Rank the findings of a snapshot by bytes, with what helps: leaks, spikes, fragmentation, copies.

    Args:
        file: A snapshot.
    """
    with with_worded_errors():
        trace, device = open_upload(file)
        return json_safe_answer(findings_result(trace, device.name).as_json())


def report(files: list[str]) -> str:
    """One self-contained HTML page about one or more snapshots, the first as the baseline.

    Args:
        files: Snapshots.
    """
    with with_worded_errors():
        if not isinstance(files, list) or not files:
            raise UsageError("files must be a list of at least one snapshot.")
        check_count(len(files))
        page = report_page([open_upload(file) for file in files])
        return file_with("report.html", text_writer(lambda: page))
