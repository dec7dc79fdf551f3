"""The command line in a process of its own, as cheap as a function call.

Starting Python and importing numpy takes the best part of a second, many times over. One process imports what every
command needs and forks for each call: the child's arguments, folder, output, errors and exit status are those of
`python -m memviz`. Tests of the start itself (closed outputs, signals, imports) start a real one.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_OF_COMMANDS = ("memviz.commands", "memviz.ui.saved.report")
_OF_PREDICTIONS = ("memviz.commands", "memviz.runner.predict.predicted_script", "torch.utils.flop_counter")


def memviz(
    *arguments: object, folder: Path | None = None, imports: tuple[str, ...] = _OF_COMMANDS
) -> subprocess.CompletedProcess[str]:
    """`python -m memviz ARGUMENTS`, waited for."""
    command = [sys.executable, "-m", "memviz", *map(str, arguments)]
    place = str(folder or ROOT)
    if not hasattr(os, "fork"):
        return subprocess.run(command, cwd=place, env=_environment(), capture_output=True, text=True)
    with tempfile.TemporaryDirectory() as scratch:
        out, errors = Path(scratch, "out"), Path(scratch, "errors")
        call = {"arguments": command[3:], "folder": place, "out": str(out), "errors": str(errors)}
        status = _asked(call, imports)
        return subprocess.CompletedProcess(command, status, _text(out), _text(errors))


def predict(*arguments: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`python -m memviz predict ARGUMENTS`, for which torch is imported already."""
    return memviz("predict", *arguments, folder=folder, imports=_OF_PREDICTIONS)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _text(path: Path) -> str:
    return path.read_bytes().decode()


def _asked(call: dict[str, Any], imports: tuple[str, ...]) -> int:
    process = _server(imports)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(call) + "\n")
    process.stdin.flush()
    return int(process.stdout.readline())


@cache
def _server(imports: tuple[str, ...]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", f"from tests.second_process import serve; serve(*{imports})"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()


def serve(*imports: str) -> None:
    """In the process that forks: a call a line, its exit status a line back."""
    for name in imports:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _carry_out(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _carry_out(call: dict[str, Any]) -> None:
    os.chdir(call["folder"])
    for number, path in ((1, call["out"]), (2, call["errors"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = ["memviz", *call["arguments"]]
    status = 1
    try:
        runpy.run_module("memviz", run_name="__main__", alter_sys=True)
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(ValueError):
                stream.flush()
        os._exit(status)
