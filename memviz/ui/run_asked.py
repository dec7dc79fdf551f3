"""A run as programs ask for it: one prediction of one of our workloads, in the same line as everybody's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memviz.errors import MemvizError, UsageError
from memviz.runner.as_json import run_json
from memviz.runner.request import DEFAULT_CARD, Request
from memviz.ui.run_answer import RunAnswers

_MOST_TEXTS = 100
_LONGEST_TEXT = 200
_LARGEST = 1 << 63


class RunFailed(MemvizError):
    """In its own words."""


def run_asked(
    answers: RunAnswers, workload: str, settings: object, optimizations: object, *, card: str, owner: str
) -> dict[str, Any]:
    """The same JSON as on the command line. A file of one's own is for the command line alone."""
    names = [each["name"] for each in answers.listing()["workloads"]]
    if workload not in names:
        raise UsageError(f"There is no workload {workload}. There are {', '.join(names)}.")
    request = Request(
        workload, _knobs(settings, "settings"), tuple(_chosen(optimizations)), "predict", card or DEFAULT_CARD
    )
    begun = answers.desk.order([request], [""], owner=owner)
    (last,) = [each for each in answers.follow(begun.id) if each.is_over] or [begun]
    variant = last.variants[0]
    if variant.run is None or variant.state == "failed":
        raise RunFailed(variant.phase or "Another request of yours took its place.")
    return run_json(variant.run)


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
