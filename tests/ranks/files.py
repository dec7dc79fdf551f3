"""Ranks written by hand: training steps of one program, of which one rank may do more than the others."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from memviz.ranks.gather import reduce_here
from memviz.ranks.places import places_of
from memviz.ranks.summary import RankSummary, summarize_ranks
from tests.traces import MiB, alloc, frame, free, snapshot

STEP = "Optimizer.step#Adam.step"


def rank_events(*, more: int = 0, steps: int = 3, layers: int = 4, name: str = "train.py") -> list[dict[str, Any]]:
    """Weights, then activations in every step; `more` is memory that a rank keeps in addition, from step 2 on."""
    made: list[Any] = [_kept(layer, 10 * MiB, "build", name, 5 + layer) for layer in range(layers)]
    for step in range(steps):
        first = (step + 1) << 36
        for layer in range(layers):
            made.append(alloc(first + layer * 64 * MiB, 20 * MiB, frames=[frame("forward", name, 20 + layer)]))
        if step == 1 and more:
            made.append(alloc(1 << 50, more, frames=[frame("cache", name, 99)]))
        for layer in reversed(range(layers)):
            made.append(free(first + layer * 64 * MiB, 20 * MiB))
    flat = [one for events in made for one in (events if isinstance(events, list) else [events])]
    return [{**one, "time_us": 10 * (number + 1)} for number, one in enumerate(flat)]


def _kept(layer: int, size: int, function: str, name: str, line: int) -> dict[str, Any]:
    return alloc(layer * 64 * MiB, size, frames=[frame(function, name, line)])


def annotations(events: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """The profiler's steps, each around its own forward and backward."""
    begins = [one["time_us"] for one in events if one.get("frames") and one["frames"][0]["line"] == 20]
    ends = [*(begin - 1 for begin in begins[1:]), events[-1]["time_us"]]
    rows = []
    for step, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        for stage, time in (("START", begin), ("END", end)):
            rows.append({"name": f"ProfilerStep#{step}", "stage": stage, "device": 0, "time_us": time})
    assert len(begins) == steps
    return rows


def written(folder: Path, name: str, *, more: int = 0, steps: int = 3, **also: Any) -> Path:
    events = rank_events(more=more, steps=steps)
    path = folder / name
    path.write_bytes(pickle.dumps(snapshot(events, external_annotations=annotations(events, steps), **also)))
    return path


def write_ranks(folder: Path, count: int, **more_of: int) -> Path:
    """`rank5=7 * MiB`: what that one keeps besides."""
    folder.mkdir(exist_ok=True)
    for number in range(count):
        written(folder, f"run.rank{number}.pickle", more=more_of.get(f"rank{number}", 0))
    return folder


def read(*places: Path | str, processes: int = 1) -> RankSummary:
    return summarize_ranks(reduce_here(places_of([str(place) for place in places]), processes=processes))
