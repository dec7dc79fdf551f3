"""A run as programs ask for it: one prediction of one of our workloads, in the same line as everybody's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memviz.errors import MemvizError, UsageError
from memviz.runner.as_json import run_json
from memviz.runner.jobs.order import Standing
from memviz.runner.request import DEFAULT_CARD, Request
from memviz.ui.run.answer import RunAnswers

_MOST_TEXTS = 100
_LONGEST_TEXT = 200
_LARGEST = 1 << 63
_LOOK_SECONDS = 0.1


class RunFailed(MemvizError):
    """In its own words."""


async def run_asked(
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
    names = [each["name"] for each in listing["workloads"]]
    if workload not in names:
        raise UsageError(f"There is no workload {workload}. There are {', '.join(names)}.")
    request = Request(
        workload, _knobs(settings, "settings"), tuple(_chosen(optimizations)), "predict", card or DEFAULT_CARD
    )
    standing = answers.desk.order([request], [""], owner=owner, beside=True)
    try:
        variant = (await _over(answers, standing, is_there)).variants[0]
    finally:
        answers.desk.leave(standing.id)
    if variant.run is None or variant.state == "failed":
        raise RunFailed(variant.phase or "It was ended before it was done.")
    return run_json(variant.run)


async def _over(answers: RunAnswers, standing: Standing, is_there: Callable[[], bool]) -> Standing:
    while not standing.is_over and is_there():
        await asyncio.sleep(_LOOK_SECONDS)
        standing = answers.standing(standing.id) or standing
    return standing


def _knobs(value: object, name: str) -> dict[str, str]:
    """Numbers and yes or no may stand for themselves in JSON."""
    if not isinstance(value, Mapping) or len(value) > _MOST_TEXTS:
        raise UsageError(f'{name} are an object of knobs and values, as in {{"batch": 2}}.')
    if not all(isinstance(each, str | int | float | None) for each in value.values()):
        raise UsageError(f"{name}: a value is a text, a number, true, false or null.")
    for key, each in value.items():
        if isinstance(each, str | int) and len(_text(each)) > _LONGEST_TEXT:
            raise UsageError(f"{name}: {str(key)[:_LONGEST_TEXT]} is longer than {_LONGEST_TEXT} characters.")
        if isinstance(each, int | float) and not abs(each) < _LARGEST:
            raise UsageError(f"{name}: {str(key)[:_LONGEST_TEXT]} is no number that is used here.")
    return {str(key)[:_LONGEST_TEXT]: _text(each) for key, each in value.items()}


def _text(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _chosen(value: object) -> Sequence[tuple[str, dict[str, str]]]:
    if not isinstance(value, list) or len(value) > _MOST_TEXTS:
        raise UsageError('optimizations are a list, as in [{"name": "checkpointing", "every": 2}].')
    found = []
    for each in value:
        knobs = _knobs(each, "optimizations")
        found.append((knobs.pop("name", ""), knobs))
    return found
