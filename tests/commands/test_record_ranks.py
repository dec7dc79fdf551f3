"""Recording under torchrun: files by rank, chosen ranks, and a failing rank."""

from __future__ import annotations

import signal

import pytest

from memviz.trace.load import load_trace
from tests.commands.test_record import names, record


def test_every_rank_has_its_own_file(tmp_path):
    done = record(tmp_path, "GPU.malloc(1000)\n", RANK="3", LOCAL_RANK="1", WORLD_SIZE="4")
    assert done.returncode == 0
    assert names(tmp_path) == ["run.rank3.pickle"]


@pytest.mark.parametrize(("rank", "writes"), [(0, True), (1, False), (3, True)])
def test_only_chosen_ranks_write_their_end(tmp_path, rank, writes):
    done = record(tmp_path, "GPU.malloc(1000)\n", "--ranks", "0,last", RANK=str(rank), WORLD_SIZE="4")
    assert done.returncode == 0
    assert names(tmp_path) == ([f"run.rank{rank}.pickle"] if writes else [])
    assert bool(done.stderr) == writes


def test_a_rank_that_fails_writes_and_says_which_it_is(tmp_path):
    more = {"RANK": "2", "LOCAL_RANK": "2", "WORLD_SIZE": "4"}
    body = "GPU.malloc(1000)\nraise KeyError('weights')\n"
    done = record(tmp_path, body, "--ranks", "0", "--mesh", "pp=2,dp=2", **more)
    assert done.returncode == 1
    assert "memviz: Rank 2 of 4 (pp1, dp0) failed.\n" in done.stderr
    assert names(tmp_path) == ["run.rank2.pp1.dp0.pickle"]
    facts = load_trace(tmp_path / "run.rank2.pp1.dp0.pickle").about.facts
    assert {name: facts[name] for name in ("rank", "world_size", "mesh")} == {
        "rank": "2",
        "world_size": "4",
        "mesh": "pp=1,dp=0",
    }
    body = "GPU.malloc(1000)\nGPU.malloc(1 << 50)\n"
    done = record(tmp_path, body, "--ranks", "first", RANK="1", WORLD_SIZE="2")
    assert done.returncode == 1
    assert "Rank 1 of 2 failed." in done.stderr
    assert names(tmp_path) == ["run.rank1.pickle", "run.rank2.pp1.dp0.pickle"]
    assert load_trace(tmp_path / "run.rank1.pickle").about.facts["rank"] == "1"


def test_ranks_that_the_launcher_ends_write_only_where_they_were_chosen(tmp_path):
    body = "import os, signal, time\nGPU.malloc(1000)\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(30)\n"
    for rank in (0, 1):
        done = record(tmp_path, body, "--ranks", "0", RANK=str(rank), WORLD_SIZE="2")
        assert done.returncode == -signal.SIGTERM
    assert names(tmp_path) == ["run.rank0.pickle"]
