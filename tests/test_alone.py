"""Tests whose subject is a whole process: each file of them runs in one of its own.

What keeps a tensor is looked for in all that a process has, and beside thousands of tests that is millions of objects.
pytest does not collect these files by itself; `pytest tests/predictor/alone_holders.py` runs one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("alone_*.py"))


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_each_file_of_them_passes(file: Path, marked: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", marked, str(file)]
    ran = subprocess.run(command, cwd=HERE.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ran.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        pytest.skip("it has none")
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]


def test_there_are_such_files() -> None:
    assert FILES
