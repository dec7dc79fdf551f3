"""One file gives one row, even if the file is damaged."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from memviz.analysis.devices import choose_device
from memviz.ranks import reduce_rank as reading
from memviz.ranks.places import Place, places_of
from memviz.ranks.reduce_rank import MOST_SITES, reduce_rank, row_of
from memviz.ranks.row import FailedFile, KindBytes, RankRanOut, RankRow, SiteBytes, StepPart
from memviz.results.summary import summary_result
from memviz.trace.load import load_trace
from tests.facts import missing
from tests.ranks.files import written
from tests.real import real_files, slow_if_large
from tests.traces import MiB, alloc, block, frame, segment, trace_of

SAMPLES = sorted((Path(__file__).parents[2] / "sample_traces").glob("*.pickle.gz"))


def reduced(path: Path) -> RankRow:
    (place,) = places_of([str(path)])
    row = reduce_rank(place)
    assert isinstance(row, RankRow)
    return row


def test_a_row_holds_the_peak_what_it_is_made_of_and_a_curve_cut_at_steps(tmp_path: Path) -> None:
    path = written(tmp_path, "rank3.pickle", more=7 * MiB)
    row = reduced(path)
    assert (row.place, row.file_bytes, row.device, row.event_count) == (str(path), path.stat().st_size, "0", 41)
    assert (row.start_bytes, row.peak_bytes, row.end_bytes) == (0, 127 * MiB, 47 * MiB)
    assert row.sites[:5] == (
        *(SiteBytes(f"/train.py:{line} forward", f"train.py:{line} forward", 20 * MiB) for line in range(20, 24)),
        SiteBytes("/train.py:5 build", "train.py:5 build", 10 * MiB),
    )
    assert sum(site.bytes for site in row.sites) + row.other_sites_bytes == row.peak_bytes
    assert sum(part.bytes for part in row.categories) == row.peak_bytes
    curve = reduced(written(tmp_path, "rank0.pickle", more=7 * MiB)).curve
    assert curve.parts == (
        StepPart(-1, "", -1, 3),
        StepPart(0, "ProfilerStep#0", 4, 15),
        StepPart(1, "ProfilerStep#1", 16, 28),
        StepPart(2, "ProfilerStep#2", 29, 40),
    )
    assert [(part.number, peak // MiB) for part, peak in curve.peaks] == [(-1, 40), (0, 120), (1, 127), (2, 127)]
    assert len(curve.live) == 4 * curve.columns


@pytest.mark.slow
@pytest.mark.parametrize("path", slow_if_large([*SAMPLES, *real_files()], "name"))
def test_the_peak_is_that_of_summary_and_all_adds_up(path: Path) -> None:
    row, trace = reduced(path), load_trace(path)
    (summary,) = summary_result(trace, choose_device(trace).name).devices
    names = ("start_bytes", "peak_bytes", "peak_event", "end_bytes", "reserved_peak_bytes", "reserved_end_bytes")
    assert {name: getattr(row, name) for name in names} == {name: getattr(summary, name) for name in names}
    assert sum(site.bytes for site in row.sites) + row.other_sites_bytes == row.peak_bytes
    assert sum(part.bytes for part in row.categories) == row.peak_bytes
    assert max(row.curve.live) == row.peak_bytes
    assert row.ran_out_count == len(summary.oom)


def test_a_kind_that_is_no_more_than_probable_is_called_so() -> None:
    named = [alloc(0, 7 * MiB, frames=[frame("load_weights", "/p/engine.py", 9)])]
    row = row_of(trace_of(named), Place("here"))
    assert row.categories == (KindBytes("parameter", 7 * MiB, 7 * MiB),)
    assert [KindBytes("gradient", 10, sure).words for sure in (5, 6)] == ["gradient", "probably gradient"]


def test_a_rank_that_ran_out_or_has_no_history_says_so(tmp_path: Path) -> None:
    asked = [frame("forward", "model.py", 7)]
    oom = {"action": "oom", "device_free": 7, "size": 2**30, "stream": 0, "frames": asked}
    row = row_of(trace_of([alloc(0, 100), oom]), Place("here"))
    assert row.ran_out == (RankRanOut(1, 2**30, 100, 0, "model.py:7 forward"),)
    assert row.ran_out_count == 1
    row = row_of(trace_of([], [segment(0, 2 * MiB, [block(0, MiB)])]), Place("here"))
    assert (row.peak_bytes, row.event_count, set(row.curve.live)) == (MiB, 0, {MiB})
    assert row.categories == (KindBytes("before recording", MiB),)


def test_more_sites_than_are_kept_are_one_figure() -> None:
    many = [alloc(i << 20, 1000 + i, frames=[frame("f", "m.py", i)]) for i in range(MOST_SITES + 20)]
    row = row_of(trace_of(many), Place("here"))
    assert len(row.sites) == MOST_SITES
    assert row.other_sites_bytes == sum(1000 + i for i in range(20))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "The file is empty"),
        (b"\x80\x04no pickle", "damaged"),
        (b"hello", "It is not a pickle or JSON."),
        (pickle.dumps({"segments": [], "device_traces": []}), "snapshot is empty"),
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
    ],
)
def test_damaged_and_hostile_files_are_told_as_rows(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "rank1.pickle"
    path.write_bytes(content)
    failed = reduce_rank(places_of([str(path)])[0])
    assert isinstance(failed, FailedFile)
    assert failed.place == str(path)
    assert said in failed.reason


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_a_pipe_that_nobody_writes_to_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.rank0.pickle")
    (tmp_path / "run.rank1.pickle").symlink_to("/dev/zero")
    for place in places_of([str(tmp_path)]):
        found = reduce_rank(place)
        assert isinstance(found, FailedFile) and "not a file" in found.reason


class UnsteadyFiles(LocalFileSystem):
    """A place on a network that fails every file's first reading, as overloaded ones do."""

    protocol = "unsteady"
    opened: set[str] = set()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("unsteady://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"unsteady://{self._strip_protocol(name)}"

    def open(self, path: str, *args: Any, **more: Any) -> Any:
        if path not in self.opened:
            self.opened.add(path)
            raise ConnectionResetError("The line broke.")
        return super().open(path, *args, **more)


@pytest.fixture
def unsteady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PAUSE_SECONDS", 0)
    fsspec.register_implementation("unsteady", UnsteadyFiles, clobber=True)


@pytest.mark.usefixtures("unsteady")
def test_a_network_that_fails_once_is_asked_again(tmp_path: Path) -> None:
    here = written(tmp_path, "rank0.pickle")
    (place,) = places_of([f"unsteady://{here}"])
    row = reduce_rank(place)
    assert isinstance(row, RankRow)
    assert (row.place, row.peak_bytes) == (f"unsteady://{here}", reduced(here).peak_bytes)


@pytest.mark.usefixtures("unsteady")
def test_a_network_that_keeps_failing_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ConnectionResetError("The line broke.")

    monkeypatch.setattr(UnsteadyFiles, "open", fails)
    failed = reduce_rank(Place(f"unsteady://{tmp_path}/rank0.pickle"))
    assert isinstance(failed, FailedFile)
    assert missing(failed.reason, "3 tries", "The line broke.") == []
