"""Runs that would exhaust the machine: refused by size, ended by memory, or cancelled with their visitor."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memviz.commands import main
from memviz.runner.jobs.worker_process import Worker
from tests.runner.processes import is_there, wait_until

ROOT = Path(__file__).parents[2]
OWN = """
import os, sys, time
from pathlib import Path

def endless():
    import subprocess
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(__file__).with_name("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(3600)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_to_the_command_line_ends_the_whole_tree(own: Path, name: str, status: int) -> None:
    pids, scratch = own.with_name("pids"), own.parent / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    command = [sys.executable, "-m", "memviz", "run", f"{own}:endless", "--on", "predict"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        process.send_signal(getattr(signal, name))
        out, _ = process.communicate()
    assert (process.returncode, out) == (status, b"")
    worker, child = map(int, pids.read_text().split())
    wait_until(lambda: not is_there(worker) and not is_there(child))
    assert os.listdir(scratch) == []


def test_seconds_of_the_setting_hold_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Worker, "module", "tests.runner.fake_worker")
    monkeypatch.setenv("MEMVIZ_MAX_RUN_SECONDS", "0.5")
    assert main(["run", "endless"]) == 2
    assert "timed out after 0.5 seconds" in capsys.readouterr().err
    monkeypatch.setenv("MEMVIZ_MAX_RUN_SECONDS", "soon")
    assert main(["run", "endless"]) == 2
    assert "MEMVIZ_MAX_RUN_SECONDS='soon' is not" in capsys.readouterr().err
