"""A run as programs ask for it, `/run`: one prediction of one of our workloads, in the same line as everybody's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr

from memviz.allocator.context import DEFAULT_CARD
from memviz.errors import MemvizError, UsageError
from memviz.runner.config_source import FILE as CONFIG
from memviz.runner.request import Request, run_json
from memviz.ui.run.answer import RunAnswers
from memviz.ui.run.form import config_of
from memviz.ui.shell.programs import json_safe_answer, with_schema, with_worded_errors
from memviz.ui.shell.visitors import presence

MOST_WAITING = 96
"""Runs that programs wait for at once. Each takes one of the places that `launch_options` makes, and no thread."""
_MOST_TEXTS = 100
_LONGEST_TEXT = 200
_LARGEST = 1 << 63
_LOOK_SECONDS = 0.1
_KNOBS = {"type": "object", "additionalProperties": {}, "description": "names and values"}
_CHOSEN = {"type": "array", "items": {"type": "object"}, "description": "objects with a name and knobs"}
"""Gradio says of JSON a type that no schema knows; whoever checks what it calls, as agents do, then refuses it."""


def build(answers: RunAnswers) -> None:
    """Endpoints need components for what goes in and out; people never see these."""
    workload, card = gr.Textbox(label="workload"), gr.Textbox("", label="card")
    settings = with_schema(gr.JSON({}, label="settings"), _KNOBS)
    optimizations = with_schema(gr.JSON([], label="optimizations"), _CHOSEN)
    inputs = [workload, settings, optimizations, card]

    async def run(
        workload: str, settings: dict[str, Any], optimizations: list[dict[str, Any]], card: str, request: gr.Request
    ) -> dict[str, Any]:
        """Predicts the memory of a model with optimizations on a card; as `python -m memviz run --json` does.

        Args:
            workload: A name, as `feed_forward` or `ltx_video`.
            settings: Its knobs, as {"batch": 2}; of the workload config.json also `config`, what stands in that file.
            optimizations: What to switch on, as [{"name": "checkpointing", "every": 2}].
            card: A part of a card's name, as RTX 4090.
        """
        with with_worded_errors():
            result = await predict_run(
                answers,
                workload,
                {} if settings is None else settings,
                [] if optimizations is None else optimizations,
                card=card or "",
                owner=request.session_hash or "",
                is_there=presence(),
            )
            return json_safe_answer(result)

    # Runs wait for each other in a line of their own, which is fair; Gradio's is not.
    gr.Button().click(run, inputs, gr.JSON(label="answer"), api_name="run", concurrency_limit=MOST_WAITING)


class UnfinishedRun(MemvizError):
    """The run ended without a result; the message says why."""


async def predict_run(
    answers: RunAnswers,
    workload: str,
    settings: object,
    optimizations: object,
    *,
    card: str,
    owner: str,
    is_there: Callable[[], bool] = lambda: True,
) -> dict[str, Any]:
    """The same JSON as on the command line. A file of one's own is for the command line alone.

    However many wait for their turn, none of them keeps a thread from others; and who is gone keeps no turn.
    """
    listing = await asyncio.to_thread(answers.listing)
    names = [workload["name"] for workload in listing["workloads"]]
    if workload not in names:
        raise UsageError(f"There is no workload {workload}. Choose one of {', '.join(names)}.")
    config = ""
    if workload == CONFIG and isinstance(settings, Mapping):
        value = settings.get("config", "")
        # It may have to be fetched.
        config, wrong = await asyncio.to_thread(config_of, value if isinstance(value, str) else json.dumps(value))
        if wrong:
            raise UsageError(wrong)
        settings = {key: value for key, value in settings.items() if key != "config"}
    knobs = _knobs(settings, "settings")
    if not isinstance(optimizations, list) or len(optimizations) > _MOST_TEXTS:
        raise UsageError('optimizations must be a list, such as [{"name": "checkpointing", "every": 2}].')
    chosen = [_knobs(item, "optimizations") for item in optimizations]
    named = tuple((texts.pop("name", ""), texts) for texts in chosen)
    request = Request(workload, knobs, named, "predict", card or DEFAULT_CARD, config=config)
    status = answers.scheduler.submit([request], [""], owner=owner, replaces=False)
    try:
        while not status.is_over and is_there():
            await asyncio.sleep(_LOOK_SECONDS)
            status = answers.status(status.id) or status
    finally:
        answers.scheduler.leave(status.id)
    (variant,) = status.variants
    if variant.run is None or variant.state == "failed":
        raise UnfinishedRun(variant.phase or "The run was stopped before it finished.")
    return run_json(variant.run)


def _knobs(value: object, name: str) -> dict[str, str]:
    """Return knobs as texts; JSON may also hold them as numbers or booleans."""
    if not isinstance(value, Mapping) or len(value) > _MOST_TEXTS:
        raise UsageError(f'{name} must be an object of knobs and values, such as {{"batch": 2}}.')
    if not all(isinstance(item, str | int | float | None) for item in value.values()):
        raise UsageError(f"{name}: a value must be a text, a number, true, false or null.")
    for key, item in value.items():
        if isinstance(item, str | int) and len(_text(item)) > _LONGEST_TEXT:
            raise UsageError(f"{name}: {str(key)[:_LONGEST_TEXT]} is longer than {_LONGEST_TEXT} characters.")
        if isinstance(item, int | float) and not abs(item) < _LARGEST:
            raise UsageError(f"{name}: {str(key)[:_LONGEST_TEXT]} is not a supported number.")
    return {str(key)[:_LONGEST_TEXT]: _text(item) for key, item in value.items()}


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
