"""The GitHub action: its script predicts and compares two commits of a repository."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forked
from tests.facts import missing

_ASKS = """
import json, os, socket, sys

line = socket.socket(socket.AF_UNIX)
line.connect(sys.argv[1])
call = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(line, [call[:1]], [0, 1, 2])
line.sendall(call[1:])
line.shutdown(socket.SHUT_WR)
status = int(line.makefile().read())
os._exit(status if status >= 0 else 128 - status)
"""


@contextmanager
def python_on_path(folder: Path) -> Iterator[str]:
    """Yield a folder with `python` in it that is first on the path."""
    if not forked.CAN_FORK_RUNS:
        yield str(Path(sys.executable).parent)
        return
    (folder / "asks.py").write_text(_ASKS)
    words = shlex.join([sys.executable, "-IS", str(folder / "asks.py"), str(folder / "line")])
    (folder / "python").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (folder / "python").chmod(0o755)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "line"))
        listening.listen()
        answering = threading.Thread(target=_answer, args=(listening,))
        answering.start()
        try:
            yield str(folder)
        finally:
            # Who waits for a call hears that there is none.
            listening.shutdown(socket.SHUT_RDWR)
            answering.join()


def _answer(listening: socket.socket) -> None:
    """Serve one call after the other."""
    while True:
        try:
            line, _ = listening.accept()
        except OSError:
            return
        with line, line.makefile("rb") as rest:
            first, streams, _, _ = socket.recv_fds(line, 1, 3)
            try:
                status = _carried_out(first + rest.read(), streams)
            finally:
                for stream in streams:
                    os.close(stream)
            line.sendall(str(status).encode())


def _carried_out(call: bytes, streams: Sequence[int]) -> int:
    arguments, folder, environment = json.loads(call)
    of = forked.with_torch if "predict" in arguments else forked.light
    stdin, stdout, stderr = streams
    named = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    with forked.start(arguments, of=of, cwd=folder, env=environment, **named) as process:
        return process.wait()


ACTION = Path(__file__).parents[2] / ".github" / "actions" / "memory"
PROGRAM = """\
import torch

model = torch.nn.Linear(1024, {width}, device="cuda")
model(torch.randn(8, 1024, device="cuda")).sum().backward()
"""

pytestmark = pytest.mark.skipif(
    not (shutil.which("git") and shutil.which("bash")), reason="the action needs git and bash"
)


def git(folder: Path, *words: str) -> None:
    named = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its second commit doubles the layer: 4 MiB of weights and as much of gradients more."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet")
    for width in (1024, 2048):
        (folder / "train.py").write_text(PROGRAM.format(width=width))
        git(folder, "add", "train.py")
        git(folder, "commit", "--quiet", "-m", str(width))
    return folder


@pytest.fixture(scope="module", autouse=True)
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`python` is the interpreter that runs the tests, with PyTorch where it predicts."""
    with python_on_path(tmp_path_factory.mktemp("path")) as first, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{first}{os.pathsep}{os.environ['PATH']}")
        yield


def compared(repository: Path, tmp_path: Path, **given: str) -> subprocess.CompletedProcess[str]:
    root = str(ACTION.parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "SCRIPT": "train.py",
        "OPTIONS": '--card "RTX 4090"',
        "BASE": "HEAD^",
        "MAX_GROWTH": "",
        **given,
    }
    return subprocess.run(
        ["bash", ACTION / "compare.sh"], cwd=repository, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_pull_request_that_needs_more_is_told_by_how_much_and_where(repository: Path, tmp_path: Path) -> None:
    done = compared(repository, tmp_path, MAX_GROWTH="5%", LINK="https://host/kept.html")
    assert done.returncode == 1, done.stderr
    comment = (tmp_path / "summary.md").read_text()
    assert "train.py:3" in comment
    assert "**peak**" in comment
    assert "[Open it in memviz](https://host/kept.html)" in comment
    written = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    assert Path(written["comment"]).read_text() == comment
    page = Path(written["page"]).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "base.pickle" in page and "head.pickle" in page
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=repository, capture_output=True, text=True, check=True)
    assert len(worktrees.stdout.splitlines()) == 1


@pytest.mark.slow
def test_what_may_grow_does_not_fail(repository: Path, tmp_path: Path) -> None:
    assert compared(repository, tmp_path, MAX_GROWTH="200%").returncode == 0


def test_a_script_that_does_not_run_is_named_with_its_last_words(repository: Path, tmp_path: Path) -> None:
    done = compared(repository, tmp_path, SCRIPT="missing.py")
    assert done.returncode == 2
    assert missing(done.stderr, "HEAD^", "missing.py", "could not predict") == []
    assert not (tmp_path / "summary.md").exists()


@pytest.mark.slow
def test_a_script_that_is_new_is_told_as_it_is(repository: Path, tmp_path: Path) -> None:
    (repository / "new.py").write_text(PROGRAM.format(width=4096))
    done = compared(repository, tmp_path, SCRIPT="new.py --epochs 2", MAX_GROWTH="5%", LINK="https://host/kept.html")
    assert done.returncode == 0, done.stderr
    comment = (tmp_path / "summary.md").read_text()
    assert comment.startswith("`new.py` is new here: HEAD^ has nothing to compare it with.")
    assert "The peak is " in comment
    assert comment.endswith("[Open it in memviz](https://host/kept.html)\n")
    written = dict(line.split("=", 1) for line in (tmp_path / "output").read_text().splitlines())
    assert "head.pickle" in Path(written["page"]).read_text(encoding="utf-8")


def test_a_base_that_was_not_checked_out_is_named_with_the_remedy(repository: Path, tmp_path: Path) -> None:
    done = compared(repository, tmp_path, BASE="0" * 40)
    assert done.returncode == 2
    assert (
        done.stderr
        == f"memviz: {'0' * 40} is not in this checkout. Check out with fetch-depth: 0, or name another base.\n"
    )
