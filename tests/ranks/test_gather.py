"""Many files in several processes: damaged ones, and ones that end their process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memviz.ranks.gather import reduce_here
from memviz.ranks.places import Place, places_of
from memviz.ranks.reduce_rank import reduce_rank
from memviz.ranks.row import FailedFile, RankRow, Reduced
from memviz.ranks.summary import summarize_ranks
from tests.ranks.files import read, write_ranks
from tests.second_process import ROOT
from tests.traces import MiB


def killed_by_some(place: Place, device: str | None) -> Reduced:
    """End the process as the system ends one that takes too much memory."""
    if "killer" in place.name:
        os.kill(os.getpid(), signal.SIGKILL)
    return reduce_rank(place, device)


def at_great_length(place: Place, device: str | None) -> Reduced:
    return FailedFile(place.address, "x" * (64 * MiB))


def test_damaged_files_stop_nobody(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path / "job", 6)
    (folder / "run.rank2.pickle").write_bytes(b"")
    (folder / "run.rank4.pickle").write_bytes((folder / "run.rank4.pickle").read_bytes()[:500])
    job = read(folder, processes=2)
    assert [rank.number for rank in job.ranks] == [0, 1, 3, 5]
    assert [Path(one.place).name for one in job.failed] == ["run.rank2.pickle", "run.rank4.pickle"]


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 7])
def test_a_file_that_ends_its_process_is_one_row(tmp_path: Path, at: int) -> None:
    folder = write_ranks(tmp_path / "job", 8)
    (folder / f"run.rank{at}.pickle").rename(folder / f"killer.rank{at}.pickle")
    places = places_of([str(folder)])
    rows = list(reduce_here(places, processes=2, reduce=killed_by_some))
    assert sorted(row.place for row in rows) == sorted(place.address for place in places)
    (failed,) = (row for row in rows if isinstance(row, FailedFile))
    assert failed.place.endswith(f"killer.rank{at}.pickle")
    assert "was killed" in failed.reason
    assert len(summarize_ranks(rows).ranks) == 7


@pytest.mark.slow
def test_whoever_goes_away_leaves_no_process(tmp_path: Path) -> None:
    rows = reduce_here(places_of([str(write_ranks(tmp_path / "job", 4))]), processes=2)
    assert isinstance(next(rows), RankRow)
    rows.close()
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_an_answer_that_was_half_written_is_not_waited_for() -> None:
    """Each is longer than a pipe holds, so that the second process is in the middle of its own when it is ended."""
    rows = reduce_here([Place(str(number), "", 0) for number in range(8)], processes=2, reduce=at_great_length)
    assert isinstance(next(rows), FailedFile)
    rows.close()
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_whoever_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """The first answer comes when processes are there; they hold the other end of our pipe until they end."""
    folder = write_ranks(tmp_path / "job", 8)
    code = "import sys, tests.ranks.test_gather as here; here.killed_while_reading(sys.argv[1])"
    asked = subprocess.run(
        [sys.executable, "-c", code, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, timeout=600, check=False
    )
    assert (asked.returncode, asked.stdout) == (-signal.SIGKILL, b"reading\n")


def killed_while_reading(folder: str) -> None:
    next(reduce_here(places_of([folder]), processes=2))
    os.write(sys.stdout.fileno(), b"reading\n")
    os.kill(os.getpid(), signal.SIGKILL)
