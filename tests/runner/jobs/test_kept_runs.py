"""Saved runs: they outlive the page complete, newest first, bounded, and private to their visitor."""

import errno
import io
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from memviz.errors import MemvizError, UsageError
from memviz.runner.jobs.kept_runs import Bounds, KeptRuns
from tests.runner.processes import wait_until
from tests.runner.runs import run


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made.pickle"
    path.write_bytes(b"x" * 1000)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def test_a_run_is_there_for_the_next_page_and_no_other_visitor_sees_or_reaches_it(folder: Path, made: Path) -> None:
    kept = KeptRuns(folder, "ann").keep(made, run(), "first try")
    again = KeptRuns(folder, "ann")
    assert again.all() == (kept,)
    assert again.get(kept.id).run == run()
    assert again.get(kept.id).path.read_bytes() == b"x" * 1000
    bob = KeptRuns(folder, "bob")
    assert bob.all() == ()
    for id in (kept.id, f"../{kept.path.parent.name}/{kept.id}", "", "*"):
        with pytest.raises(UsageError):
            bob.get(id)
    assert "ann" not in str(kept.path.relative_to(folder))


def test_a_name_is_made_of_the_run_and_can_be_changed(folder: Path, made: Path) -> None:
    runs = KeptRuns(folder, "ann")
    kept = runs.keep(made, run(label="every second block"))
    assert kept.name == "every second block"
    assert runs.rename(kept.id, "  better\n\x1b[31m name ").name == "better [31m name"
    assert [each.name for each in runs.all()] == ["better [31m name"]
    with pytest.raises(UsageError, match="needs a name"):
        runs.rename(kept.id, " ")


def test_a_record_without_the_number_of_its_figures_is_of_an_earlier_version(folder: Path, made: Path) -> None:
    runs = KeptRuns(folder, "ann")
    kept = runs.keep(made, run())
    summary = kept.path.with_suffix(".json")
    summary.write_text(json.dumps({"name": "old", "run": run().as_json()}))
    assert kept.is_current and not runs.get(kept.id).is_current
    assert not runs.rename(kept.id, "older").is_current and not runs.get(kept.id).is_current


def test_what_is_deleted_leaves_nothing_and_the_newest_are_listed_first(folder: Path, made: Path) -> None:
    runs = KeptRuns(folder, "ann")
    first, second = runs.keep(made, run()), runs.keep(made, run())
    runs.delete(first.id)
    assert [each.id for each in KeptRuns(folder, "ann").all()] == [second.id]
    assert sorted(path.stem for path in folder.rglob("*.*")) == [second.id, second.id]
    with pytest.raises(UsageError, match="no longer exists"):
        runs.get(first.id)
    ids = [second.id, *(runs.keep(made, run()).id for _ in range(12))]
    assert [each.id for each in runs.all()] == ids[::-1]


def test_the_oldest_make_room(folder: Path, made: Path) -> None:
    runs = KeptRuns(folder, "ann", Bounds(runs=3))
    ids = []
    for number in range(5):
        ids.append(runs.keep(made, run()).id)
        for age, path in enumerate(reversed([folder.glob(f"*/{id}.pickle") for id in ids])):
            for each in path:
                os.utime(each, (1e9 - age, 1e9 - age)) if number < 4 else None
    assert {each.id for each in runs.all()} <= set(ids[-3:])


def test_all_visitors_together_stay_below_the_bytes(folder: Path, made: Path) -> None:
    bounds = Bounds(total_bytes=2500)
    first = KeptRuns(folder, "ann", bounds).keep(made, run())
    os.utime(first.path, (1e9, 1e9))
    for who in ("bob", "eve"):
        KeptRuns(folder, who, bounds).keep(made, run())
    assert KeptRuns(folder, "ann").all() == ()
    assert len(list(folder.glob("*/*.pickle"))) == 2


def test_a_full_disk_loses_nothing(folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = KeptRuns(folder, "ann")
    before = runs.keep(made, run())
    opened = Path.open

    class Full(io.BytesIO):
        def write(self, _: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def opening(path: Path, mode: str = "r", *rest: object, **more: object) -> object:
        return Full() if "r" not in mode else opened(path, mode, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", opening)
    with pytest.raises(MemvizError, match="No space left"):
        runs.keep(made, run())
    monkeypatch.undo()
    assert KeptRuns(folder, "ann").all() == (before,)
    assert made.read_bytes() == b"x" * 1000
    assert len(list(folder.rglob("*.*"))) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1}', '{"name": "x", "run": {"label": 3}}', "null"])
def test_a_spoiled_summary_hides_its_run_and_no_other(folder: Path, made: Path, text: str) -> None:
    runs = KeptRuns(folder, "ann")
    spoiled, whole = runs.keep(made, run()), runs.keep(made, run())
    spoiled.path.with_suffix(".json").write_text(text)
    assert [each.id for each in runs.all()] == [whole.id]


@pytest.mark.slow
def test_pages_that_share_a_folder_never_list_a_run_that_cannot_be_opened(folder: Path, made: Path) -> None:
    """One keeps more than there is room for and another deletes, while a third reads."""
    bounds, ended = Bounds(runs=5), threading.Event()
    faults: list[BaseException] = []
    acted: Counter[int] = Counter()

    def page(number: int, act: Callable[[KeptRuns], object]) -> None:
        runs = KeptRuns(folder, "ann", bounds)
        try:
            while not ended.is_set():
                act(runs)
                acted[number] += 1
        except BaseException as error:
            faults.append(error)

    def delete(runs: KeptRuns) -> None:
        for each in runs.all()[2:]:
            with suppress(UsageError):
                runs.delete(each.id)

    def look(runs: KeptRuns) -> None:
        for each in runs.all():
            with suppress(UsageError, FileNotFoundError):
                assert runs.get(each.id).path.read_bytes() == b"x" * 1000

    acts = (lambda runs: runs.keep(made, run()), lambda runs: runs.keep(made, run()), delete, look)
    threads = [threading.Thread(target=page, args=each) for each in enumerate(acts)]
    for thread in threads:
        thread.start()
    wait_until(lambda: bool(faults) or (len(acted) == len(acts) and min(acted.values()) >= 50))
    ended.set()
    for thread in threads:
        thread.join()
    assert faults == []
    left = KeptRuns(folder, "ann", bounds).all()
    assert left and {each.path for each in left} == set(folder.rglob("*.pickle"))
    assert not list(folder.rglob("*.part"))
