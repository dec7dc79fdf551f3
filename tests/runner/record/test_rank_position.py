"""The rank of a process, and its decision to write a file."""

from pathlib import Path

import pytest

from memviz.errors import UsageError
from memviz.ranks.numbers import numbers_in
from memviz.runner.record.recorded_script import RankPosition, is_chosen, rank_path, rank_position


def of(rank: int, world: int = 8, mesh: str = "pp=2,dp=4") -> RankPosition:
    position = rank_position(mesh, {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(world)})
    assert position is not None
    return position


def test_a_process_by_itself_has_no_rank() -> None:
    assert rank_position("", {"WORLD_SIZE": "1"}) is None
    assert rank_position("pp=2", {}) is None


def test_the_last_axis_counts_fastest_as_in_torchs_own_meshes() -> None:
    torch = pytest.importorskip("torch")
    table = torch.arange(24).reshape(2, 3, 4)
    for rank in range(24):
        place = tuple(int(at) for at in (table == rank).nonzero()[0])
        assert tuple(of(rank, 24, "pp=2,dp=3,tp=4").mesh.items()) == tuple(zip(("pp", "dp", "tp"), place, strict=True))


def test_names_facts_and_words() -> None:
    position = of(5)
    assert rank_path(Path("out/run.pickle.gz"), position) == Path("out/run.rank5.pp1.dp1.pickle.gz")
    assert position.name == "Rank 5 of 8 (pp1, dp1)"
    assert position.facts == {"rank": "5", "world_size": "8", "mesh": "pp=1,dp=1"}
    assert rank_path(Path("run.pickle"), None) == Path("run.pickle")
    name = str(rank_path(Path("run2.pickle"), position))
    assert numbers_in([name]) == {name: 5}


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        ("all", list(range(8))),
        ("0", [0]),
        ("0,last", [0, 7]),
        ("first, 2-4 ,7", [0, 2, 3, 4, 7]),
        ("stage", [0, 4]),
        ("0,last,stage", [0, 4, 7]),
        ("99", []),
    ],
)
def test_ranks_are_chosen_by_number_span_and_word(ranks: str, chosen: list[int]) -> None:
    assert [rank for rank in range(8) if is_chosen(of(rank), ranks)] == chosen
    assert is_chosen(None, ranks)


@pytest.mark.parametrize("ranks", ["", "some", "0,-1", "0;1", "1-2-3"])
def test_what_names_no_ranks_is_refused_on_every_rank(ranks: str) -> None:
    for rank in range(8):
        with pytest.raises(UsageError, match="--ranks takes numbers"):
            is_chosen(of(rank), ranks)


def test_stages_need_a_mesh_and_the_last_a_world() -> None:
    with pytest.raises(UsageError, match="needs --mesh"):
        is_chosen(of(0, mesh="dp=8"), "stage")
    with pytest.raises(UsageError, match="WORLD_SIZE is not set"):
        is_chosen(rank_position("", {"RANK": "3"}), "last")


@pytest.mark.parametrize("mesh", ["pp", "pp=0", "pp=2 dp=4", "pp=2,,dp=4", "2,4", "pp=2,pp=4"])
def test_a_mesh_that_is_none_is_refused(mesh: str) -> None:
    with pytest.raises(UsageError, match="--mesh takes axes"):
        of(0, mesh=mesh)


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match="--mesh pp=2,dp=2 has 4 ranks, but there are 8"):
        of(0, mesh="pp=2,dp=2")
