"""Ranks of a run on many GPUs in words: which are equal, and which one the figures are of."""

from __future__ import annotations

from collections.abc import Sequence

from memviz.runner.parallel.rank_class import RankClass
from memviz.runner.run import Run
from memviz.units import bytes_text, count_text


def gpus_of(run: Run) -> int:
    return sum(len(one.ranks) for one in run.classes) or 1


def rank_words(run: Run) -> str:
    """'rank 3 of 8', and how it stands among the others; nothing of one GPU."""
    count = gpus_of(run)
    if run.rank is None or count == 1:
        return ""
    equal = len(run.classes) == 1
    return f"rank {count_text(run.rank)} of {count_text(count)}, {'all equal' if equal else 'the fullest'}"


def where_words(run: Run) -> str:
    """' on each of 8 GPUs', ' on rank 3, the fullest of 8 GPUs'; nothing of one."""
    count = gpus_of(run)
    if run.rank is None or count == 1:
        return ""
    if len(run.classes) == 1:
        return f" on each of {count_text(count)} GPUs"
    return f" on rank {count_text(run.rank)}, the fullest of {count_text(count)} GPUs"


def class_words(ranks: RankClass, shown: int | None) -> str:
    live, reserved = bytes_text(ranks.peak_allocated_bytes), bytes_text(ranks.peak_reserved_bytes)
    mark = ", the figures above" if ranks.shown == shown else ""
    return f"{ranks_text(ranks.ranks)}: live {live}, reserved {reserved}{mark}"


def ranks_text(ranks: Sequence[int]) -> str:
    """'ranks 0 to 6, 8', or with a distance: 'ranks 0, 4, ... 28'."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    distances = {after - before for before, after in zip(ranks, ranks[1:], strict=False)}
    if len(runs) > 3 and len(distances) == 1:
        return f"ranks {ranks[0]}, {ranks[1]}, ... {ranks[-1]}"
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"ranks {', '.join(parts)}"
