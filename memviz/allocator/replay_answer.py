"""A question about a recording (settings, card, search), and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from memviz.allocator.context import OVERHEAD_BYTES
from memviz.allocator.event_replay import Progress, part_of, rest_of
from memviz.allocator.replay_result import allocation_count
from memviz.allocator.replayer import CardMemory, Replayer, WhatIf
from memviz.allocator.search import Search, search
from memviz.allocator.settings import NEWEST, Release, Settings
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
    replayer, overhead = Replayer(trace, device), question.overhead
    first = part_of(progress, 0, parts)
    outcome = replayer.what_if(question.settings, question.card, overhead_bytes=overhead, progress=first)
    searched = None
    if question.search and allocation_count(outcome.recorded):
        searched = search(
            replayer,
            question.card,
            also=question.settings,
            release=question.release,
            overhead_bytes=overhead,
            progress=rest_of(progress, 1, parts),
        )
    return ReplayAnswer(trace, device, outcome, searched)


def environment(text: str) -> str:
    """Return the settings as a shell assignment, quoted where they hold brackets or >."""
    quoted = f'"{text}"' if any(letter in text for letter in "[]>") else text
    return f"PYTORCH_CUDA_ALLOC_CONF={quoted}"
