"""Two snapshots as programs compare them: `/diff`."""

from __future__ import annotations

from typing import Any

import gradio as gr

from memviz.analysis.groups import GROUPINGS
from memviz.results.comparison import comparison_result
from memviz.ui.shell.gradio_events import IN_TURN, in_turn
from memviz.ui.shell.programs import grouping_of, json_safe_answer, one_file, open_upload, row_count, with_worded_errors


def build() -> None:
    """Endpoints need components for what goes in and out; people never see these."""
    file, other = one_file("file"), one_file("other")
    by = gr.Dropdown(list(GROUPINGS), value="site", label="by")
    top = gr.Number(20, precision=0, label="top")
    gr.Button().click(in_turn(diff), [file, other, by, top], gr.JSON(label="answer"), api_name="diff", **IN_TURN)


def diff(file: str, other: str, by: str = "site", top: int = 20) -> dict[str, Any]:
    """From the peak of one snapshot to the peak of another; rows and rest add up to the difference.

    Args:
        file: The baseline.
        other: The snapshot to compare with it.
        by: What a row is.
        top: How many rows.
    """
    with with_worded_errors():
        grouping, rows = grouping_of(by), row_count(top)
        sides = [open_upload(file), open_upload(other)]
        return json_safe_answer(comparison_result(sides, grouping).as_json(rows))
