"""`python -m memviz ranks`, as people and scripts use it."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from tests.commands.answers import answer
from tests.facts import missing
from tests.ranks.files import write_ranks, written
from tests.second_process import memviz
from tests.traces import MiB, alloc, frame, snapshot


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_ranks(tmp_path_factory.mktemp("recorded") / "job", 12, rank5=16 * MiB)
    (folder / "run.rank9.pickle").write_bytes(b"")
    return folder


@pytest.mark.slow
def test_a_smaller_card_names_who_runs_out_first(job: Path) -> None:
    card = answer("ranks", job, "--card", "130MiB", "--overhead", 0)["card"]
    assert (card["first"], card["runs_out"], card["lacks_bytes"]) == ({"rank": 5, "step": 1}, [5], 6 * MiB)
    assert answer("ranks", job, "--card", "136MiB", "--overhead", 0)["card"]["first"] is None
    words = memviz("ranks", job, "--card", "130MiB", "--overhead", "0").stdout
    assert (
        missing(words, "130 MiB", "rank 5", "step 1", "6.00 MiB", "1 rank", "would run out", "runs out of memory") == []
    )
    named = answer("ranks", job, "--card", "4090")
    assert named["card"]["name"] == "NVIDIA GeForce RTX 4090"
    assert missing(named["headline"]["reason"], "NVIDIA GeForce RTX 4090", "23.64 GiB", "fit") == []


def test_a_card_of_which_nothing_is_left_is_refused_as_replay_refuses_it(job: Path) -> None:
    done = memviz("ranks", job, "--card", "24GiB", "--overhead", "999GiB")
    assert (done.returncode, done.stdout) == (2, "")
    assert missing(done.stderr, "24.00 GiB", "999.00 GiB") == []


@pytest.mark.slow
def test_files_globs_and_processes_give_the_same(job: Path) -> None:
    found = answer("ranks", job)
    assert answer("ranks", *sorted(job.iterdir())) == found
    assert answer("ranks", job / "run.rank*.pickle", "--processes", 1) == found


def test_nothing_that_is_a_rank_is_said_and_ends_with_2(tmp_path: Path) -> None:
    (tmp_path / "rank0.pickle").write_bytes(b"hello")
    done = memviz("ranks", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "1 files" in done.stderr
    assert "not a pickle or JSON" in done.stderr
    assert memviz("ranks", tmp_path / "absent*").returncode == 2


def test_names_from_files_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    for number in range(4):
        extra = [alloc(1 << 40, MiB, frames=[frame("\x1b[2J", "e\x07vil.py", 3)])] if number == 3 else []
        events = [alloc(0, 10 * MiB, frames=[frame("f", "train.py", 1)]), *extra]
        (tmp_path / f"rank{number}.pickle").write_bytes(pickle.dumps(snapshot(events)))
    (tmp_path / "rank4\x1b[31m.pickle").write_bytes(b"")
    done = memviz("ranks", tmp_path)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout and "\x07" not in done.stdout
    assert "\\x1b[2J" in done.stdout and "rank4\\x1b[31m.pickle" in done.stdout


@pytest.mark.slow
def test_a_rank_without_a_file_is_named_and_one_that_is_damaged_is_not_missing(job: Path, tmp_path: Path) -> None:
    shutil.copytree(job, tmp_path / "job")
    assert answer("ranks", tmp_path / "job")["missing"] == []
    for number in (2, 3, 7):
        (tmp_path / "job" / f"run.rank{number}.pickle").unlink()
    assert answer("ranks", tmp_path / "job")["missing"] == [{"first": 2, "last": 3}, {"first": 7, "last": 7}]
    assert "\nNo file of ranks 2-3, 7.\n" in memviz("ranks", tmp_path / "job").stdout


def test_device_and_folder_one_level_down(tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"rank_{number}"
        folder.mkdir()
        written(folder, "snapshot.pickle")
    assert [one["rank"] for one in answer("ranks", tmp_path, "--device", "0")["ranks"]] == [0, 1]
    done = memviz("ranks", tmp_path, "--device", "7")
    assert done.returncode == 2
    assert "has no device 7" in done.stderr


def test_what_is_unlike_the_others_is_said_beside_the_table(tmp_path: Path) -> None:
    """Figures of one device of several, or from another folder, which no column shows."""
    folder = write_ranks(tmp_path / "job", 3)
    events = [alloc(0, 120 * MiB, frames=[frame("forward")])]
    (folder / "run.rank3.pickle").write_bytes(pickle.dumps({**snapshot(events), "device_traces": [events[:1], events]}))
    said = memviz("ranks", folder).stdout
    assert "\nRank 3 is device 0 of 2 devices in its file.\n" in said
    assert said.count("in its file") == 1 and "others are" not in said


def test_a_rank_that_cannot_be_opened_is_named(job: Path, tmp_path: Path) -> None:
    shutil.copytree(job, tmp_path / "job")
    (tmp_path / "job" / "run.rank20.pickle").symlink_to("nowhere")
    found = answer("ranks", tmp_path / "job")
    assert [Path(one["place"]).name for one in found["failed"]] == ["run.rank9.pickle", "run.rank20.pickle"]
