"""Folders for files of runs: removed with their page, or by the next page if it was killed."""

import subprocess
import sys
from pathlib import Path

from memviz.runner.jobs.service import Scratch

_PAGE = """
import sys
from pathlib import Path
from memviz.runner.jobs.service import Scratch

scratch = Scratch(Path(sys.argv[1]))
(scratch.new() / "run.pickle").write_bytes(b"x")
print("ready", flush=True)
sys.stdin.read()
"""


def test_folders_are_apart_and_go_together(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert not list(tmp_path.iterdir())
    first, second = scratch.new(), scratch.new()
    assert first != second and first.parent == second.parent
    (first / "run.pickle").write_bytes(b"x")
    scratch.close()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_page_left_is_swept_and_what_a_living_one_has_is_not(tmp_path: Path) -> None:
    page = subprocess.Popen(
        [sys.executable, "-c", _PAGE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert page.stdin is not None and page.stdout is not None
    assert page.stdout.readline() == "ready\n"
    (theirs,) = tmp_path.iterdir()
    mine = Scratch(tmp_path)
    folder = mine.new()
    assert list(theirs.glob("*/run.pickle"))
    page.kill()
    page.wait()
    page.stdin.close()
    page.stdout.close()
    other = Scratch(tmp_path)
    other.new()
    assert not theirs.exists()
    assert folder.exists()
    mine.close()
    other.close()
