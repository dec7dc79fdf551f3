"""Which allocator settings a measured run really had: asked for, inherited, or without effect on this platform."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from memviz.allocator.settings import Settings, parse_settings
from memviz.errors import UsageError
from memviz.runner.jobs.worker_process import LEFT_OUT
from memviz.runner.plan import Plan
from memviz.trace.model import Trace
from memviz.units import percent_text

_CONF = "PYTORCH_CUDA_ALLOC_CONF"
_OFF = (
    "Expandable segments were asked for and are off: this PyTorch has none on this platform. "
    "The figures are those of the allocator without them."
)


def expandable_is_off(plan: Plan, trace: Trace) -> bool:
    """Asked for and not there. The recording itself says so, from torch 2.3 on; before, its segments do."""
    asked = _asked(plan)
    if asked is None or not asked.expandable_segments:
        return False
    if "expandable_segments" in trace.settings:
        return trace.settings["expandable_segments"] is not True
    return not any(each.segments.is_expandable.any() for each in trace.devices if each.kind == "gpu")


def words_of(plan: Plan, trace: Trace, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    if expandable_is_off(plan, trace):
        yield _OFF
    left_out = environment.get(LEFT_OUT)
    if left_out:
        chosen = "this run chooses its own" if _CONF in plan.environment else "a run has only what it chooses itself"
        yield f"{left_out}, from the shell, was not in effect: {chosen}."
    found = str(trace.settings.get(_CONF) or "")
    if found and _CONF not in plan.environment:
        yield f"The allocator had the settings {found}, which this run did not choose."


def limit_words(plan: Plan, api: Any, index: int = 0) -> str:
    """Why such a run has no seconds, by its settings and by what torch was told; empty where nothing limits it."""
    asked = _asked(plan)
    told = getattr(api.memory, "get_per_process_memory_fraction", None)
    fractions = [1.0 if asked is None else asked.per_process_memory_fraction, 1.0 if told is None else told(index)]
    if min(fractions) >= 1:
        return ""
    share = percent_text(min(fractions), 1)
    return (
        f"Its seconds were not measured, because its memory is limited to {share} of the card: "
        "a step that makes do with less takes longer, and by how much is the limit's doing."
    )


def _asked(plan: Plan) -> Settings | None:
    """None where there are none, and where PyTorch took what we cannot read: that loses nobody a measurement."""
    try:
        return parse_settings(plan.environment[_CONF])
    except (KeyError, UsageError):
        return None
