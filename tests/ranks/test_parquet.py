"""Rows written as a table and read back, and the resumption of an interrupted run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from memviz.errors import UsageError
from memviz.ranks import gather
from memviz.ranks.gather import Gathering, gathered
from memviz.ranks.parquet import RankTable, RowFile, read_table, write_rows
from memviz.ranks.places import Place, places_of
from memviz.ranks.reduce_rank import reduce_rank
from memviz.ranks.row import FailedFile, RankRow, Reduced
from memviz.ranks.workers import reduced_here
from tests.ranks.files import write_ranks, written
from tests.second_process import memviz
from tests.traces import MiB

parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = write_ranks(tmp_path / "job", 6, rank4=9 * MiB)
    (folder / "run.rank2.pickle").write_bytes(b"")
    return folder


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read."""
    names: list[str] = []

    def noting(places: tuple[Place, ...], device: str | None, processes: int | None) -> Iterator[Reduced]:
        names.extend(place.name for place in places)
        yield from reduced_here(places, device, processes=1)

    monkeypatch.setattr(gather, "reduced_here", noting)
    return names


def wanted(job: Path) -> Gathering:
    return Gathering((str(job),), output=job.parent / "ranks.parquet")


def test_rows_come_back_as_they_went(job: Path) -> None:
    rows = list(reduced_here(places_of([str(job)]), processes=1))
    write_rows(job.parent / "ranks.parquet", rows, "0")
    assert read_table(job.parent / "ranks.parquet") == RankTable(rows, "0")


def test_a_table_of_version_1_is_read_as_well(job: Path) -> None:
    """Version 1 does not mark what is only probable."""
    import pyarrow

    path = job.parent / "ranks.parquet"
    rows = [row for row in reduced_here(places_of([str(job)]), processes=1) if isinstance(row, RankRow)]
    write_rows(path, rows, "0")
    table = parquet.read_table(path)
    pairs = [[{"kind": one["kind"], "bytes": one["bytes"]} for one in row] for row in table["categories"].to_pylist()]
    place = table.schema.get_field_index("categories")
    old = table.set_column(place, "categories", pyarrow.array(pairs))
    parquet.write_table(old.replace_schema_metadata({**table.schema.metadata, b"memviz.ranks": b"1"}), path)
    sure = [replace(row, categories=tuple(replace(one, probable_bytes=0) for one in row.categories)) for row in rows]
    assert read_table(path).rows == sure


def test_other_programs_can_read_the_table(job: Path) -> None:
    gathered(wanted(job))
    table = parquet.read_table(job.parent / "ranks.parquet").to_pydict()
    assert table["rank"] == [0, 1, None, 3, 4, 5]
    assert table["peak_bytes"] == [120 * MiB, 120 * MiB, None, 120 * MiB, 129 * MiB, 120 * MiB]
    assert [reason is not None for reason in table["failed"]] == [False, False, True, False, False, False]
    for peak, sites, rest in zip(table["peak_bytes"], table["sites"], table["other_sites_bytes"], strict=True):
        assert peak is None or sum(site["bytes"] for site in sites) + rest == peak


def test_the_table_alone_says_all_that_the_snapshots_said(job: Path) -> None:
    before = gathered(wanted(job))
    for file in job.iterdir():
        file.unlink()
    assert gathered(Gathering((str(job.parent / "ranks.parquet"),))) == before


def test_only_what_is_new_or_changed_is_read_again(job: Path, looked_at: list[str]) -> None:
    before = gathered(wanted(job))
    looked_at.clear()
    assert gathered(wanted(job)) == before
    assert looked_at == ["run.rank2.pickle"], "what failed is tried again"
    looked_at.clear()
    written(job, "new", more=20 * MiB).replace(job / "run.rank0.pickle")
    written(job, "run.rank7.pickle")
    after = gathered(wanted(job))
    assert looked_at == ["run.rank0.pickle", "run.rank2.pickle", "run.rank7.pickle"]
    assert after.highest.number == 0
    assert len(after.ranks) == 6


def test_rows_of_another_device_are_not_taken(job: Path, looked_at: list[str]) -> None:
    gathered(wanted(job))
    looked_at.clear()
    gathered(Gathering((str(job),), "0", job.parent / "ranks.parquet"))
    assert len(looked_at) == 6


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_whoever_is_interrupted_goes_on_there(
    job: Path, looked_at: list[str], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    whole = gathered(Gathering((str(job),)))
    usual = gather.reduced_here

    def interrupted(*args: object) -> Iterator[Reduced]:
        for number, row in enumerate(usual(*args, processes=1)):
            if number == 4:
                raise error
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(gather, "reduced_here", lambda places, device, processes: interrupted(places, device))
        with pytest.raises(error):
            gathered(wanted(job))
    looked_at.clear()
    assert gathered(wanted(job)) == whole
    assert looked_at == ["run.rank2.pickle", "run.rank4.pickle", "run.rank5.pickle"]


@pytest.mark.slow
def test_rows_are_written_while_others_are_read(tmp_path: Path) -> None:
    """A process that is killed cannot write them at its end."""
    path = tmp_path / "ranks.parquet"
    rows = (FailedFile(f"rank{number}.pickle", "no") for number in range(1000))
    written_so_far = []
    for _ in RowFile(path).keeping(rows):
        written_so_far.append(len(read_table(path).rows) if path.exists() else 0)
    behind = [number + 1 - there for number, there in enumerate(written_so_far)]
    assert max(behind) <= 125
    assert len(read_table(path).rows) == 1000


def test_whoever_goes_on_and_is_stopped_again_loses_no_row(tmp_path: Path, job: Path) -> None:
    path = tmp_path / "ranks.parquet"
    places = places_of([str(job)])
    list(RowFile(path).keeping(reduce_rank(place) for place in places))
    again = RowFile(path)
    known = again.keeping([row for place in places if (row := again.known(place)) is not None])
    next(known)
    known.close()
    assert len(read_table(path).rows) == len(places)


@pytest.mark.parametrize("content", [b"", b"hello", b"PAR1" * 100])
def test_something_else_of_that_name_stays_as_it_is(tmp_path: Path, job: Path, content: bytes) -> None:
    path = tmp_path / "ranks.parquet"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="damaged, or no parquet file"):
        gathered(wanted(job))
    assert path.read_bytes() == content


def test_a_table_of_somebody_else_stays_as_it_is(tmp_path: Path, job: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table({"rank": [1]}), tmp_path / "ranks.parquet")
    with pytest.raises(UsageError, match="a table, but not of ranks"):
        gathered(wanted(job))


@pytest.mark.slow
def test_the_command_writes_it_and_reads_it(job: Path) -> None:
    table = job.parent / "ranks.parquet"
    first = memviz("ranks", job, "-o", table, "--json")
    assert (first.returncode, first.stderr) == (0, "")
    assert memviz("ranks", table, "--json").stdout == first.stdout
    assert json.loads(first.stdout)["peak"] == {"rank": 4, "bytes": 129 * MiB}
    assert sorted(os.listdir(job.parent)) == ["job", "ranks.parquet"]


@pytest.mark.parametrize("name", ["ranks.csv", "absent/ranks.parquet", "job.parquet"])
def test_where_it_cannot_be_written_is_said_before_anything_is_read(job: Path, name: str) -> None:
    (job.parent / "job.parquet").mkdir()
    done = memviz("ranks", job, "-o", job.parent / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert name in done.stderr and "Traceback" not in done.stderr
