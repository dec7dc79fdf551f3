"""Rows as a table, and back; and going on where somebody was interrupted."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memviz.errors import TraceError, UsageError
from memviz.ranks import gather
from memviz.ranks import table as table_module
from memviz.ranks.gather import Gathering, gather_ranks, reduce_here
from memviz.ranks.numbers import mesh_of
from memviz.ranks.places import Place, places_of
from memviz.ranks.reduce_rank import reduce_rank
from memviz.ranks.row import FailedFile, RankRow, Reduced
from memviz.ranks.summary import RankSummary
from memviz.ranks.table import (
    FIRST_BYTES,
    InvalidRow,
    RankTable,
    RowFile,
    checked_rows,
    ranks_of_table,
    read_table,
    row_values,
    write_rows,
)
from tests.marks import slow
from tests.ranks.files import write_ranks, written
from tests.second_process import memviz
from tests.traces import MiB

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
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
        yield from reduce_here(places, device, processes=1)

    monkeypatch.setattr(gather, "reduce_here", noting)
    return names


def wanted(job: Path) -> Gathering:
    return Gathering((str(job),), output=job.parent / "ranks.parquet")


def test_rows_come_back_as_they_went_and_other_programs_can_read_them(job: Path) -> None:
    rows = list(reduce_here(places_of([str(job)]), processes=1))
    write_rows(job.parent / "ranks.parquet", rows, "0")
    assert read_table(job.parent / "ranks.parquet") == RankTable(rows, "0")
    gather_ranks(wanted(job))
    table = parquet.read_table(job.parent / "ranks.parquet").to_pydict()
    assert table["rank"] == [0, 1, None, 3, 4, 5]
    assert table["peak_bytes"] == [120 * MiB, 120 * MiB, None, 120 * MiB, 129 * MiB, 120 * MiB]
    assert [reason is not None for reason in table["failed"]] == [False, False, True, False, False, False]
    for peak, sites, rest in zip(table["peak_bytes"], table["sites"], table["other_sites_bytes"], strict=True):
        assert peak is None or sum(site["bytes"] for site in sites) + rest == peak


def test_a_table_of_version_1_is_read_as_well(job: Path) -> None:
    """It does not say what is only probable."""
    import pyarrow

    path = job.parent / "ranks.parquet"
    rows = [row for row in reduce_here(places_of([str(job)]), processes=1) if isinstance(row, RankRow)]
    write_rows(path, rows, "0")
    table = parquet.read_table(path)
    pairs = [[{"kind": one["kind"], "bytes": one["bytes"]} for one in row] for row in table["categories"].to_pylist()]
    place = table.schema.get_field_index("categories")
    old = table.set_column(place, "categories", pyarrow.array(pairs))
    parquet.write_table(old.replace_schema_metadata({**table.schema.metadata, b"memviz.ranks": b"1"}), path)
    sure = [replace(row, categories=tuple(replace(one, probable_bytes=0) for one in row.categories)) for row in rows]
    assert read_table(path).rows == sure


def test_only_what_is_new_or_changed_is_read_again(job: Path, looked_at: list[str]) -> None:
    before = gather_ranks(wanted(job))
    looked_at.clear()
    assert gather_ranks(wanted(job)) == before
    assert looked_at == ["run.rank2.pickle"], "what failed is tried again"
    looked_at.clear()
    written(job, "new", more=20 * MiB).replace(job / "run.rank0.pickle")
    written(job, "run.rank7.pickle")
    after = gather_ranks(wanted(job))
    assert looked_at == ["run.rank0.pickle", "run.rank2.pickle", "run.rank7.pickle"]
    assert after.highest.number == 0
    assert len(after.ranks) == 6


@pytest.mark.parametrize("error", [KeyboardInterrupt, *slow(SystemExit, MemoryError)])
def test_whoever_is_interrupted_goes_on_there(
    job: Path, looked_at: list[str], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    whole = gather_ranks(Gathering((str(job),)))
    usual = gather.reduce_here

    def interrupted(*args: object) -> Iterator[Reduced]:
        for number, row in enumerate(usual(*args, processes=1)):
            if number == 4:
                raise error
            yield row

    with monkeypatch.context() as patch:
        patch.setattr(gather, "reduce_here", lambda places, device, processes: interrupted(places, device))
        with pytest.raises(error):
            gather_ranks(wanted(job))
    looked_at.clear()
    assert gather_ranks(wanted(job)) == whole
    assert looked_at == ["run.rank2.pickle", "run.rank4.pickle", "run.rank5.pickle"]


@pytest.mark.slow
def test_rows_are_written_while_others_are_read(tmp_path: Path) -> None:
    """A process that is killed cannot write them at its end."""
    path = tmp_path / "ranks.parquet"
    rows = (FailedFile(f"rank{number}.pickle", "no") for number in range(1000))
    behind = []
    for number, _ in enumerate(RowFile(path).keeping(rows), start=1):
        behind.append(number - (parquet.read_metadata(path).num_rows if path.exists() else 0))
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
        gather_ranks(wanted(job))
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["ranks.csv", "absent/ranks.parquet", "job.parquet"])
def test_where_it_cannot_be_written_is_said_before_anything_is_read(job: Path, name: str) -> None:
    (job.parent / "job.parquet").mkdir()
    done = memviz("ranks", job, "-o", job.parent / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert name in done.stderr and "Traceback" not in done.stderr


def test_a_table_without_pyarrow_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    table_module._arrow.cache_clear()
    job = write_ranks(tmp_path / "job", 2)
    with pytest.raises(UsageError, match="needs pyarrow, which is not installed here: pip install pyarrow"):
        gather_ranks(Gathering((str(job),), output=tmp_path / "ranks.parquet"))
    assert len(gather_ranks(Gathering((str(job),), processes=1)).ranks) == 2


# -- tables that anybody uploads


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RankSummary]:
    """The table and what was told when it was written; the files lie elsewhere by now."""
    folder = write_ranks(tmp_path_factory.mktemp("ranks") / "job", 4, rank2=9 * MiB)
    (folder / "mesh.json").write_text('{"pp": 2, "dp": 2}')
    (folder / "run.rank3.pickle").write_bytes(b"cut")
    table = folder.parent / "ranks.parquet"
    told = gather_ranks(Gathering((str(folder),), output=table, processes=1))
    folder.rename(folder.parent / "moved")
    return table, told


@pytest.mark.slow
def test_a_table_says_what_was_told_when_it_was_written(uploaded: tuple[Path, RankSummary]) -> None:
    """The mesh stood in a file beside the ranks, which is not there any more."""
    table, told = uploaded
    assert ranks_of_table(table, "ranks.parquet") == told == gather_ranks(Gathering((str(table),)))
    assert [mesh_of(rank) for rank in told.ranks] == [(("pp", n // 2), ("dp", n % 2)) for n in range(3)]
    assert read_table(table).mesh == "pp=2,dp=2" and len(told.failed) == 1
    assert dict(mesh_of(gather_ranks(Gathering((str(table),), mesh="tp=4")).ranks[2])) == {"tp": 2}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peak_bytes": -1}, "a number"),
        ({"peak_bytes": 1 << 61}, "a number"),
        ({"peak_bytes": 7}, "do not add up"),
        ({"place": "x" * 5000}, "a text"),
        ({"columns": 0}, "curve"),
        ({"live": [1]}, "curve"),
        ({"live": None}, "curve"),
        ({"sites": None}, "more sites"),
        ({"categories": [{"kind": "parameter"}]}, "not those of ranks"),
        ({"categories": [{"kind": "parameter", "bytes": 7, "probable_bytes": 8}]}, "a number"),
        ({"parts": [{}] * 999}, "more parts"),
        ({"said_rank": True}, "a number"),
        ({"failed": 3}, "a text"),
    ],
)
def test_rows_that_hold_nothing_together_are_refused(
    uploaded: tuple[Path, RankSummary], change: dict[str, Any], words: str
) -> None:
    rows = json.loads(json.dumps([row_values(row) for row in read_table(uploaded[0]).rows]))
    assert checked_rows(copy.deepcopy(rows)) == read_table(uploaded[0]).rows
    with pytest.raises(InvalidRow, match=words):
        checked_rows([{**rows[0], **change}, *rows[1:]])


@pytest.mark.slow
def test_a_table_that_unpacks_to_much_is_refused_before_it_does(
    uploaded: tuple[Path, RankSummary], tmp_path: Path
) -> None:
    bomb, schema = tmp_path / "bomb.parquet", parquet.read_schema(uploaded[0])
    row = {**parquet.read_table(uploaded[0]).slice(0, 1).to_pylist()[0], "etag": "a" * (96 << 20)}
    with parquet.ParquetWriter(bomb, schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(3):
            writer.write_table(arrow.Table.from_pylist([row], schema=schema))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(TraceError, match=r"unpacks to .* bytes, more than"):
        ranks_of_table(bomb, "bomb.parquet")


@pytest.mark.slow
def test_what_takes_more_than_it_says_ends_its_own_process(
    uploaded: tuple[Path, RankSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(uploaded[0].parent))
    (uploaded[0].parent / "pyarrow.py").write_text("held = bytearray(3 << 30)\n")
    with pytest.raises(TraceError, match="more memory than a table may"):
        ranks_of_table(uploaded[0], "ranks.parquet")


@pytest.mark.slow
def test_a_table_of_much_text_is_refused_without_holding_all_of_it(
    uploaded: tuple[Path, RankSummary], tmp_path: Path
) -> None:
    """A line that is too long is cut, and no list of numbers is made of it."""
    full, schema = tmp_path / "full.parquet", parquet.read_schema(uploaded[0])
    row = {**parquet.read_table(uploaded[0]).slice(0, 1).to_pylist()[0], "live": [0] * 600_000}
    parquet.write_table(arrow.Table.from_pylist([row], schema=schema), full, compression="zstd")
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="It is not a table of ranks"):
            ranks_of_table(full, "full.parquet")
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda raw: raw[: len(raw) // 2], "It is damaged"),
        (lambda raw: FIRST_BYTES, "damaged"),
        (lambda raw: _other_table(), "It is a table, but not of ranks"),
    ],
)
@pytest.mark.slow
def test_what_is_no_table_is_refused_in_words(
    uploaded: tuple[Path, RankSummary], tmp_path: Path, content: Any, words: str
) -> None:
    path = tmp_path / "upload-1.parquet"
    path.write_bytes(content(uploaded[0].read_bytes()))
    with pytest.raises(TraceError, match=words) as refused:
        ranks_of_table(path, "mine.parquet")
    assert "upload-1" not in str(refused.value)


def _other_table() -> bytes:
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table({"rank": [1]}), sink)
    return bytes(sink.getvalue())
