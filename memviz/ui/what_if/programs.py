"""A recording replayed, as programs ask for it: `/replay`."""

from __future__ import annotations

from typing import Any

import gradio as gr

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.replayer import CardMemory
from memviz.allocator.settings import parse_settings
from memviz.errors import MemvizError, UsageError
from memviz.results.replay import ReplayQuestion, replay_result
from memviz.ui.shell.gradio_events import IN_TURN, in_turn
from memviz.ui.shell.programs import json_safe_answer, one_file, open_upload, with_worded_errors
from memviz.ui.shell.visitors import presence
from memviz.ui.what_if.question import LONGEST
from memviz.ui.what_if.replays import most_seconds, within
from memviz.units import parse_bytes


def build() -> None:
    """Endpoints need components for what goes in and out; people never see these."""
    file = one_file("file")
    settings, memory = gr.Textbox("", label="settings"), gr.Textbox("", label="memory")
    search = gr.Checkbox(False, label="search")
    inputs = [file, settings, memory, search]
    gr.Button().click(in_turn(replay), inputs, gr.JSON(label="answer"), api_name="replay", **IN_TURN)


def replay(file: str, settings: str = "", memory: str = "", search: bool = False) -> dict[str, Any]:
    """Would it have fitted? The recorded requests, put to a model of PyTorch's allocator.

    Args:
        file: A snapshot.
        settings: As in PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True; empty for the recorded ones.
        memory: Of the card, such as 24GiB; empty for memory without end.
        search: Also try the settings that matter, and advise.
    """
    with with_worded_errors():
        question = _question(settings, memory, search)
        trace, device = open_upload(file)
        is_there = presence()

        def heard(_done: int, _total: int) -> None:
            if not is_there():
                raise MemvizError("Cancelled: the request was closed.")

        progress = within(most_seconds(device), heard)
        return json_safe_answer(replay_result(trace, device, question, progress).as_json())


def _question(settings: object, memory: object, search: object) -> ReplayQuestion:
    texts = ["" if value is None else value for value in (settings, memory)]
    if not all(isinstance(text, str) and len(text) <= LONGEST for text in texts) or not isinstance(search, bool):
        raise UsageError("settings and memory must be short texts, and search true or false.")
    settings, memory = (str(text).strip() for text in texts)
    try:
        size = parse_bytes(memory) if memory else None
    except ValueError as error:
        raise UsageError(f"memory: {error}.") from None
    return ReplayQuestion(
        settings=parse_settings(settings) if settings else None,
        card=None if size is None else CardMemory(size, OVERHEAD_BYTES),
        search=search,
    )
