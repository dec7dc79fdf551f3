"""From places to what many ranks come to: read here or by a scheduler's workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from memviz.ranks.places import Place
from memviz.ranks.pool import reduced_here
from memviz.ranks.row import Reduced
from memviz.ranks.together import Ranks, together

Progress = Callable[[int, int], None]
"""Files read so far, of how many."""


@dataclass(frozen=True)
class Gathering:
    """What is asked for."""

    places: tuple[Place, ...]
    device: str | None = None
    processes: int | None = None


def gathered(wanted: Gathering, *, progress: Progress | None = None) -> Ranks:
    return together(counted(_read(wanted), len(wanted.places), progress))


def _read(wanted: Gathering) -> Iterator[Reduced]:
    return reduced_here(wanted.places, wanted.device, processes=wanted.processes)


def counted(rows: Iterator[Reduced], total: int, progress: Progress | None) -> Iterator[Reduced]:
    for done, row in enumerate(rows, start=1):
        if progress is not None:
            progress(done, total)
        yield row
