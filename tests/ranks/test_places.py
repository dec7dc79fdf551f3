"""Listing the files of ranks."""

from __future__ import annotations

import os
import re
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import fsspec
import pytest

from memviz.errors import TraceError, UsageError
from memviz.ranks.places import places_of
from memviz.ranks.reduce_rank import reduce_rank
from memviz.ranks.row import FailedFile
from memviz.ranks.summary import summarize_ranks
from tests.ranks.files import read, write_ranks
from tests.traces import MiB


def names(*given: Path | str) -> list[str]:
    return [place.name for place in places_of([str(one) for one in given])]


def touch(folder: Path, *files: str) -> None:
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def test_a_folder_gives_its_snapshots_in_order_or_one_of_each_folder(tmp_path: Path) -> None:
    touch(tmp_path, "rank10.pickle", "rank2.pickle.gz", "train.log", "mesh.json", ".hidden.pickle", "ranks.parquet")
    assert names(tmp_path) == ["rank2.pickle.gz", "rank10.pickle"]
    touch(tmp_path / "job", "rank_0/snapshot.pickle", "rank_1/snapshot.pickle", "notes.txt")
    assert [place.address for place in places_of([str(tmp_path / "job")])] == [
        str(tmp_path / "job/rank_0/snapshot.pickle"),
        str(tmp_path / "job/rank_1/snapshot.pickle"),
    ]


def test_a_glob_and_files_and_each_only_once(tmp_path: Path) -> None:
    touch(tmp_path, "rank0.pickle", "rank1.pickle", "a/rank2.pickle")
    assert names(tmp_path / "rank?.pickle") == ["rank0.pickle", "rank1.pickle"]
    assert names(tmp_path / "**" / "*.pickle") == ["rank2.pickle", "rank0.pickle", "rank1.pickle"]
    assert names(tmp_path, tmp_path / "rank1.pickle") == ["rank0.pickle", "rank1.pickle"]
    touch(tmp_path, "rank[0].pickle")
    assert names(tmp_path / "rank[0].pickle") == ["rank[0].pickle"]


@pytest.fixture
def remote() -> str:
    files = fsspec.filesystem("memory")
    for name in ("rank0.pickle", "rank1.pickle", "log.txt"):
        files.pipe(f"/job/{name}", b"x" * 10)
    yield "memory://job"
    files.rm("/job", recursive=True)


def test_a_place_that_fsspec_knows(remote: str) -> None:
    assert [(place.address, place.size) for place in places_of([remote])] == [
        ("memory:///job/rank0.pickle", 10),
        ("memory:///job/rank1.pickle", 10),
    ]
    assert names(f"{remote}/*1.pickle") == ["rank1.pickle"]
    assert names(f"{remote}/rank0.pickle") == ["rank0.pickle"]


@pytest.mark.parametrize("folder", ["memory://job", "memory://job/"])
def test_a_remote_folder_of_folders_gives_one_of_each(folder: str) -> None:
    files = fsspec.filesystem("memory")
    for name in ("rank_0/snapshot.pickle", "rank_1/snapshot.pickle", "rank_1/log.txt", "notes.txt"):
        files.pipe(f"/job/{name}", b"x")
    try:
        found = [place.address for place in places_of([folder])]
    finally:
        files.rm("/job", recursive=True)
    assert found == ["memory:///job/rank_0/snapshot.pickle", "memory:///job/rank_1/snapshot.pickle"]


def test_a_folder_that_may_not_be_looked_into_is_one_of_the_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "rank_0/snapshot.pickle", "rank_1/snapshot.pickle")
    # Root may read every folder, so access is patched.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "rank_1")
    first, closed = places_of([str(tmp_path)])
    assert (first.name, closed.name) == ("snapshot.pickle", "rank_1")
    row = reduce_rank(closed)
    assert isinstance(row, FailedFile)
    assert row.reason == "No permission to list the folder."


