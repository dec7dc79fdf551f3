"""Modules that a command loads: none that only another command needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import memviz
from memviz.commands import COMMANDS
from memviz.commands.command_line import columns_of_terminal

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "sample_traces" / "training.pickle.gz"
STARTED = """
import atexit, os, sys
atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))
sys.argv = ["memviz", *sys.argv[1:]]
from memviz.__main__ import run
run()
"""


def loaded_by(*arguments: object) -> set[str]:
    """Return the modules loaded in a fresh process after the command."""
    command = [sys.executable, "-c", STARTED, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout
    return set(done.stderr.split())


def ours(modules: set[str], *parts: str) -> set[str]:
    return {name for name in modules if name.startswith(tuple(f"memviz.{part}" for part in parts))}


def test_a_summary_loads_what_it_needs() -> None:
    loaded = loaded_by("summary", SAMPLE)
    assert "numpy" in loaded
    assert not loaded & {"numpy.ma", "zipfile", "lzma", "hashlib", "shutil", "traceback", "threading"}
    assert not ours(loaded, "analysis.comparing")
    # The layers of a forward are what findings and actions count them as.
    known = {"analysis.findings.finding", "analysis.actions.layers"}
    assert {f"memviz.{name}" for name in known} <= ours(loaded, "analysis.findings", "analysis.actions")
    unneeded = ours(loaded, "allocator", "analysis.findings.ranking", "figures", "ui", "runner", "ranks")
    # The bill of a device takes the CUDA context from a table.
    assert unneeded == {"memviz.allocator", "memviz.allocator.context"}


def test_version_and_help_fit_the_terminal() -> None:
    def printed(option: str) -> str:
        asked = [sys.executable, "-m", "memviz", option]
        environment = {**os.environ, "COLUMNS": "40"}
        return subprocess.run(asked, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert printed("--version") == f"memviz {memviz.__version__}\n"
    text = printed("--help")
    assert all(name in text for name in COMMANDS) and max(map(len, text.splitlines())) <= 38


@pytest.mark.parametrize("columns", ["", "0", "-3", "many", "44", "132"])
def test_the_terminal_is_as_wide_as_python_finds_it(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert columns_of_terminal() == shutil.get_terminal_size().columns
