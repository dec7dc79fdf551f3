"""Where the traces of a run's ranks lie: the fullest in the run's own file, one of each other class beside it."""

from __future__ import annotations

from pathlib import Path


def file_of_rank(run: Path, rank: int, shown: int | None) -> Path:
    return run if rank == shown else run.with_name(f"{run.stem}.rank{rank}{run.suffix}")
