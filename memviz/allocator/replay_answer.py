"""A question about a recording (settings, card, search), and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.replay import source_of
from memviz.allocator.replay_result import allocation_count
from memviz.allocator.replayer import Progress, part_of, rest_of
from memviz.allocator.search import Search, search
from memviz.allocator.settings import NEWEST, Release, Settings
from memviz.allocator.what_if import CardMemory, WhatIf, what_if, with_fit
from memviz.trace.model import DeviceTrace, Trace

_SEARCH_PARTS = 6
"""How many times as long as an answer a search takes, about."""


@dataclass(frozen=True)
class ReplayQuestion:
    """Each part may be left out."""

    settings: Settings | None = None
    card: CardMemory | None = None
    release: Release = NEWEST
    search: bool = False
    overhead: int = OVERHEAD_BYTES


@dataclass(frozen=True)
class ReplayAnswer:
    trace: Trace
    device: DeviceTrace
    found: WhatIf
    searched: Search | None


def replay_answer(
    trace: Trace, device: DeviceTrace, question: ReplayQuestion, progress: Progress | None = None
) -> ReplayAnswer:
    parts = 1 + _SEARCH_PARTS if question.search else 1
    first, source = part_of(progress, 0, parts), source_of(trace, device)
    outcome = what_if(
        trace,
        device,
        settings=question.settings,
        card=question.card,
        overhead_bytes=question.overhead,
        progress=first,
        source=source,
    )
    outcome = with_fit(source, outcome)
    if not question.search or not allocation_count(outcome.recorded):
        return ReplayAnswer(trace, device, outcome, None)
    found_best = search(
        source,
        question.card,
        also=question.settings,
        release=question.release,
        overhead_bytes=question.overhead,
        progress=rest_of(progress, 1, parts),
    )
    return ReplayAnswer(trace, device, outcome, found_best)


def environment(text: str) -> str:
    """Return the settings as a shell assignment, quoted where they hold brackets or >."""
    quoted = f'"{text}"' if any(letter in text for letter in "[]>") else text
    return f"PYTORCH_CUDA_ALLOC_CONF={quoted}"
