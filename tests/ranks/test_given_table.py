"""A user's table of ranks: it reads as written, and an invalid one is refused with a message."""

from __future__ import annotations

import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from memviz.errors import TraceError
from memviz.ranks.gather import Gathering, gathered
from memviz.ranks.numbers import mesh_of
from memviz.ranks.parquet import read_table, row_values
from memviz.ranks.summary import RankSummary
from memviz.ranks.uploaded_table import FIRST_BYTES, NoRow, checked_rows, is_table, ranks_of_table
from tests.ranks.files import write_ranks
from tests.traces import MiB

arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RankSummary]:
    """The table and the summary at its writing; the files have moved since."""
    folder = write_ranks(tmp_path_factory.mktemp("ranks") / "job", 4, rank2=9 * MiB)
    (folder / "mesh.json").write_text('{"pp": 2, "dp": 2}')
    (folder / "run.rank3.pickle").write_bytes(b"cut")
    table = folder.parent / "ranks.parquet"
    told = gathered(Gathering((str(folder),), output=table, processes=1))
    folder.rename(folder.parent / "moved")
    return table, told


@pytest.mark.slow
def test_a_table_says_what_was_told_when_it_was_written(job: tuple[Path, RankSummary]) -> None:
    """The mesh came from a file next to the ranks, which no longer exists."""
    table, told = job
    assert ranks_of_table(table, "ranks.parquet") == told == gathered(Gathering((str(table),)))
    assert [mesh_of(rank) for rank in told.ranks] == [(("pp", n // 2), ("dp", n % 2)) for n in range(3)]
    assert read_table(table).mesh == "pp=2,dp=2" and len(told.failed) == 1
    assert dict(mesh_of(gathered(Gathering((str(table),), mesh="tp=4")).ranks[2])) == {"tp": 2}


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
    job: tuple[Path, RankSummary], change: dict[str, Any], words: str
) -> None:
    rows = json.loads(json.dumps([row_values(row) for row in read_table(job[0]).rows]))
    assert checked_rows(copy.deepcopy(rows)) == read_table(job[0]).rows
    with pytest.raises(NoRow, match=words):
        checked_rows([{**rows[0], **change}, *rows[1:]])


@pytest.mark.slow
def test_what_is_no_table_is_refused_in_words(job: tuple[Path, RankSummary], tmp_path: Path) -> None:
    raw = job[0].read_bytes()
    other = tmp_path / "other.parquet"
    parquet.write_table(arrow.table({"rank": [1]}), other)
    broken = {
        "cut": (raw[: len(raw) // 2], "cut.parquet: It is damaged"),
        "other": (other.read_bytes(), "It is a table, but not of ranks"),
        "first bytes": (FIRST_BYTES, "damaged"),
    }
    for name, (content, words) in broken.items():
        path = tmp_path / "upload-1.parquet"
        path.write_bytes(content)
        assert is_table(path)
        with pytest.raises(TraceError, match=words) as refused:
            ranks_of_table(path, f"{name}.parquet")
        assert "upload-1" not in str(refused.value)


@pytest.mark.slow
def test_a_table_that_unpacks_to_much_is_refused_before_it_does(job: tuple[Path, RankSummary], tmp_path: Path) -> None:
    bomb, schema = tmp_path / "bomb.parquet", parquet.read_schema(job[0])
    row = {**parquet.read_table(job[0]).slice(0, 1).to_pylist()[0], "etag": "a" * (96 << 20)}
    with parquet.ParquetWriter(bomb, schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(3):
            writer.write_table(arrow.Table.from_pylist([row], schema=schema))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(TraceError, match=r"unpacks to .* bytes, more than"):
        ranks_of_table(bomb, "bomb.parquet")


def test_what_takes_more_than_it_says_ends_its_own_process(
    job: tuple[Path, RankSummary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(job[0].parent))
    (job[0].parent / "pyarrow.py").write_text("held = bytearray(3 << 30)\n")
    with pytest.raises(TraceError, match="more memory than a table may"):
        ranks_of_table(job[0], "ranks.parquet")


def test_a_table_of_much_text_is_refused_without_holding_all_of_it(
    job: tuple[Path, RankSummary], tmp_path: Path
) -> None:
    """Only a part of an overlong row is read, and no list of its numbers is built."""
    full, schema = tmp_path / "full.parquet", parquet.read_schema(job[0])
    row = {**parquet.read_table(job[0]).slice(0, 1).to_pylist()[0], "live": [0] * 600_000}
    parquet.write_table(arrow.Table.from_pylist([row], schema=schema), full, compression="zstd")
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match="It is no table of ranks"):
            ranks_of_table(full, "full.parquet")
        assert tracemalloc.get_traced_memory()[1] < 6 << 20
    finally:
        tracemalloc.stop()