def test_where_nothing_is_found_it_says_how_to_look_deeper(tmp_path: Path) -> None:
    touch(tmp_path, "a/b/rank0.pickle")
    with pytest.raises(UsageError, match="direct subfolders") as told:
        places_of([str(tmp_path)])
    (deeper,) = re.findall(r"ones write (.*)\.$", str(told.value))
    assert names(deeper) == ["rank0.pickle"]
    with pytest.raises(UsageError, match="There is no snapshot in"):
        places_of([str(tmp_path / "*.pickle")])
    with pytest.raises(UsageError, match="A path is empty"):
        places_of([""])


@pytest.mark.parametrize("address", ["nowhere9://bucket/x", "s3://bucket/x"])
def test_a_protocol_that_is_not_known_is_refused_in_words(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(UsageError, match="cannot be opened"):
        places_of([address])


def test_the_mesh_is_told_by_the_file_its_name_the_question_or_a_file_beside(tmp_path: Path) -> None:
    from memviz.ranks.gather import Gathering, gather_ranks
    from memviz.ranks.numbers import mesh_of
    from tests.ranks.files import write_ranks

    job = write_ranks(tmp_path / "job", 4)
    (job / "run.rank3.pickle").rename(job / "run.rank3.pp7.pickle")

    def meshes(mesh: str = "") -> list[dict[str, int]]:
        return [dict(mesh_of(rank)) for rank in gather_ranks(Gathering((str(job),), processes=1, mesh=mesh)).ranks]

    assert meshes() == [{}, {}, {}, {"pp": 7}]
    assert meshes("pp=2,dp=2") == [{"pp": 0, "dp": 0}, {"pp": 0, "dp": 1}, {"pp": 1, "dp": 0}, {"pp": 7}]
    (job / "mesh.json").write_text('{"dp": 3}')
    assert meshes() == [{"dp": 0}, {"dp": 1}, {"dp": 2}, {"pp": 7}]
    for wrong in ("[1, 2]", "{", '{"pp": 0}', '{"pp": "x"}', "[" * 100_000):
        (job / "mesh.json").write_text(wrong)
        with pytest.raises(UsageError, match="is not a mesh"):
            meshes()


def test_what_cannot_be_answered_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    from memviz.ranks.gather import Gathering, gather_ranks

    touch(tmp_path, "rank0.pickle", "rank6.pickle", "rank9.pp1.pickle")
    with pytest.raises(UsageError, match="A mesh of pp=2,dp=3 has 6 places, but there is a rank 6. Name all axes."):
        gather_ranks(Gathering((str(tmp_path),), mesh="pp=2,dp=3"))
    with pytest.raises(UsageError, match="is a table of ranks. Name it alone"):
        gather_ranks(Gathering((str(tmp_path), str(tmp_path / "ranks.parquet"))))


def test_the_snapshots_in_a_zip_are_ranks_and_nothing_else_in_it(tmp_path: Path) -> None:
    write_ranks(tmp_path / "job", 3, rank2=8 * MiB)
    archive = tmp_path / "job.zip"
    with ZipFile(archive, "w", ZIP_DEFLATED) as file:
        for path in sorted((tmp_path / "job").iterdir()):
            file.write(path, f"job/{path.name}")
        file.writestr("job/rank9::http://localhost/x.pickle", b"x")
        file.writestr("job/notes.txt", b"x")
    places = places_of([str(archive)])
    assert sorted(names(archive)) == ["run.rank0.pickle", "run.rank1.pickle", "run.rank2.pickle", "x.pickle"]
    zipped, plain = summarize_ranks(map(reduce_rank, places)), read(tmp_path / "job")
    assert [rank.row.peak_bytes for rank in zipped.ranks] == [rank.row.peak_bytes for rank in plain.ranks]
    (failed,) = zipped.failed
    assert "JSON" in failed.reason, "the name in the archive is no address"
    with ZipFile(archive, "w") as file:
        file.writestr("notes.txt", b"x")
    with pytest.raises(TraceError, match="job.zip: The zip archive has no snapshot"):
        places_of([str(archive)])
