"""Tests whose subject is a whole process, in one of their own.

What keeps a tensor is looked for in all that a process has, and beside thousands of tests that is millions of objects.
torch's own list of operators changes settings of torch as it is imported.
pytest does not collect these files by itself; `pytest tests/predictor/alone_holders.py` runs one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OPERATORS = HERE / "predictor" / "alone_every_operator.py"
FILES = sorted({*HERE.rglob("alone_*.py")} - {OPERATORS})


@pytest.mark.parametrize(
    ("marked", "files"),
    [
        ("not slow", FILES),
        pytest.param("slow", FILES, marks=pytest.mark.slow),
        pytest.param("slow", [OPERATORS], marks=pytest.mark.slow),
    ],
    ids=["quick", "slow", "operators"],
)
def test_they_pass(marked: str, files: list[Path]) -> None:
    assert files
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", marked, *map(str, files)]
    ran = subprocess.run(command, cwd=HERE.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
