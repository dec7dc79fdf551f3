"""A hanging test fails after some minutes with its name and stack, and all others run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.repository import ROOT

pytestmark = pytest.mark.slow

HANGS = """
import faulthandler, sys, threading

def test_before(): pass
def test_hangs():
    # As pytest does at the beginning of each, by its setting; here it has been long enough already.
    faulthandler.dump_traceback_later(0.1, exit=True, file=sys.__stderr__)
    threading.Event().wait()
def test_behind(): pass
"""
OTHER = "def test_elsewhere(): pass\n"


def test_it_fails_once_by_its_name_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "test_one.py").write_text(HANGS)
    (tmp_path / "test_two.py").write_text(OTHER)
    shared = ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-p", "tests.conftest"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", *shared, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert re.search(r"1 failed, 3 passed", done.stdout), done.stdout + done.stderr
    assert "FAILED test_one.py::test_hangs" in done.stdout
    assert re.search(r'test_one.py", line \d+ in test_hangs', done.stderr), done.stderr
