"""Tests whose subject is a whole process, in one of their own.

What keeps a tensor is looked for in all that a process has, and beside thousands of tests that is millions of objects.
pytest does not collect these files by itself; `pytest tests/predictor/alone_holders.py` runs one.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = sorted(map(str, HERE.rglob("alone_*.py")))


@pytest.mark.parametrize("marked", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_they_pass(marked: str) -> None:
    assert FILES
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "-m", marked, *FILES]
    ran = subprocess.run(command, cwd=HERE.parent, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-20_000:] + ran.stderr[-2_000:]
