"""The files of ranks: listing them, and the rank number of each."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import fsspec
import pytest

from memviz.errors import TraceError, UsageError
from memviz.ranks.gather import Gathering, gather_ranks
from memviz.ranks.numbers import mesh_of, numbered, numbers_in
from memviz.ranks.numbers import missing as missing_ranks
from memviz.ranks.places import Place, places_of
from memviz.ranks.reduce_rank import reduce_rank, row_of
from memviz.ranks.row import FailedFile, RankRow
from memviz.ranks.summary import summarize_ranks
from tests.ranks.files import read, write_ranks
from tests.traces import MiB, alloc, trace_of

NOT_SAID = "Its rank is unknown."


def row(place: str, said: int | None = None) -> RankRow:
    return replace(row_of(trace_of([alloc(0, 100)]), Place(place)), said_rank=said)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("rank0.pickle", 0),
        ("run.rank12.pickle.gz", 12),
        ("rank_7_memory_snapshot.pickle", 7),
        ("iteration_10/rank3_memory_snapshot.pickle", 3),
        ("RANK-5-of-8.pkl", 5),
        ("global_rank4_step100.pickle", 4),
        ("node2_gpu3_1700000000.pickle", 3),
        ("runs/rank_9/snapshot.pickle", 9),
        ("snapshot_17.pickle", 17),
        ("snapshot.pickle", None),
        ("step100_host3.pickle", None),
        ("1700000000123456.pickle", None),
        ("forward-bf16.pickle", None),
        ("memory_fp32_3.pickle", 3),
        ("print8.pickle", 8),
        ("forward-fp32.pickle", None),
    ],
)
def test_the_number_in_a_name(name: str, number: int | None) -> None:
    assert numbers_in([name]) == {name: number}


def test_what_several_numbers_mean_is_told_by_all_names() -> None:
    assert numbers_in(["step100_0.pickle", "step100_1.pickle"]) == {"step100_0.pickle": 0, "step100_1.pickle": 1}
    both = ["step100_0.pickle", "step200_1.pickle"]
    assert numbers_in(both) == dict.fromkeys(both)
    two = [f"host-{host}_gpu{gpu}.pickle" for host in range(2) for gpu in range(2)]
    assert numbers_in(two) == dict.fromkeys(two)
    local = ["node0/local_rank_1.pickle", "node1/local_rank_1.pickle"]
    assert numbers_in(local) == dict.fromkeys(local)
    one = ["node0_gpu0.pickle", "node0_gpu1.pickle"]
    assert numbers_in(one) == {one[0]: 0, one[1]: 1}
    said = [f"node{rank // 2}_gpu{rank % 2}_rank{rank}.pickle" for rank in range(4)]
    assert list(numbers_in(said).values()) == [0, 1, 2, 3]


def test_the_time_in_a_name_is_no_rank() -> None:
    """Names by MindSpeed and verl; ranks of one job are written in different minutes."""
    names = ["snapshot_2024-01-02-03-04_0.pickle", "snapshot_2024-01-02-03-05_1.pickle"]
    assert list(numbers_in(names).values()) == [0, 1]
    names = [f"20250101-120{rank}/periodic_rank{rank}_pid77{rank}.pickle" for rank in range(2)]
    assert list(numbers_in(names).values()) == [0, 1]


def test_ranks_come_by_number_and_what_is_none_is_named_with_the_reason() -> None:
    ranks, failed = numbered([row("rank10.pickle"), row("rank2.pickle"), row("rank3.pickle", said=0)])
    assert [(rank.number, rank.row.place) for rank in ranks] == [
        (0, "rank3.pickle"),
        (2, "rank2.pickle"),
        (10, "rank10.pickle"),
    ]
    assert failed == ()
    bad = FailedFile("rank4.pickle", "It is empty.")
    ranks, failed = numbered([row("run.rank1.oom.pickle"), row("final.pickle"), bad, row("run.rank1.pickle")])
    assert [rank.row.place for rank in ranks] == ["run.rank1.pickle"]
    assert [(one.place, one.reason) for one in failed] == [
        ("final.pickle", f"{NOT_SAID} Name the files by rank, as in rank0.pickle."),
        ("rank4.pickle", "It is empty."),
        ("run.rank1.oom.pickle", "A second file of rank 1; run.rank1.pickle is used."),
    ]


@pytest.mark.parametrize(
    ("names", "gaps"),
    [
        (["rank0", "rank1"], ()),
        (["rank2", "rank5"], ((0, 1), (3, 4))),
        (["gpu0", "gpu9"], ((1, 8),)),
        # Numbers that no word calls ranks: counted from 1, with a gap, or those of processes.
        (["snapshot_1", "snapshot_2", "snapshot_3"], ()),
        (["snapshot_1", "snapshot_2", "snapshot_4"], ((3, 3),)),
        (["node_30412", "node_30413", "node_30419"], ()),
    ],
)
def test_gaps(names: list[str], gaps: tuple[tuple[int, int], ...]) -> None:
    ranks, failed = numbered([row(f"{name}.pickle") for name in names])
    assert (missing_ranks(ranks, failed), failed) == (gaps, ())


def test_a_damaged_file_is_there() -> None:
    ranks, _ = numbered([row(f"rank{number}.pickle") for number in (0, 3)])
    assert missing_ranks(ranks, [FailedFile("rank1.pickle", "It is cut short.")]) == ((2, 2),)


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
