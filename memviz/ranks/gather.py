"""From places to what many ranks come to: read here or by a scheduler's workers, or out of a table of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from memviz.errors import UsageError
from memviz.mesh import sizes_of
from memviz.ranks.numbers import check_room, sizes_beside
from memviz.ranks.parquet import ENDING, RankTable, RowFile, read_table
from memviz.ranks.places import Place, places_of
from memviz.ranks.row import Reduced
from memviz.ranks.summary import RankSummary, summarize_ranks
from memviz.ranks.workers import reduced_here, reduced_there

Progress = Callable[[int, int], None]
"""Files read so far, of how many."""


@dataclass(frozen=True)
class Gathering:
    """A request to gather rows of ranks."""

    places: tuple[str, ...]
    """Or a single table of rows."""
    device: str | None = None
    output: Path | None = None
    processes: int | None = None
    scheduler: str | None = None
    """Address of a Dask scheduler whose workers read the files instead of this process."""
    mesh: str = ""
    """Sizes, as in `memviz/mesh.py`; without them those of a `mesh.json` beside the files."""


def gathered(wanted: Gathering, *, progress: Progress | None = None) -> RankSummary:
    if len(wanted.places) == 1 and wanted.places[0].endswith(ENDING):
        table = _table_of(wanted)
        mesh = wanted.mesh or table.mesh
        return summarize_ranks(table.rows, sizes_of(mesh) if mesh else None)
    table_beside = next((place for place in wanted.places if place.endswith(ENDING)), None)
    if table_beside is not None:
        raise UsageError(f"{table_beside} is a table of ranks. Name it alone, or after -o to go on with it.")
    sizes = sizes_of(wanted.mesh) if wanted.mesh else sizes_beside(wanted.places)
    kept = None if wanted.output is None else RowFile(wanted.output, wanted.device, _text_of(sizes))
    places = places_of(wanted.places)
    check_room([place.address for place in places], sizes)
    rows = _read(places, wanted, kept)
    return summarize_ranks(_counted(rows if kept is None else kept.keeping(rows), len(places), progress), sizes)


def _text_of(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def _table_of(wanted: Gathering) -> RankTable:
    table = read_table(Path(wanted.places[0]))
    if wanted.device not in (None, table.device):
        raise UsageError(f"{wanted.places[0]} holds rows of another device. Read the snapshots again for this one.")
    if wanted.output is not None:
        raise UsageError(f"{wanted.places[0]} is such a table already. Name the snapshots to write another one.")
    return table


def _read(places: Sequence[Place], wanted: Gathering, kept: RowFile | None) -> Iterator[Reduced]:
    """Yield known rows first, so that an interruption loses none of them."""
    known = [] if kept is None else [row for place in places if (row := kept.known(place)) is not None]
    yield from known
    left = {place.address: place for place in places}
    for row in known:
        del left[row.place]
    if wanted.scheduler is not None:
        yield from reduced_there(tuple(left.values()), wanted.scheduler, wanted.device)
    else:
        yield from reduced_here(tuple(left.values()), wanted.device, processes=wanted.processes)


def _counted(rows: Iterator[Reduced], total: int, progress: Progress | None) -> Iterator[Reduced]:
    for done, row in enumerate(rows, start=1):
        if progress is not None:
            progress(done, total)
        yield row
